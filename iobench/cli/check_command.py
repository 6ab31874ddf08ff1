"""``iobench check``: a gate for CI, by counts or by exposed time."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from iobench.cli.documents import print_answer, print_document, shown_as
from iobench.errors import OptionError
from iobench.findings.check import (
    check_document,
    check_result,
    gate_counts,
    gate_growth,
    gate_shares,
    update_counts,
)

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.findings.check import Gate


def check(
    *,
    run: Path,
    counts: Path | None,
    update: bool,
    max_exposed: str | None,
    against: Path | None,
    any_machine: bool,
    margin: str | None,
    markdown: bool,
    json: bool,
) -> None:
    """Print whether a run passes, and exit with what follows from it."""
    renderer = shown_as(json=json, markdown=markdown)
    if against is None and (any_machine or margin):
        raise OptionError("--any-machine and --margin: have no effect here; give --against RUN")
    if update:
        if counts is None or max_exposed or against or markdown:
            raise OptionError(
                "--update: writes a run's counts; expected RUN --counts FILE --update"
            )
        figures = {"file": str(counts), "runs": update_counts(run, counts)}
        print_answer(f"Written to {counts}; commit it", figures=figures, json=json)
        return
    gates: list[Gate] = [] if counts is None else [*gate_counts(run, counts)]
    if max_exposed is not None:
        gates += gate_shares(run, _share("--max-exposed", max_exposed))
    if against is not None:
        margin_fraction = _share("--margin", margin or "5%")
        gates += gate_growth(run, against, margin_fraction, any_machine=any_machine)
    if not gates:
        raise OptionError(
            f"{run}: nothing to compare it with; expected --counts FILE, --max-exposed 5% or "
            "--against RUN"
        )
    result = check_result(gates)
    print_document(check_document(result), renderer)
    sys.exit(result.exit_code)


def _share(option: str, text: str) -> float:
    """Return the share that ``5%`` or ``0.05`` names."""
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise OptionError(f"{option} {text}: expected a share such as 5% or 0.05")
    return value
