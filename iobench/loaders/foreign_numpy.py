"""``.npy`` files that others wrote: one, or a folder of them with as many samples each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from iobench.errors import SampleError
from iobench.files.atomic import storage_errors
from iobench.loaders.foreign import ForeignArray, foreign_store, refused
from iobench.samples import Variable

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.loaders.foreign import ForeignStore

ENDING = ".npy"


def is_numpy(path: Path) -> bool:
    """Return whether a path is an ``.npy`` file or a folder of them."""
    return (path.is_file() and path.suffix == ENDING) or (
        path.is_dir() and any(child.suffix == ENDING for child in path.iterdir())
    )


def open_numpy(path: Path) -> ForeignStore:
    """Return a store of ``.npy`` files: a variable for each, the first axis counts samples.

    Raises
    ------
    StoreError
        If one holds no numbers, is in Fortran order or of another byte order than little-endian, is
        cut short, or has another number of samples.
    """
    files = [path] if path.is_file() else sorted(path.glob(f"*{ENDING}"))
    arrays = [_array(path, file) for file in files]
    counts = {file.name: len(array.offset) for file, array in zip(files, arrays, strict=True)}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} {count}" for name, count in list(counts.items())[:5])
        raise refused(path, f"its files do not hold as many samples each ({told})")
    return foreign_store(path, "numpy", arrays)


def _array(path: Path, file: Path) -> ForeignArray:
    try:
        with storage_errors(file), file.open("rb") as stream:
            version = np.lib.format.read_magic(stream)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else (np.lib.format.read_array_header_2_0)
            )
            shape, is_fortran, dtype = read(stream)
            start = stream.tell()
    except ValueError as error:
        raise refused(path, f"{file.name} is no .npy file ({error})") from error
    if is_fortran and len(shape) > 1:
        raise refused(path, f"{file.name} is in Fortran order")
    if not shape:
        raise refused(path, f"{file.name} is a single number")
    if dtype.byteorder == ">" or dtype.hasobject:
        raise refused(path, f"{file.name} holds {dtype.str}, not little-endian numbers")
    try:
        dims = tuple(f"dim_{axis}" for axis in range(1, len(shape)))
        variable = Variable(file.stem, shape[1:], dtype.str, dims)
    except SampleError as error:
        raise refused(path, str(error)) from error
    offset = start + np.arange(shape[0], dtype=np.int64) * variable.nbytes
    return ForeignArray(variable, (file,), np.zeros(shape[0], dtype=np.int64), offset)
