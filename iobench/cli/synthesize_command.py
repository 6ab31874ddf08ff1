"""``iobench synthesize``: write a dataset's stand-in into a folder of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iobench.cli.source_options import (
    DatasetOptions,
    split_options,
)


def synthesize(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A dataset's name.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write to.")],
    scale: Annotated[
        float | None,
        typer.Option(help="Share of the real samples. [default: what a profile uses]"),
    ] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="The small sizes that tests use.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0,
    option: DatasetOptions = None,
) -> None:
    """Write files with exactly the layout of a dataset that cannot be downloaded."""
    from iobench.cli.screen import TerminalScreen, say
    from iobench.datasets.contract import Synthesizer
    from iobench.datasets.standins import ensure_stand_in
    from iobench.errors import OptionError
    from iobench.registry import find_dataset
    from iobench.stores.places import remember_place

    dataset = find_dataset(name, **split_options(option or []))
    if not isinstance(dataset, Synthesizer):
        raise OptionError(f"{name}: has no stand-in; see 'iobench list' for datasets that have one")
    screen = TerminalScreen()
    with screen.progress(f"writing a stand-in of {name}") as move:
        root = ensure_stand_in(
            dataset, folder, seed=seed, scale=scale, tiny=tiny, progress=move, notice=screen.note
        )
    remember_place(root)
    say(f"{root}: use it with iobench profile {name} --data-dir {root}")
