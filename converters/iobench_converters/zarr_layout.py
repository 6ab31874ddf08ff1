"""How the variables of a sample become arrays of a Zarr group: names, dimensions, chunks, options.

A leading dimension ``sample`` is added; a chunk never spans two samples. One array per variable,
or, with ``pack=channels``, variables of one role, dtype and grid stacked along ``channel``.
"""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import OptionError, SampleError
from iobench.stores import ArrayLabels, unique_dims

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iobench.samples import SampleSpec, Variable
    from iobench.stores import Manifest

BLOSC_LZ4: Final = "blosc-lz4"
CHANNEL: Final = "channel"
_CHOICES: Final = {"codec": ("none", BLOSC_LZ4), "pack": ("none", "channels")}
INNER_CHUNK: Final = "inner-chunk"
OPTION_NAMES: Final = (*_CHOICES, INNER_CHUNK)
OPTION_DEFAULTS: Final = {name: choices[0] for name, choices in _CHOICES.items()}
MAX_BLOSC_NBYTES: Final = (1 << 31) - 1 - 16
"""What c-blosc takes at once (``BLOSC_MAX_BUFFERSIZE``)."""
_PLAIN = re.compile(r"[^\W_][\w.-]{0,99}")
MAX_FOLDER_NBYTES: Final = 200
"""Of a folder's name; file systems take 255."""
_TAKEN = re.compile(r"(iobench|zarr)\..*|variable-[0-9]+", re.IGNORECASE)
"""Names beside the arrays' folders (``zarr.json``, the manifest, claims), and our own of arrays."""


@dataclass(frozen=True, slots=True)
class ZarrOptions:
    """The format's options.

    Parameters
    ----------
    codec : {"none", "blosc-lz4"}
        Of each chunk.
    pack : {"none", "channels"}
        Whether variables share an array.
    inner_chunk : mapping of str to int
        Longest chunk along a dimension of the variables; whole dimensions by default.
    """

    codec: str = "none"
    pack: str = "none"
    inner_chunk: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ZarrOptions:
        """Return what ``codec=...``, ``pack=...`` and ``inner-chunk=y=256,x=256`` say.

        Raises
        ------
        OptionError
            For an option or a value that is not known.
        """
        chosen = {name: options.get(name, value) for name, value in OPTION_DEFAULTS.items()}
        wrong = [f"{name}={value}" for name, value in chosen.items() if value not in _CHOICES[name]]
        wrong += sorted(set(options) - {*OPTION_NAMES})
        if wrong:
            raise OptionError(
                f"format zarr: {wrong[0]!r} is no option; there are codec=none|blosc-lz4, "
                "pack=none|channels, inner-chunk=DIM=LENGTH,..."
            )
        return cls(chosen["codec"], chosen["pack"], _lengths(options.get(INNER_CHUNK, "")))


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """One array of the group; shapes are those of one sample.

    Parameters
    ----------
    folder : str
        Its name in the group.
    variables : tuple of Variable
        What it holds: one, or several along the leading axis.
    shape, dims : tuple
        Of the array without the sample dimension. Dimension names are unique in the group: one
        name, one length.
    chunk : tuple of int
        Of an inner chunk.
    """

    folder: str
    variables: tuple[Variable, ...]
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    chunk: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the stored numbers."""
        return np.dtype(self.variables[0].dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of one sample's numbers."""
        return math.prod(self.shape) * self.dtype.itemsize

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
        return math.prod(self.chunk) * self.dtype.itemsize

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """One sample as a row in memory: a field for each variable, one after the other."""
        place_nbytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        return np.dtype(
            {
                "names": [variable.name for variable in self.variables],
                "formats": [(variable.dtype, variable.shape) for variable in self.variables],
                "offsets": [start * place_nbytes for _, start, _ in self.parts()],
                "itemsize": self.nbytes,
            }
        )

    @property
    def labels(self) -> ArrayLabels:
        """Its dimensions as its variables call them, and the names of channels."""
        _, dims = _shape(self.variables)
        names = tuple(variable.name for variable in self.variables)
        if len(names) == 1:
            return ArrayLabels(dims, self.shape, self.variables[0].channels, names)
        return ArrayLabels(dims, self.shape, self.channel_names, names)

    @property
    def channel_names(self) -> list[str]:
        """Names along the channels of an array of several variables."""
        names = []
        for variable, start, stop in self.parts():
            if variable.dims[:1] == (CHANNEL,):
                known = variable.channels or tuple(map(str, range(stop - start)))
                names += [f"{variable.name} {channel}" for channel in known]
            else:
                names.append(variable.name)
        return names

    def boxes(self) -> Iterator[tuple[slice, ...]]:
        """Yield where in the array each chunk of a sample lies, in the order of the index."""
        for place in np.ndindex(*self.grid):
            yield tuple(
                slice(p * c, min((p + 1) * c, n))
                for p, c, n in zip(place, self.chunk, self.shape, strict=True)
            )

    def parts(self) -> Iterator[tuple[Variable, int, int]]:
        """Yield each variable with its first place, and the one after its last, when packed."""
        start = 0
        for variable in self.variables:
            stop = start + _n_channels(variable)
            yield variable, start, stop
            start = stop


