"""``iobench limits``: what the storage under a folder can do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from iobench.cli.documents import Json, print_answer
from iobench.cli.source_options import split_names

if TYPE_CHECKING:
    from iobench.profiling.storage_limits import Requests
    from iobench.sources.request import Screen

DEFAULT_BYTES: Final = "4GiB"


def limits(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A folder of existing files, or one of them.")
    ],
    like: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|STORE|RUN",
            help=(
                "A dataset, store or run whose samples set the size and order of reads. "
                "[default: 1 MiB, random and sequential]"
            ),
        ),
    ] = None,
    threads: Annotated[
        str | None,
        typer.Option(
            metavar="N,...", help=("Numbers of threads to try. [default: 1, 2, 4 ... all CPUs]")
        ),
    ] = None,
    duration: Annotated[float, typer.Option(help="Longest time in total, in seconds.")] = 20.0,
    nbytes: Annotated[
        str | None, typer.Option("--bytes", help="Most bytes to read in total. [default: 4GiB]")
    ] = None,
    json: Json = False,
) -> None:
    """Say how fast the files of a folder can be read, and by what: device, server or cache."""
    from iobench.cli.limits_document import limits_told
    from iobench.cli.screen import TerminalScreen
    from iobench.errors import OptionError
    from iobench.files.urls import is_url
    from iobench.profiling.storage_limits import ANY, measured_limits
    from iobench.sizes import parse_nbytes
    from iobench.storage.file_systems import file_system_of, nfs_mount

    _check_duration(duration)
    if is_url(path):
        raise OptionError(f"{path}: is read over the network; expected a mounted folder")
    folder = Path(path)
    max_nbytes = parse_nbytes("--bytes", nbytes or DEFAULT_BYTES)
    chosen = None if threads is None else _threads(threads)
    screen = TerminalScreen()
    found = measured_limits(
        folder,
        ANY if like is None else _requests(like, screen),
        threads=chosen,
        duration_s=duration,
        max_nbytes=max_nbytes,
    )
    file_system = file_system_of(folder)
    nfs = nfs_mount(file_system.mount)
    answer = {**found.to_dict(), "cold": file_system.cold, "nfs": nfs}
    title, told = limits_told(found, file_system, nfs)
    print_answer(title, *told, figures=answer, json=json)


def _threads(text: str) -> tuple[int, ...]:
    from iobench.errors import OptionError

    names = split_names(text)
    if not names or not all(name.isdecimal() and 1 <= int(name) <= 1024 for name in names):
        raise OptionError(f"--threads {text}: expected numbers from 1 to 1024 such as 1,2,4")
    return tuple(map(int, names))


def _check_duration(duration_s: float) -> None:
    from iobench.errors import OptionError

    if not 0 < duration_s <= 3600:
        raise OptionError(f"--duration {duration_s:g}: expected more than 0 and at most 3600")


def _requests(like: str, screen: Screen) -> Requests:
    """Return the reads of a dataset's, a store's or a run's samples."""
    from iobench.cli.descriptions import describe_dataset
    from iobench.errors import OptionError
    from iobench.profiling.storage_limits import requests_of_folder, requests_of_samples
    from iobench.registry import dataset_names, unknown_name

    if like not in dataset_names():
        if not Path(like).exists():
            raise unknown_name("dataset", like, dataset_names())
        found = requests_of_folder(Path(like))
        if found is None:
            raise OptionError(
                f"--like {like}: is not a dataset, a store or a run; check the spelling"
            )
        return found
    facts = describe_dataset(
        like, options={}, data_dir=None, files=None, store_dir=None, screen=screen
    )
    text = f"samples of {like}, according to {facts['told_from']}"
    return requests_of_samples(facts["files"]["nbytes"], facts["n_samples"], text)
