"""What a command says of its source, and where it says how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from iobench.datasets.selection import CoordinateInterval
from iobench.errors import OptionError

if TYPE_CHECKING:
    from iobench.datasets.contract import Progress


class Screen(Protocol):
    """Where notes and progress go."""

    def note(self, text: str) -> None:
        """Say one line."""
        ...

    def progress(self, title: str, *, in_bytes: bool = False) -> AbstractContextManager[Progress]:
        """Return a context that yields a function of (done, total), of bytes if ``in_bytes``."""
        ...


class SourceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Where samples come from; field for field the options of every command that has a source."""

    # the name of a dataset; paths of the user's own files; ``anemoi:PATH``; an object as
    # ``package.module:callable`` or ``climetlab:NAME``, or itself: see `object_dataset`
    targets: tuple[Any, ...]
    options: Mapping[str, str] = msgspec.field(default_factory=dict)  # the dataset's own
    data_dir: Path | None = None
    store_dir: Path | None = None  # where the dataset's files lie, and stores and stand-ins
    sample_dim: str | None = None
    variables: tuple[str, ...] = ()  # for the user's own files and arrays
    # of the user's own files, which of them a model is trained towards
    target_variables: tuple[str, ...] = ()
    # splits by coordinates, as `CoordinateInterval.parse` takes them; instead of the dataset's own
    # where they have names
    split_by: tuple[str, ...] = ()
    tiny: bool = False
    # whether files that are not at hand may be fetched, through the real CliMetLab plugin
    download: bool = False

    def __post_init__(self) -> None:
        if self.download and (self.data_dir or self.tiny):
            raise OptionError(
                "--download: fills CliMetLab's cache; it cannot be combined with --data-dir and "
                "--tiny"
            )
        _ = self.splits_by  # read, to be refused here where one is wrong

    @property
    def splits_by(self) -> tuple[CoordinateInterval, ...]:
        """What `split_by` spells."""
        return tuple(map(CoordinateInterval.parse, self.split_by))
