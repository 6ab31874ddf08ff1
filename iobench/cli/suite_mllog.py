"""``iobench suite mllog``: measured runs of a suite as MLPerf's logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.cli.documents import print_answer
from iobench.report.document import Sentence
from iobench.suites.mllog import write_logs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def mllog(*, folder: Path, out: Path, tell: Sequence[str], json: bool) -> None:
    """Write each run of a suite as lines of MLPerf's logging."""
    logs = write_logs(folder, out, tell)
    why = "Each log ends as aborted: a suite does not train to a target quality."
    print_answer(f"{out}: {len(logs)} logs", Sentence(why), figures={"logs": logs}, json=json)
