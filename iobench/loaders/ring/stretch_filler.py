"""Rows filled with stretches of extents: parts of a grid, or what lies in objects elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.files.ranges import FileRange
from iobench.loaders.ring.carriers import RangeViews
from iobench.loaders.ring.decoded import DecodedFiller
from iobench.loaders.ring.laps import Laps
from iobench.loaders.ring.scratch import ScratchRows
from iobench.recording.kinds import Kind
from iobench.stores.checksums import crc32c
from iobench.stores.rounding import unpack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from iobench.loaders.ring.carriers import Carrier
    from iobench.loaders.ring.checks import ExtentChecks
    from iobench.loaders.ring.contract import Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.loaders.ring.stretches import GridCut, RowPiece, StretchPlan
    from iobench.stores.extents import ExtentStore
    from iobench.stores.fields import FieldLayout

__all__ = ["StretchFiller", "wanted_of"]


class StretchFiller:
    """Fills rows with stretches of the extents of samples; see `Filler`.

    Samples that are laid out otherwise than the first one of the store are decoded whole.

    Parameters
    ----------
    store : ExtentStore
        Whose samples.
    fields : FieldLayout
        Where variables lie in the extents.
    plan : StretchPlan
        What is read of each sample.
    carrier : Carrier
        Brings it; the filler closes it.
    cuts : mapping of str to GridCut
        What of some variables the rows are.
    checks : ExtentChecks, optional
        Compares whole extents: for a plan that has nothing else.
    """

    def __init__(
        self,
        store: ExtentStore,
        fields: FieldLayout,
        plan: StretchPlan,
        carrier: Carrier,
        *,
        cuts: Mapping[str, GridCut] | None = None,
        checks: ExtentChecks | None = None,
    ) -> None:
        self._plan = plan
        self._cuts = dict(cuts or {})
        self._carrier = carrier
        self._checks = checks
        self._table = store.table
        self._others = DecodedFiller(store, checks)
        self._whole = ScratchRows(store.spec)
        self._lengths = np.array(fields.lengths, dtype=np.int64)
        self._around = {
            number: np.frombuffer(around, dtype=np.uint8)
            for number, around in enumerate(fields.around or ())
            if around
        }
        self._packed = [v for v in store.manifest.spec if v.packed is not None and v.nbytes]
        packed = {variable.name for variable in self._packed}
        self._plain = [v.name for v in store.spec if v.nbytes and v.name not in packed]
        waste = (p.nbytes for one in plan.stretches for p in one.pieces if p.name is None)
        self._dropped = memoryview(bytearray(max(waste, default=0)))
        self._scratch: dict[object, NDArray[np.uint8]] = {}

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Read all stretches of a batch, then look at what was read."""
        laps = Laps(log)
        laps.start()
        count = len(samples)
        is_other = (self._table.length[samples] != self._lengths).any(axis=1)
        octets = self._octets(count, rows)
        around = {
            number: self._room(number, count * nbytes).reshape(count, nbytes)
            for number, nbytes in self._plan.around_nbytes.items()
        }
        ranges = self._ranges(samples, np.flatnonzero(~is_other), octets, around)
        laps.end(Kind.READ, self._carrier.fill(ranges))
        if self._checks is not None:
            self._check(ranges, samples, np.flatnonzero(~is_other), laps)
        for number, expected in self._around.items():
            is_other |= (around[number] != expected).any(axis=1)
        for variable in self._packed:
            assert variable.packed is not None
            row = rows[variable.name]
            stored = octets[variable.name].view(variable.dtype).reshape(row.shape)
            unpack(stored, variable.packed, row)
            laps.end(Kind.DECODE, octets[variable.name].size)
        for place in np.flatnonzero(is_other).tolist():
            self._decode(place, samples, rows, laps)
        laps.emit()

    def _octets(self, count: int, rows: Rows) -> dict[str, NDArray[np.uint8]]:
        """Return the bytes of each variable's rows: (samples, bytes), contiguous."""
        octets = {
            name: rows[name].reshape(-1).view(np.uint8).reshape(count, -1) for name in self._plain
        }
        for variable in self._packed:
            nbytes = self._plan.part_nbytes[variable.name]
            room = self._room(variable.name, count * nbytes)
            octets[variable.name] = room.reshape(count, nbytes)
        return octets

    def _ranges(
        self,
        samples: NDArray[np.int64],
        chosen: NDArray[np.intp],
        octets: Mapping[str, NDArray[np.uint8]],
        around: Mapping[int, NDArray[np.uint8]],
    ) -> list[RangeViews]:
        """Return what is read of these rows' samples, row by row."""
        views = {name: (array.reshape(-1).data, array.shape[1]) for name, array in octets.items()}
        gaps = {
            number: (array.reshape(-1).data, array.shape[1]) for number, array in around.items()
        }

        def target(piece: RowPiece, extent: int, row: int) -> memoryview:
            if piece.name is None:
                return self._dropped[: piece.nbytes]
            view, pitch = views[piece.name] if piece.name else gaps[extent]
            start = row * pitch + piece.at
            return view[start : start + piece.nbytes]

        files = self._table.file[samples].tolist()
        offsets = self._table.offset[samples].tolist()
        return [
            RangeViews(
                FileRange(files[row][one.extent], offsets[row][one.extent] + one.start, one.nbytes),
                [target(piece, one.extent, row) for piece in one.pieces],
            )
            for row in chosen.tolist()
            for one in self._plan.stretches
        ]

    def _check(
        self,
        ranges: list[RangeViews],
        samples: NDArray[np.int64],
        chosen: NDArray[np.intp],
        laps: Laps,
    ) -> None:
        """Compare checksums of extents, each of which is one stretch."""
        assert self._checks is not None
        expected: NDArray[Any] = self._checks.expected(samples[chosen], None, None)
        found = iter(ranges)
        for place, row in enumerate(chosen.tolist()):
            for stretch in self._plan.stretches:
                crc = 0
                for view in next(found).views:
                    crc = crc32c(view, crc)
                if crc != expected[place, stretch.extent]:
                    self._checks.fail(int(samples[row]), stretch.extent)
        laps.end(Kind.VERIFY, sum(one.nbytes for one, _ in ranges))

    def _decode(self, row: int, samples: NDArray[np.int64], rows: Rows, laps: Laps) -> None:
        """Decode a sample that is laid out otherwise, and copy what is wanted of it."""
        whole = self._whole.arrays(1)
        self._others.fill_rows(slice(0, 1), samples[row : row + 1], whole, laps)
        for name, values in rows.items():
            values[row, ...] = wanted_of(whole[name], self._cuts.get(name))[0]
        laps.end(Kind.DECODE, 0)

    def _room(self, key: object, nbytes: int) -> NDArray[np.uint8]:
        """Return memory of this thread that is used again."""
        room = self._scratch.get(key)
        if room is None or room.size < nbytes:
            room = self._scratch[key] = np.empty(nbytes, dtype=np.uint8)
        return room[:nbytes]

    def close(self) -> None:
        """Close the files and let memory go."""
        self._carrier.close()
        self._scratch.clear()


def wanted_of(whole: NDArray[Any], cut: GridCut | None) -> NDArray[Any]:
    """Return of whole samples what is wanted, as a view."""
    if cut is None:
        return whole
    return whole[(slice(None),) * (cut.axis + 1) + (slice(cut.low, cut.high),)]
