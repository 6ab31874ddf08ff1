"""``iobench stage``: copy a store or files to a disk near the CPUs."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from iobench.cli.documents import fact_table, print_answer
from iobench.cli.screen import TerminalScreen
from iobench.report.document import Command
from iobench.staging.stage import stage as stage_there
from iobench.storage.file_systems import file_system_of

if TYPE_CHECKING:
    from pathlib import Path

ON: Final = {"memory": ", in memory", "network": ", over a network: this is not a local disk"}


def stage(*, source: str, to: Path, json: bool) -> None:
    """Copy what is named."""
    screen = TerminalScreen()
    with screen.progress("staging", in_bytes=True) as move:
        copy = stage_there(source, to, progress=move, notice=screen.note)
    facts = {"path": str(copy.path), "was_there": copy.was_there}
    facts |= copy.to_dict() | {"n_files": len(copy.files)}
    on, path = file_system_of(copy.path), shlex.quote(str(copy.path))
    of_store = [
        Command(f"iobench verify {path}", "Check it"),
        Command(f"iobench profile {path}", "Measure loading it"),
    ]
    print_answer(
        f"{copy.source} staged in {copy.path}",
        fact_table(facts | {"lies_on": f"{on.name}{ON.get(on.reach, '')}"}, {"path"}),
        *of_store * copy.is_store,
        figures=facts,
        json=json,
    )
