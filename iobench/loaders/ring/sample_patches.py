"""PatchPlaces of samples: all variables cut at one place, drawn at random or laid out as tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace

from iobench.chunks.boxes import tile_starts
from iobench.errors import OptionError
from iobench.loaders.ring.buffers import ScratchRows
from iobench.loaders.ring.order import drawn_below
from iobench.recording.kinds import Kind
from iobench.samples import SampleSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.loaders.ring.contract import Reader, Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.samples import Variable

PLACES: Final = ("random", "tiles", "centre")


@dataclass(frozen=True, slots=True)
class PatchCut:
    """What patches take of one variable."""

    variable: Variable  # the whole one
    columns: tuple[int, ...]  # by axis which of the dimensions that are cut it is; -1 for none
    sizes: tuple[int, ...]  # of a patch, along each axis

    @property
    def part(self) -> Variable:
        """A patch of the variable."""
        variable = self.variable
        cut = {d for d, c in zip(variable.dims, self.columns, strict=True) if c >= 0}
        is_cut = "channel" in cut or ("channel" not in variable.dims and {*variable.dims[:1]} & cut)
        channels = () if is_cut else variable.channels  # which ones is another for each patch
        return replace(variable, shape=self.sizes, channels=channels)

    def starts(self, corner: list[int]) -> list[int]:
        """Return where a patch begins along each axis."""
        return [corner[column] if column >= 0 else 0 for column in self.columns]

    def box(self, corner: list[int]) -> tuple[slice, ...]:
        """Return a patch as an index of the variable."""
        return tuple(
            slice(start, start + size)
            for start, size in zip(self.starts(corner), self.sizes, strict=True)
        )


class PatchPlaces:
    """How large patches are and where they lie; see ``patch`` of `LoaderConfig`."""

    def __init__(
        self, sizes: Mapping[str, int], spec: SampleSpec, at: str = "centre", seed: int = 0
    ) -> None:
        if not isinstance(sizes, Mapping) or not sizes:
            raise OptionError(f"patch={sizes!r}: expected sizes by dimension, as {{'y': 256}}")
        lengths: dict[str, dict[int, str]] = {}
        for variable in spec:
            for dim, length in zip(variable.dims, variable.shape, strict=True):
                lengths.setdefault(dim, {}).setdefault(length, variable.name)
        self.dims = tuple(sizes)
        self.lengths = tuple(_length(dim, size, lengths) for dim, size in sizes.items())
        self.sizes = tuple(map(int, sizes.values()))
        self.cuts = {v.name: self.cut(v) for v in spec if {*v.dims} & {*sizes}}
        self.part = SampleSpec(tuple(self.cut(variable).part for variable in spec))
        self.at, self._seed = at, seed
        pairs = list(zip(self.lengths, self.sizes, strict=True))
        self._counts = [length - size + 1 for length, size in pairs]
        starts = [[(count - 1) // 2] for count in self._counts]
        if at == "tiles":
            starts = [tile_starts(*each) for each in pairs]
        places = np.meshgrid(*(np.array(each, dtype=np.int64) for each in starts), indexing="ij")
        self._tiles = np.stack(places, axis=-1).reshape(-1, len(starts))

    @property
    def n_each(self) -> int:
        """PatchPlaces of each sample."""
        return len(self._tiles)

    def cut(self, variable: Variable) -> PatchCut:
        """Return what patches take of a variable."""
        columns = tuple(self.dims.index(dim) if dim in self.dims else -1 for dim in variable.dims)
        sizes = tuple(
            length if column < 0 else self.sizes[column]
            for column, length in zip(columns, variable.shape, strict=True)
        )
        return PatchCut(variable, columns, sizes)

    def corners(self, samples: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return where patches begin: (samples, dimensions)."""
        if self.at == "random":
            return drawn_below(self._counts, samples, seed=self._seed, epoch=max(0, epoch))
        corners: NDArray[np.int64] = self._tiles[samples % len(self._tiles)]
        return corners


def _length(dim: str, size: Any, lengths: Mapping[str, Mapping[int, str]]) -> int:
    """Return the length of a dimension of which patches take so much."""
    if not isinstance(size, (int, np.integer)) or size < 1:
        raise OptionError(f"patch: {dim}={size!r}, expected a whole number of 1 or more")
    if dim not in lengths:
        known = ", ".join(f"{name} ({'/'.join(map(str, n))})" for name, n in lengths.items())
        raise OptionError(
            f"patch: no variable has the dimension {dim}; dimensions (lengths): {known}"
        )
    if len(lengths[dim]) > 1:
        listed = ", ".join(f"{name} has {length}" for length, name in lengths[dim].items())
        raise OptionError(
            f"patch: along {dim} {listed}; patches are cut at one place of all variables"
        )
    length = next(iter(lengths[dim]))
    if size > length:
        raise OptionError(f"patch: {dim}={size} is more than the {length} there are")
    return length


class CutReader:
    """Boxes of samples that another reader fills whole, some at once."""

    def __init__(
        self, whole: Reader, spec: SampleSpec, patches: PatchPlaces, most_nbytes: int | None = None
    ) -> None:
        self._whole = whole
        self._cuts = patches.cuts
        self._scratch = ScratchRows(spec)
        self._at_once: int | None = None
        if most_nbytes is not None:
            self._at_once = max(1, most_nbytes // max(1, spec.nbytes))
        self.close = whole.close

    def fill(
        self, samples: NDArray[np.int64], rows: Rows, log: BatchLog, corners: NDArray[np.int64]
    ) -> None:
        """Fill whole samples, each once, then copy their boxes."""
        every, place = np.unique(samples, return_inverse=True)
        at_once = self._at_once or len(every)
        boxes = corners.tolist()
        for first in range(0, len(every), at_once):
            some = every[first : first + at_once]
            whole = self._scratch.arrays(len(some))
            self._whole.fill(some, whole, log)
            start_ns = log.now_ns()
            nbytes = 0
            here = np.flatnonzero((place >= first) & (place < first + len(some)))
            for row, at in zip(here.tolist(), (place[here] - first).tolist(), strict=True):
                for name, target in rows.items():
                    cut = self._cuts.get(name)
                    source = whole[name][at]
                    target[row, ...] = source if cut is None else source[cut.box(boxes[row])]
                    nbytes += target[row].nbytes
            log.add(Kind.PREPROCESS, start_ns, log.now_ns(), nbytes=nbytes, label="patch")
