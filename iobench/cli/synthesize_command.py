"""``iobench synthesize``: write a dataset's stand-in into a folder of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from iobench.cli.screen import TerminalScreen
from iobench.datasets.contract import Synthesizer
from iobench.datasets.locate import ensure_stand_in
from iobench.errors import OptionError
from iobench.masking import printable
from iobench.registry import find_dataset

if TYPE_CHECKING:
    from pathlib import Path


def synthesize(
    *, name: str, folder: Path, scale: float | None, tiny: bool, seed: int, options: dict[str, str]
) -> None:
    """Write a dataset's stand-in into a folder."""
    dataset = find_dataset(name, **options)
    if not isinstance(dataset, Synthesizer):
        raise OptionError(f"{name}: has no stand-in; see 'iobench list' for datasets that have one")
    screen = TerminalScreen()
    with screen.progress(f"writing a stand-in of {name}") as move:
        root = ensure_stand_in(
            dataset, folder, seed=seed, scale=scale, tiny=tiny, progress=move, notice=screen.note
        )
    click.echo(printable(f"{root}: use it with iobench profile {name} --data-dir {root}"))
