"""How the variables of a sample become arrays of a Zarr group: names, dimensions, chunks, options.

A leading dimension ``sample`` is added; a chunk spans one sample, or ``chunk-samples``. One array
per variable.
"""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import OptionError, SampleError, StoreError
from iobench.stores import (
    MOST_NBYTES,
    NO_CODECS,
    CodecChain,
    is_local,
    parse_codecs,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from iobench.samples import SampleSpec, Variable

CODEC: Final = "codec"
INNER_CHUNK: Final = "inner-chunk"
CHUNK_SAMPLES: Final = "chunk-samples"
OPTION_NAMES: Final = (CODEC, INNER_CHUNK, CHUNK_SAMPLES)
OPTION_DEFAULTS: Final = {CODEC: "none", CHUNK_SAMPLES: "1"}
_WHOLE = re.compile(r"[1-9][0-9]{0,17}")
MAX_FOLDER_NBYTES: Final = 200
"""Of a folder's name; file systems take 255."""
_TAKEN = re.compile(r"(iobench|zarr)\..*|variable-[0-9]+|\..*|__.*", re.IGNORECASE)
"""Names beside the arrays' folders (``zarr.json``, the manifest, claims), our own of arrays, hidden
ones, and those that Zarr reserves."""


@dataclass(frozen=True, slots=True)
class ZarrOptions:
    """The format's options."""

    codecs: CodecChain = NO_CODECS  # of each chunk
    # longest chunk along a dimension of the variables; whole dimensions by default
    inner_chunk: Mapping[str, int] = field(default_factory=dict)
    chunk_samples: int = 1

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ZarrOptions:
        """Return what ``codec=...``, ``inner-chunk=y=256,x=256``, ``chunk-samples=8`` say."""
        if unknown := sorted(set(options) - {*OPTION_NAMES}):
            raise OptionError(
                f"format zarr: {unknown[0]!r} is no option; there are codec=NAME:PARAMETER=VALUE,"
                "..., inner-chunk=DIM=LENGTH,..., chunk-samples=N"
            )
        number = options.get(CHUNK_SAMPLES, "1")
        if not _WHOLE.fullmatch(number):
            raise OptionError(f"format zarr: chunk-samples={number}: expected a number from 1")
        codecs = parse_codecs(options.get(CODEC, "none"))
        return cls(codecs, _lengths(options.get(INNER_CHUNK, "")), int(number))


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """One array of the group; shapes are those of one sample."""

    folder: str  # its name in the group
    variable: Variable  # what it holds
    chunk: tuple[int, ...]  # of an inner chunk
    n_samples: int = 1  # of a chunk
    codecs: CodecChain = NO_CODECS

    @property
    def is_encoded(self) -> bool:
        """Whether each chunk is an extent; else all of a sample are one."""
        return bool(self.codecs.codecs) or self.n_samples > 1

    @property
    def n_extents(self) -> int:
        """Extents of a sample."""
        return self.n_chunks if self.is_encoded else 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array without the dimensions of samples."""
        return self.variable.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the stored numbers."""
        return np.dtype(self.variable.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of one sample's numbers."""
        return self.variable.nbytes

    @property
    def grid(self) -> tuple[int, ...]:
        """Chunks of one sample along each dimension."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunk, strict=True))

    @property
    def n_chunks(self) -> int:
        """Chunks of one sample."""
        return math.prod(self.grid)

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of the numbers of a chunk; those at the edge are stored in full."""
        return self.n_samples * math.prod(self.chunk) * self.dtype.itemsize

    def boxes(self) -> Iterator[tuple[slice, ...]]:
        """Yield where in the array each chunk of a sample lies, in the order of the index."""
        for place in np.ndindex(*self.grid):
            yield tuple(
                slice(p * c, min((p + 1) * c, n))
                for p, c, n in zip(place, self.chunk, self.shape, strict=True)
            )


def plan_arrays(spec: SampleSpec, options: ZarrOptions) -> tuple[ArrayLayout, ...]:
    """Return the arrays that hold the samples of a spec."""
    for variable in spec:
        if not variable.nbytes:
            raise SampleError(
                f"variable {variable.name!r} of shape {variable.shape} has no values, for which "
                "Zarr has no chunks; choose the format numpy"
            )
        if np.dtype(variable.dtype).itemsize // (1 + (variable.dtype[1] == "c")) > 8:
            raise SampleError(
                f"variable {variable.name!r}: Zarr has no dtype {variable.dtype}; choose --format "
                "numpy"
            )
    known = {name for variable in spec for name in variable.dims}
    if unknown := sorted(set(options.inner_chunk) - known):
        raise OptionError(
            f"format zarr: inner-chunk={unknown[0]}=...: no variable has that dimension, there "
            f"are {', '.join(sorted(known))}"
        )
    arrays = []
    for folder, variable in zip(_folders(spec), spec, strict=True):
        chunk = tuple(
            min(length, options.inner_chunk.get(name, length))
            for length, name in zip(variable.shape, variable.dims, strict=True)
        )
        array = ArrayLayout(folder, variable, chunk, options.chunk_samples, options.codecs)
        if options.codecs.codecs and array.chunk_nbytes > MOST_NBYTES:
            raise OptionError(
                f"format zarr: a chunk of {array.chunk_nbytes} bytes of {folder} is more than "
                "codecs take; choose codec=none, or a smaller inner-chunk or chunk-samples"
            )
        if not options.codecs.fits(array.chunk_nbytes, array.dtype.itemsize):
            raise OptionError(
                f"format zarr: a chunk of {folder} has {array.chunk_nbytes} bytes, which shuffle's "
                "elementsize does not divide; leave elementsize out"
            )
        arrays.append(array)
    return tuple(arrays)


def is_free(name: str, arrays: Sequence[ArrayLayout]) -> bool:
    """Return whether an array beside these can be called so, on any file system."""
    folders = {array.folder.casefold() for array in arrays}
    return _is_usable(name) and name.casefold() not in folders


def _lengths(text: str) -> dict[str, int]:
    lengths: dict[str, int] = {}
    for part in text.split(",") if text else ():
        name, _, length = part.partition("=")
        if not name or name in lengths or not _WHOLE.fullmatch(length):
            raise OptionError(
                f"format zarr: inner-chunk={text}: expected dimensions and lengths from 1, as "
                "inner-chunk=y=256,x=256"
            )
        lengths[name] = int(length)
    return lengths


def _is_usable(name: str) -> bool:
    """Tell whether a name can be a node's and a folder's, the same on every file system."""
    is_plain = name.isprintable() and name.strip() == name and not _TAKEN.fullmatch(name)
    is_part = bool(name) and not any(part in name for part in ("/", "\\", "::"))
    is_same = unicodedata.normalize("NFC", name) == name  # some file systems compose letters
    return is_plain and is_part and is_same and len(name.encode()) <= MAX_FOLDER_NBYTES


def renamed_variables(spec: SampleSpec) -> dict[str, str]:
    """Return the array of each variable whose name is none that an array can have."""
    pairs = zip(spec.names, _folders(spec), strict=True)
    return {name: folder for name, folder in pairs if name != folder}


def check_folders(path: Path, arrays: Sequence[ArrayLayout]) -> None:
    """Raise StoreError where the file system has one folder for names that differ by case."""
    folders: dict[str, str] = {}
    for array in arrays:
        other = folders.setdefault(array.folder.casefold(), array.folder)
        if other == array.folder or not is_local(path):
            continue
        if (path / other).samefile(path / array.folder):
            raise StoreError(
                f"{path}: its file system has one folder for {other!r} and {array.folder!r}; "
                "convert to one that tells them apart, or each by itself with --variables"
            )


def _folders(spec: SampleSpec) -> list[str]:
    """Return the arrays' names: of their variables where they can be names of nodes and folders."""
    return [
        name if _is_usable(name) else f"variable-{number}" for number, name in enumerate(spec.names)
    ]
