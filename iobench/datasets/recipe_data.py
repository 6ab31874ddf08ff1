"""What a `Recipe` says its dataset by: keys of files, axes, variables, splits, hyperslabs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar, get_args, overload

import msgspec
import numpy as np

if TYPE_CHECKING:
    from iobench.samples import Role

FileKey = Mapping[str, str]
"""What tells a file from the others: the value of each `Key`."""
ZScore = Literal["", "all", "point"]
T = TypeVar("T")


class Key(msgspec.Struct, frozen=True):
    """A part of the files' URL, in braces there: its name and the values it has, in order."""

    name: str
    values: Sequence[str]
    text: str = ""
    """What it is, for ``iobench info``: users choose by ``--option NAME=VALUE,VALUE``."""


class Axis(msgspec.Struct, frozen=True):
    """A dimension of the files."""

    name: str
    length: int = 0  # that every file must have; 0 for any
    first: float = 0.0  # of the coordinate that a stand-in has
    step: float = 1.0
    units: str = ""  # of that coordinate


class RecipeVariable(msgspec.Struct, frozen=True):
    """A variable of the files, which may hold it packed or in another floating-point dtype."""

    name: str
    units: str = ""
    low: float = 0.0  # between which a stand-in's values lie
    high: float = 1.0
    dims: tuple[str, ...] = ()  # all axes by default
    dtype: str = "f4"  # of a stand-in's numbers
    is_static: bool = False  # whether files may hold it once, without the sample dimension
    # whether samples hold it less its mean and divided by its deviation over the files of the
    # split ``train``: of ``all`` values, or at each ``point``
    zscore: ZScore = ""
    role: Role = "input"  # where each variable is an array of the sample: what it is to the model
    noise: float = 0.7  # the share of the bits of a stand-in's numbers that are noise

    def mistakes(self) -> Iterator[str]:
        """Yield which of these a recipe cannot have."""
        try:
            is_number = np.dtype(self.dtype).kind in "fiu"
        except TypeError:
            is_number = False
        if not is_number:
            yield f"field {self.name!r} has dtype {self.dtype!r}, expected a number's, as 'f4'"
        if self.zscore not in get_args(ZScore):
            yield f"field {self.name!r} has zscore {self.zscore!r}, expected 'all' or 'point'"
        if self.role not in ("input", "target"):
            yield f"field {self.name!r} has role {self.role!r}, expected 'input' or 'target'"


class ChannelGroup(msgspec.Struct, frozen=True):
    """An array of the sample, variables stacked as channels; float32 ``(channel, ...)``."""

    name: str
    fields: tuple[str, ...]
    role: Role = "input"


class Split(msgspec.Struct, frozen=True):
    """Samples by their time: those whose time, as ``2020-03-01T06``, begins with one of these."""

    name: str
    times: Sequence[str]


class Hyperslab(NamedTuple):
    """What a sample takes of a variable; of dimensions without a range all."""

    variable: str  # its name in the file
    # by dimension: an index, which is then no axis of the array, or ``slice(start, stop)``; those
    # that the variable lacks do not count
    ranges: Mapping[str, int | slice]
    file: int | None = None  # the file's number; by default the sample's own
    name: str = ""  # of the array; by default the variable's
    of_all: bool = False  # whether the file is one that samples of all files need

    @property
    def array(self) -> str:
        """The name of the array."""
        return self.name or self.variable


class Items(msgspec.Struct, frozen=True, eq=False):
    """The samples of a set of files; see `SampleIndex` for each."""

    where: Sequence[Any]
    coordinate: Sequence[str]
    positions: Sequence[float] = ()
    position_units: str = ""
    rows: Sequence[int] = ()
    splits: Mapping[str, Sequence[int]] = msgspec.field(default_factory=dict)


class LazySequence(Sequence[T], Generic[T]):
    """A sequence whose items follow from their numbers: millions of samples fit in a pickle."""

    __slots__ = ("_compute", "_length")

    def __init__(self, length: int, compute: Callable[[int], T]) -> None:
        self._length = length
        self._compute = compute

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        numbers = range(self._length)[index]
        if isinstance(numbers, range):
            return [self._compute(number) for number in numbers]
        return self._compute(numbers)
