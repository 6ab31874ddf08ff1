"""The files of a Zarr array's chunks: whether they are there, and enough for what it claims."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iobench.chunks.boxes import places_touched
from iobench.errors import FileFormatError
from iobench.files.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.chunks.boxes import Box
    from iobench.chunks.chunked_variable import ChunkedVariable

LARGE_NBYTES, LARGE_LENGTH = 1 << 32, 1 << 22
"""Of an array, or along one of its axes: from there on chunks are counted before it is believed."""

SPARSE = 64
"""How many times the numbers of its chunks an array may have: the others were never written."""


def check_held(store: Path, variable: ChunkedVariable) -> None:
    """Refuse an array whose metadata claim far more numbers than its chunks can hold.

    Lengths are what memory is asked for: a shape of a billion times is a few bytes of JSON. Nothing
    is counted of small arrays, nor of stores elsewhere, whose chunks it takes minutes to list.
    """
    keys = variable.keys
    if keys is None or is_url(variable.folder) or not variable.shape:
        return
    itemsize = np.dtype(variable.packing.stored).itemsize
    n_numbers = math.prod(variable.shape)
    if n_numbers * itemsize <= LARGE_NBYTES and max(variable.shape) <= LARGE_LENGTH:
        return
    counts = keys.chunks_per_shard or (1,) * len(variable.shape)
    chunk = [n * m for n, m in zip(variable.chunk, counts, strict=True)]
    in_a_file = math.prod(map(min, chunk, variable.shape))
    needed = -(-n_numbers // (SPARSE * in_a_file))
    found = 0
    for _, _, files in os.walk(variable.folder):
        found += sum(not name.startswith((".z", "zarr.json")) for name in files)
        if found >= needed:
            return
    raise FileFormatError(
        f"{store}: array {variable.name!r} claims the shape {list(variable.shape)}, and "
        f"its {found} chunks of {chunk} hold less than one in {SPARSE} of that; fetch the store "
        "again, or leave the array out with --variables"
    )


def missing_keys(boxes: Sequence[Box]) -> list[str | None]:
    """Return for each box of one variable the first of its files that is not there, or None.

    One listing of the array's folder where all its chunks lie in it.
    """
    variable = boxes[0].variable
    keys = variable.keys
    assert keys is not None
    nested = "/" in keys.file_key([0] * len(variable.shape))
    present = set() if nested else {entry.name for entry in os.scandir(variable.folder)}
    found: list[str | None] = []
    for box in boxes:
        places = places_touched(variable.chunk, box.start, box.stop)
        wanted = dict.fromkeys(map(keys.file_key, places))
        if nested:
            absent = [key for key in wanted if not Path(variable.folder, key).exists()]
        else:
            absent = [key for key in wanted if key not in present]
        found.append(absent[0] if absent else None)
    return found
