"""``iobench stage``: copy a store or files to a disk near the CPUs, and remove the copy again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

from iobench.cli.documents import fact_table, print_answer
from iobench.cli.screen import TerminalScreen, say
from iobench.errors import OptionError
from iobench.files.urls import is_url
from iobench.registry import dataset_names
from iobench.report.document import Command
from iobench.sources.opening import expand_sources, open_source
from iobench.sources.request import SourceRequest
from iobench.staging.stage import stage as stage_there
from iobench.staging.staged_copy import remove_staged
from iobench.storage.file_systems import file_system_of
from iobench.stores.places import remember_place

if TYPE_CHECKING:
    from collections.abc import Sequence

ON: Final = {"memory": ", in memory", "network": ", over a network: this is not a local disk"}


def stage(*, sources: Sequence[str], to: Path | None, remove: bool, json: bool) -> None:
    """Copy what is named, or remove copies."""
    if remove:
        if to is not None:
            raise OptionError("--remove: removes the named copies; leave --to out")
        for path in sources:
            remove_staged(path)
            say(f"removed {path}")
        return
    if to is None:
        raise OptionError("stage: name the folder to copy to (--to), such as --to $TMPDIR")
    screen = TerminalScreen()
    targets = _files_of(sources, screen)
    with screen.progress("staging", in_bytes=True) as move:
        copy = stage_there(targets, to, progress=move, notice=screen.note)
    remember_place(copy.path.parent)  # for 'iobench cache'
    facts = {"path": str(copy.path), "was_there": copy.was_there}
    facts |= copy.to_dict() | {"n_files": len(copy.files)}
    on, path = file_system_of(copy.path), shlex.quote(str(copy.path))
    shown = facts | {"lies_on": f"{on.name}{ON.get(on.reach, '')}"}
    of_store = [
        Command(f"iobench verify {path}", "Check it"),
        Command(f"iobench profile {path}", "Measure loading it"),
    ]
    print_answer(
        f"{copy.source} staged in {copy.path}",
        fact_table(shown, {"path", "digest", "state", "job"}),
        *of_store * (copy.kind == "store"),
        Command(f"iobench stage {path} --remove", "Remove it"),
        figures=facts,
        json=json,
    )


def _files_of(sources: Sequence[str], screen: TerminalScreen) -> list[Path | str]:
    """Return what is named, of a dataset its files."""
    name = sources[0]
    if len(sources) == 1 and name in dataset_names() and not Path(name).exists():
        return list(open_source(SourceRequest(targets=(name,)), screen).files)
    # A folder is all that is in it, not the data files alone that a measurement would read.
    return [
        path for each in sources for path in (expand_sources([each]) if is_url(each) else [each])
    ]
