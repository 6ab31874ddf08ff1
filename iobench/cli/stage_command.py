"""``iobench stage``: copy a store or files to a disk near the CPUs, and remove the copy again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from iobench.cli.documents import print_answer
from iobench.cli.source_options import DataDir, DatasetOptions, FilesGlob, split_options

if TYPE_CHECKING:
    from iobench.cli.screen import TerminalScreen
    from iobench.report.document import Block, Cell
    from iobench.staging.staged_copy import StagedCopy

_VERIFIED: Final = {
    "store": "the bytes read match the store's own checksums",
    "files": (
        "by size and modification time of the source before and after; a digest of the copy is kept"
    ),
}


def stage(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="STORE|FILES|NAME...",
            help="A store, files, folders or a dataset's name; with --remove, copies.",
        ),
    ],
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help=("Copy to below this folder, e.g. $TMPDIR; copies there are shared."),
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Files copied at a time. [default: one per CPU, 4 to 16]")
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the named copies, and nothing else.")
    ] = False,
    data_dir: DataDir = None,
    files: FilesGlob = None,
    option: DatasetOptions = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Copy a store or files once to a node's own disk: verified and resumable."""
    from iobench.cli.screen import TerminalScreen, say
    from iobench.errors import OptionError
    from iobench.staging.stage import stage as stage_there
    from iobench.staging.staged_copy import remove_staged
    from iobench.stores.places import remember_place

    if remove:
        if to is not None or threads is not None:
            raise OptionError("--remove: removes the named copies; leave --to and --threads out")
        for path in sources:
            remove_staged(path)
            say(f"removed {path}")
        return
    if to is None:
        raise OptionError("stage: name the folder to copy to (--to), such as --to $TMPDIR")
    if threads is not None and threads < 1:
        raise OptionError(f"--threads {threads}: expected 1 or more")
    screen = TerminalScreen()
    targets = _files_of(sources, data_dir, files, split_options(option or []), screen)
    with screen.progress("staging", in_bytes=True) as move:
        copy = stage_there(targets, to, threads=threads, progress=move, notice=screen.note)
    remember_place(copy.path.parent)  # for 'iobench cache'
    title, told = _told(copy)
    facts = {"path": str(copy.path), "was_there": copy.was_there}
    facts |= copy.to_dict() | {"n_files": len(copy.files)}
    print_answer(title, *told, figures=facts, json=json)


def _files_of(
    sources: list[str],
    data_dir: str | None,
    files: str | None,
    options: dict[str, str],
    screen: TerminalScreen,
) -> list[Path | str]:
    """Return what is named, of a dataset its files."""
    from iobench.errors import OptionError
    from iobench.files.urls import as_path, is_url
    from iobench.registry import dataset_names
    from iobench.sources.opening import expand_sources, open_source
    from iobench.sources.request import SourceRequest

    name = sources[0]
    if len(sources) == 1 and name in dataset_names() and not Path(name).exists():
        where = None if data_dir is None else as_path(data_dir)
        request = SourceRequest(targets=(name,), data_dir=where, files=files, options=options)
        return list(open_source(request, screen).files)
    given = {"--data-dir": data_dir, "--files": files, "--option": options}
    if wrong := [option for option, value in given.items() if value]:
        raise OptionError(f"{', '.join(wrong)}: for named datasets, not for {', '.join(sources)}")
    # A folder is all that is in it, not the data files alone that a measurement would read.
    return [
        path for each in sources for path in (expand_sources([each]) if is_url(each) else [each])
    ]


def _told(copy: StagedCopy) -> tuple[str, list[Block]]:
    """Return what was done, and how to use it."""
    from iobench.report.document import Bytes, Command, Duration, properties
    from iobench.report.units import byte_rate, count, nanoseconds
    from iobench.storage.file_systems import file_system_of

    on = file_system_of(copy.path)
    where = {"memory": ", in memory", "network": ", over a network: this is not a local disk"}
    files = "1 file" if len(copy.files) == 1 else f"{count(len(copy.files))} files"
    rows: list[tuple[Cell, ...]] = [
        ("holds", Bytes(copy.nbytes, f"{files}, {{}}")),
        ("lies on", f"{on.name}{where.get(on.reach, '')}"),
    ]
    if copy.was_there:
        rows.append(("time", "nothing was copied: an intact copy was already there"))
    else:
        taken = f"{{}} for {byte_rate(copy.bytes_per_s)}" if copy.bytes_per_s else "{}"
        rows.append(("time", Duration(nanoseconds(copy.seconds), taken)))
        rows.append(("verified", _VERIFIED[copy.kind]))
    told: list[Block] = [properties(rows)]
    path = shlex.quote(str(copy.path))
    if copy.kind == "store":
        told.append(Command(f"iobench verify {path}", "Check it"))
        told.append(Command(f"iobench profile {path}", "Measure loading it"))
    told.append(Command(f"iobench stage {path} --remove", "Remove it"))
    return f"{copy.source} staged in {copy.path}", told
