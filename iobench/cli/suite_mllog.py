"""``iobench suite mllog``: runs of a suite as MLPerf's logs."""

from __future__ import annotations

from json import loads
from typing import TYPE_CHECKING, Any

from iobench.analysis.run import Run
from iobench.cli.documents import print_answer
from iobench.errors import OptionError, ProfileError
from iobench.files.atomic import storage_errors, write_atomically
from iobench.report.document import Sentence
from iobench.report.units import count
from iobench.suites.mllog import mllog_text
from iobench.suites.results import MEASURED, find_results, read_result

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def mllog(*, folder: Path, out: Path, tell: Sequence[str], json: bool) -> None:
    """Write each run of a suite as lines of MLPerf's logging."""
    known = _parse(tell)
    logs: dict[str, str] = {}
    for path in find_results(folder):
        result = read_result(path)
        if result.run is not None and result.status == MEASURED:
            name = path.relative_to(folder).parent / f"result_{result.round}.txt"
            run = Run(path.parent / result.run).of_rank()
            logs[str(name)] = mllog_text(run, dict(result.figures), known)
    if not logs:
        raise ProfileError(f"{folder}: expected a suite with measured runs; it has none")
    for log, text in logs.items():
        with storage_errors(out / log):
            (out / log).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out / log, text)
    print_answer(
        f"{out}: {count(len(logs))} logs",
        Sentence(
            "Each log ends as aborted: a suite does not train to a target quality, and MLPerf "
            "counts nothing else as success."
        ),
        figures={"logs": list(logs)},
        json=json,
    )


def _parse(words: Sequence[str]) -> dict[str, Any]:
    """Return values by key: as JSON, else as text."""
    known: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise OptionError(f"--tell {word}: expected KEY=VALUE, as submission_org=NAME")
        try:
            known[key] = loads(value)
        except ValueError:
            known[key] = value
    return known
