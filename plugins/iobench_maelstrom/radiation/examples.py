"""TFRecord files of columns: where each example is, checked and parsed without TensorFlow.

Published examples have one size, so a file is indexed by its ends; the checksums of length and
data of every example are verified when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.datasets import Inspection, catalogued, range_file
from iobench.errors import FileFormatError, StoreError
from iobench.stores import (
    FRAME_NBYTES,
    HEADER_NBYTES,
    FeatureKind,
    frame_data,
    frame_header,
    parse_example,
    scan_frames,
)
from iobench_maelstrom.radiation.grouping import GROUPS
from iobench_maelstrom.radiation.published import Starts
from iobench_maelstrom.radiation.schema import LENGTHS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import Advance, Locator

INPUT_FIELDS = ("sca_inputs", "col_inputs", "hl_inputs", "inter_inputs", "pressure_hl")
FETCH: Final = "fetch the file again"
OUTPUT_FIELDS = ("sw", "lw", "hr_sw", "hr_lw")
FEATURES: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    **{name: GROUPS[name] for name in INPUT_FIELDS},
    **dict.fromkeys(("sw", "lw"), (("half_level", "channel"), (LENGTHS["half_level"], 2))),
    **dict.fromkeys(("hr_sw", "hr_lw"), (("level", "channel"), (LENGTHS["level"], 1))),
}
"""Dimensions and shape of each feature."""


class _FileFrames(msgspec.Struct, frozen=True):
    """Where the frames of one file begin: one each ``stride`` bytes, or at ``offsets``."""

    path: Path
    nbytes: int
    stride: int
    offsets: NDArray[np.int64]

    @property
    def count(self) -> int:
        return self.nbytes // self.stride if self.stride else len(self.offsets)

    def place(self, number: int) -> tuple[str, int, int]:
        """Return path, offset and length of a frame."""
        file = range_file(self.path)
        if self.stride:
            return file, number * self.stride, self.stride
        first, stop = np.append(self.offsets[number : number + 2], self.nbytes)[:2].tolist()
        return file, first, stop - first


class Frames:
    """(path, offset, length) of every example with its frame, file after file."""

    def __init__(self, files: Sequence[Path], locator: Locator) -> None:
        self._files = catalogued(
            files, FRAMES, cache_dir=locator.cache_dir, progress=locator.progress
        ).found
        self.lengths = tuple(file.count for file in self._files)
        self._starts = Starts(self.lengths)

    def __len__(self) -> int:
        return len(self._starts)

    def place(self, number: int) -> tuple[str, int, int]:
        """Return where one example is."""
        file, inside = self._starts.locate(number)
        return self._files[file].place(inside)


def _inspect(path: Path, advance: Advance) -> _FileFrames:
    """Return where the frames of a TFRecord file are.

    Where all have the size of the first, the size of the file and the header of the last frame
    say so; else every header is read.
    """
    size = path.stat().st_size
    try:
        first = next(scan_frames(path), None)
        if first is None:
            raise FileFormatError(f"{path}: is empty, expected a TFRecord file; {FETCH}")
        stride = first[1] + FRAME_NBYTES
        if size % stride == 0 and _header_at(path, size - stride) == frame_header(first[1]):
            return _FileFrames(path, size, stride, np.empty(0, dtype=np.int64))
        offsets = [offset - HEADER_NBYTES for offset, _ in scan_frames(path)]
    except StoreError as error:
        reason = str(error).removesuffix("; convert to a new folder")
        raise FileFormatError(f"{reason}; {FETCH}") from error
    return _FileFrames(path, size, 0, np.array(offsets, dtype=np.int64))


FRAMES = Inspection("maelstrom-radiation frames 1", _inspect, (_FileFrames,))


def _header_at(path: Path, offset: int) -> bytes:
    with path.open("rb", buffering=0) as stream:
        stream.seek(offset)
        return stream.read(HEADER_NBYTES)


class ColumnDecoder:
    """Takes the features out of framed examples; picklable.

    Published examples differ in their floats alone: where these lie is kept from one example to
    the next, and holds for each whose other bytes are the same.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._layout: _Layout | None = None

    def decode(self, frame: memoryview, *, where: str) -> Mapping[str, NDArray[Any]]:
        """Return the features as float32 arrays, views of the frame."""
        data = frame_data(frame, where)
        layout = self._layout
        if layout is not None and layout.holds_for(data):
            return {
                name: np.frombuffer(data, "<f4", count, offset).reshape(shape)
                for name, (offset, count, shape) in layout.places.items()
            }
        try:
            lists = {
                name: feature.floats()
                for name, feature in parse_example(data).items()
                if feature.kind is FeatureKind.FLOAT
            }
        except StoreError as error:
            raise FileFormatError(f"{where}: {error}; {FETCH}") from error
        arrays = {}
        for name in self._names:
            shape, values = FEATURES[name][1], lists.get(name)
            if values is None or values.size != np.prod(shape):
                n_values = "no" if values is None else values.size
                raise FileFormatError(
                    f"{where}: feature {name!r} has {n_values} floats, expected {shape}; {FETCH}"
                )
            arrays[name] = values.reshape(shape)
        self._layout = _layout_of(data, lists, arrays)
        return arrays


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where features are in examples that share all other bytes, the ``gaps``."""

    nbytes: int
    gaps: tuple[tuple[int, int, bytes], ...]
    places: Mapping[str, tuple[int, int, tuple[int, ...]]]

    def holds_for(self, data: memoryview) -> bool:
        return len(data) == self.nbytes and all(
            data[start:stop] == content for start, stop, content in self.gaps
        )


def _layout_of(
    data: memoryview, lists: Mapping[str, NDArray[Any]], arrays: Mapping[str, NDArray[Any]]
) -> _Layout | None:
    """Return where ``arrays`` lie in ``data`` among all lists; None if one is no view of it."""
    start = _address(np.frombuffer(data, dtype=np.uint8))
    places = {
        name: (_address(array) - start, array.size, array.shape) for name, array in arrays.items()
    }
    offsets = ((_address(values) - start, values.nbytes) for values in lists.values())
    spans = sorted((offset, offset + nbytes) for offset, nbytes in offsets)
    ends = [0, *(stop for _, stop in spans)]
    begins = [*(offset for offset, _ in spans), len(data)]
    gaps = list(zip(ends, begins, strict=True))
    if any(stop < first for first, stop in gaps):
        return None
    return _Layout(
        len(data), tuple((first, stop, bytes(data[first:stop])) for first, stop in gaps), places
    )


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
