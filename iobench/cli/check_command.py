"""``iobench check``: a gate for CI, by counts or by exposed time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from iobench.cli.documents import print_answer, print_document
from iobench.errors import OptionError, StorageError
from iobench.findings.check import (
    check_document,
    check_result,
    gate_counts,
    gate_growth,
    gate_shares,
    update_counts,
    written_lines,
)
from iobench.registry import find_renderer
from iobench.report.document import sentences

if TYPE_CHECKING:
    from iobench.findings.check import Gate

STDOUT: Final = "-"


def check(
    *,
    run: Path,
    counts: Path | None,
    update: bool,
    max_exposed: str | None,
    against: Path | None,
    any_machine: bool,
    margin: str,
    markdown: str | None,
    json: bool,
) -> None:
    """Print whether a run passes, and exit with what follows from it."""
    _refuse_idle(update=update)
    if json and markdown == STDOUT:
        raise OptionError("--json and --markdown: both go to stdout; give --markdown a file")
    if update:
        if counts is None or max_exposed or against:
            raise OptionError(
                "--update: writes a run's counts; expected RUN --counts FILE --update"
            )
        _write_counts(run, counts, json=json)
        return
    gates: list[Gate] = [] if counts is None else [*gate_counts(run, counts)]
    if max_exposed is not None:
        gates += gate_shares(run, _share("--max-exposed", max_exposed))
    if against is not None:
        gates += gate_growth(run, against, _share("--margin", margin), any_machine=any_machine)
    if not gates:
        raise OptionError(
            f"{run}: nothing to compare it with; expected --counts FILE, --max-exposed 5% or "
            "--against RUN"
        )
    result = check_result(gates)
    document = check_document(result)
    print_document(document, "json" if json else "markdown" if markdown == STDOUT else "")
    if markdown is not None and markdown != STDOUT:
        _add_summary(Path(markdown), find_renderer("markdown").render(document))
    sys.exit(result.exit_code)


def _refuse_idle(*, update: bool) -> None:
    """Refuse an option that would change nothing: whoever gives it expects otherwise."""
    context, typed = click.get_current_context(), click.core.ParameterSource.COMMANDLINE
    given = {name for name in context.params if context.get_parameter_source(name) is typed}
    for name, needed, is_there in (
        ("margin", "--against RUN", "against" in given),
        ("any_machine", "--against RUN", "against" in given),
        ("markdown", "something to compare, and not --update", not update),
    ):
        if name in given and not is_there:
            option = name.replace("_", "-")
            raise OptionError(f"--{option}: has no effect here; it needs {needed}")


def _write_counts(run: Path, counts: Path, *, json: bool) -> None:
    written = update_counts(run, counts)
    figures = {
        name: {"exact": each.exact, "at_most": each.at_most} for name, each in written.items()
    }
    print_answer(
        f"Written to {counts}; commit it",
        *sentences(written_lines(written)),
        figures={"file": str(counts), "runs": figures},
        json=json,
    )


def _add_summary(path: Path, text: str) -> None:
    """Add to a file: other steps of the job may have written theirs."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be written ({error.strerror or error}); name another file"
        ) from error


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