def plan_arrays(spec: SampleSpec, options: ZarrOptions) -> tuple[ArrayLayout, ...]:
    """Return the arrays that hold the samples of a spec.

    Raises
    ------
    SampleError
        For a variable without values, or of a dtype that Zarr v3 does not know.
    OptionError
        Where ``inner-chunk`` names a dimension that no variable has.
    """
    for variable in spec:
        if not variable.nbytes:
            raise SampleError(
                f"variable {variable.name!r} of shape {variable.shape} has no values, for which "
                "Zarr has no chunks; choose --format numpy"
            )
        if np.dtype(variable.dtype).itemsize // (1 + (variable.dtype[1] == "c")) > 8:
            raise SampleError(
                f"variable {variable.name!r}: Zarr has no dtype {variable.dtype}; choose --format "
                "numpy"
            )
    groups = _packed(spec) if options.pack == "channels" else [(v,) for v in spec]
    shapes = [_shape(group) for group in groups]
    known = {name for _, dims in shapes for name in dims}
    if unknown := sorted(set(options.inner_chunk) - known):
        raise OptionError(
            f"format zarr: inner-chunk={unknown[0]}=...: no variable has that dimension, there "
            f"are {', '.join(sorted(known))}"
        )
    arrays = []
    unique = unique_dims(shapes)
    for folder, group, (shape, dims), names in zip(
        _folders(groups), groups, shapes, unique, strict=True
    ):
        chunk = tuple(
            min(n, options.inner_chunk.get(name, n)) for n, name in zip(shape, dims, strict=True)
        )
        array = ArrayLayout(folder, group, shape, names, chunk)
        if options.codec == BLOSC_LZ4 and array.chunk_nbytes > MAX_BLOSC_NBYTES:
            raise OptionError(
                f"format zarr: a chunk of {array.chunk_nbytes} bytes of {folder} is more than "
                "Blosc takes; choose codec=none or a smaller inner-chunk"
            )
        arrays.append(array)
    return tuple(arrays)


def is_free(name: str, arrays: Sequence[ArrayLayout]) -> bool:
    """Return whether an array beside these can be called so, on any file system."""
    folders = {array.folder.casefold() for array in arrays}
    plain = _PLAIN.fullmatch(name) and not _TAKEN.fullmatch(name)
    return bool(plain) and name.casefold() not in folders


def _lengths(text: str) -> dict[str, int]:
    lengths: dict[str, int] = {}
    for part in text.split(",") if text else ():
        name, _, length = part.partition("=")
        if not name or name in lengths or not re.fullmatch(r"[1-9][0-9]{0,17}", length):
            raise OptionError(
                f"format zarr: inner-chunk={text}: expected dimensions and lengths from 1, as "
                "inner-chunk=y=256,x=256"
            )
        lengths[name] = int(length)
    return lengths


def _n_channels(variable: Variable) -> int:
    return variable.shape[0] if variable.dims[:1] == (CHANNEL,) else 1


def _grid_of(variable: Variable) -> tuple[tuple[int, ...], tuple[str, ...]]:
    skip = int(variable.dims[:1] == (CHANNEL,))
    return variable.shape[skip:], variable.dims[skip:]


def _packed(spec: SampleSpec) -> list[tuple[Variable, ...]]:
    """Return the variables in groups that may share an array, in order of their first ones."""
    groups: dict[Any, list[Variable]] = {}
    for variable in spec:
        key = (variable.role, variable.dtype, variable.packed, *_grid_of(variable))
        # A second dimension of that name would be two in the array.
        alone = variable.name if CHANNEL in _grid_of(variable)[1] else None
        groups.setdefault((alone, key), []).append(variable)
    return [tuple(group) for group in groups.values()]


def _shape(group: Sequence[Variable]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    if len(group) == 1:
        return group[0].shape, group[0].dims
    shape, dims = _grid_of(group[0])
    return (sum(map(_n_channels, group)), *shape), (CHANNEL, *dims)


def _is_usable(name: str) -> bool:
    """Tell whether a name can be a node's and a folder's, the same on every file system."""
    is_plain = bool(_PLAIN.fullmatch(name)) and not _TAKEN.fullmatch(name)
    is_same = unicodedata.normalize("NFC", name) == name  # some file systems compose letters
    return is_plain and is_same and len(name.encode()) <= MAX_FOLDER_NBYTES


def arrays_of(manifest: Manifest, options: ZarrOptions) -> tuple[ArrayLayout, ...]:
    """Return the arrays of a store by the names that its shards have.

    Formerly those of variables with other letters than ASCII's were numbered.

    Raises
    ------
    SampleError, OptionError
        As `plan_arrays`.
    """
    arrays = plan_arrays(manifest.spec, options)
    files = manifest.shards[0].files if manifest.shards else ()
    if len(files) != len(arrays):
        return arrays
    numbered = [_numbered(number) for number in range(len(arrays))]
    held = [file.name.partition("/")[0] for file in files]
    return tuple(
        replace(array, folder=name) if own == name else array
        for array, own, name in zip(arrays, held, numbered, strict=True)
    )


def _numbered(number: int) -> str:
    return f"variable-{number}"


def _folders(groups: Sequence[Sequence[Variable]]) -> list[str]:
    """Return the arrays' names: of their variables where they can be names of nodes and folders."""
    wanted = []
    n_packed: dict[str, int] = {}
    for group in groups:
        if len(group) == 1:
            wanted.append(group[0].name if _is_usable(group[0].name) else "")
        else:
            role = f"{group[0].role}s"
            n_packed[role] = n_packed.get(role, 0) + 1
            wanted.append(role if n_packed[role] == 1 else f"{role}-{n_packed[role]}")
    folded = [name.casefold() for name in wanted]  # some file systems do not tell T from t
    return [
        name if name and folded.count(name.casefold()) == 1 else _numbered(number)
        for number, name in enumerate(wanted)
    ]
