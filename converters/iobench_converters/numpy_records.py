"""NumPy: plain ``.npy`` files that ``np.load(..., mmap_mode="r")`` opens without iobench.

Where any variable has less than 64 KiB a sample, a sample is one structured record, aligned, in
``shard-00000.npy``; else every variable has a file of its own, ``shard-00000.<variable>.npy``.
Data begin at a multiple of 64 bytes.

Headers are as ``numpy.lib.format`` describes them: version 1.0 where it can be, as ``np.save`` does
(NVIDIA DALI's reader knows no other, and wants the comma before the closing brace); version 3.0,
whose text is UTF-8 and may be long, where names of fields need it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import OptionError, SampleError, StoreError
from iobench.stores import (
    Encode,
    EncodedStack,
    ExtentStore,
    ExtentTable,
    FieldLayout,
    Manifest,
    ShardFile,
    ShardPlan,
    ShardWriter,
    Store,
    fill_table,
    octets,
    open_file_size,
    row_checksums,
    storage_errors,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.samples import SampleSpec

RECORD_LIMIT_NBYTES: Final = 64 << 10
_PLAIN = re.compile(r"[A-Za-z0-9_]{1,100}")
ALIGNMENT: Final = 64
LENGTH_DIGITS: Final = 20
MAGIC_NBYTES: Final = 8
LENGTH_NBYTES: Final = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x03\x00": 4}
"""By magic string and version, how many bytes hold the length of the text."""
VERSION_1, VERSION_3 = LENGTH_NBYTES


@dataclass(frozen=True, slots=True)
class NumpyFormat:
    """The format ``numpy``; it has no options."""

    name: str = "numpy"
    version: int = 1

    def open(self, path: Path, manifest: Manifest) -> Store:
        """Open a finished store; raise StoreError naming the shard that does not fit."""
        try:
            dtypes = file_dtypes(manifest.spec)
        except SampleError as error:
            raise StoreError(f"{path}: its manifest says what it cannot hold: {error}") from error
        nbytes = np.array([dtype.itemsize for dtype in dtypes], dtype=np.int64)
        offsets: list[NDArray[np.int64]] = []
        for shard in manifest.shards:
            if len(shard.files) != len(dtypes):
                raise StoreError(f"{path}: a shard has {len(shard.files)} of {len(dtypes)} files")
            starts = [
                _data_start(path, file, dtype=dtype, n_samples=shard.n_samples)
                for file, dtype in zip(shard.files, dtypes, strict=True)
            ]
            offsets.append(np.arange(shard.n_samples)[:, None] * nbytes + np.array(starts))
        numbers = range(len(dtypes))
        table = ExtentTable.of_shards(path, manifest.shards, offsets, nbytes, file_numbers=numbers)
        return ExtentStore(path, manifest, table=table, decode=ArrayDecoder(manifest.spec))

    def check_options(self, options: Mapping[str, str]) -> None:
        """Raise OptionError for any."""
        if options:
            raise OptionError(
                f"format numpy has no options, got {sorted(options)[0]!r}; --to zarr has some"
            )

    def encoder(self, spec: SampleSpec, options: Mapping[str, str]) -> Encode:
        """Return what lays samples side by side out as they are in the files."""
        self.check_options(options)
        [dtype, *_] = file_dtypes(spec)

        def encode(rows: Mapping[str, NDArray[Any]]) -> EncodedStack:
            if is_one_record(spec):
                arrays = [fill_table(rows, dtype)]
            else:
                arrays = [octets(rows[name]) for name in spec.names]
            checksums = np.stack([row_checksums(each) for each in arrays], axis=1)
            return EncodedStack([[each.reshape(-1).data] for each in arrays], checksums)

        return encode

    def writer(
        self, path: Path, spec: SampleSpec, plan: ShardPlan, options: Mapping[str, str]
    ) -> NumpyWriter:
        """Return a writer of a shard of the store at ``path``."""
        return NumpyWriter(path, spec, plan)


FORMAT: Final = NumpyFormat()


class NumpyWriter(ShardWriter):
    """Writes the files of one shard; rewrites nothing where as many samples come as planned."""

    def __init__(self, path: Path, spec: SampleSpec, plan: ShardPlan) -> None:
        self._dtypes = file_dtypes(spec)
        names = [f"shard-{plan.number:05d}{suffix}" for suffix in _file_suffixes(spec)]
        super().__init__(path, plan, names)

    def begin(self) -> None:
        """Write the headers, for as many samples as are planned."""
        for file, dtype in zip(self.files, self._dtypes, strict=True):
            file.write(npy_header(dtype, self.plan.n_samples))

    def finish(self) -> None:
        """Write the headers again where others came."""
        if self.n_samples != self.plan.n_samples:
            for file, dtype in zip(self.files, self._dtypes, strict=True):
                file.rewrite_start(npy_header(dtype, self.n_samples))


@dataclass(frozen=True, slots=True)
class ArrayDecoder:
    """Turns the bytes of one sample into its arrays; they are views."""

    spec: SampleSpec

    def __call__(self, raw: Sequence[memoryview]) -> dict[str, NDArray[Any]]:
        """Return the arrays; raise StoreError where the bytes are not those of a sample."""
        dtypes = file_dtypes(self.spec)
        if [len(data) for data in raw] != [dtype.itemsize for dtype in dtypes]:
            raise StoreError("the bytes are not those of one sample")
        if is_one_record(self.spec):
            # NumPy counts no records in nothing: those of samples without values.
            is_empty = not dtypes[0].itemsize
            record = np.zeros(1, dtypes[0]) if is_empty else np.frombuffer(raw[0], dtypes[0])
            return {variable.name: record[variable.name][0, ...] for variable in self.spec}
        return {
            variable.name: np.frombuffer(data, dtype=variable.dtype).reshape(variable.shape)
            for variable, data in zip(self.spec, raw, strict=True)
        }

    def fields(self, raw: Sequence[memoryview]) -> FieldLayout | None:
        """Return where the arrays lie."""
        return FieldLayout.of_views(raw, self(raw), is_tagged=False)


def is_one_record(spec: SampleSpec) -> bool:
    """Return whether a sample is one structured record rather than one file per variable."""
    return any(variable.nbytes < RECORD_LIMIT_NBYTES for variable in spec)


def file_dtypes(spec: SampleSpec) -> list[np.dtype[Any]]:
    """Return for each file of a shard what one sample is in it; raise SampleError if too large."""
    try:
        if is_one_record(spec):
            return [np.dtype([(v.name, v.dtype, v.shape) for v in spec], align=True)]
        return [np.dtype((variable.dtype, variable.shape)) for variable in spec]
    except ValueError as error:  # NumPy counts the bytes of a dtype in 31 bits
        raise SampleError(
            f"a sample of {spec.nbytes} bytes does not fit the format numpy, whose arrays hold "
            "less than 2 GiB each; choose --format zarr"
        ) from error


def _file_suffixes(spec: SampleSpec) -> list[str]:
    if is_one_record(spec):
        return [".npy"]
    names = [name if _PLAIN.fullmatch(name) else "" for name in spec.names]
    folded = [name.casefold() for name in names]  # some file systems do not tell T from t
    return [
        f".{name}.npy" if name and folded.count(name.casefold()) == 1 else f".variable-{number}.npy"
        for number, name in enumerate(names)
    ]


def _data_start(path: Path, file: ShardFile, *, dtype: np.dtype[Any], n_samples: int) -> int:
    """Return where the data of an ``.npy`` file begin, whose header is compared, not believed."""
    name = path / file.name
    nbytes, header = open_file_size(name, expected=file.nbytes), npy_header(dtype, n_samples)
    with storage_errors(name), name.open("rb") as stream:
        result = stream.read(len(header))
    if result != header or len(header) + n_samples * dtype.itemsize != nbytes:
        raise StoreError(
            f"{name}: not an .npy file of {n_samples} samples of {dtype} as iobench writes it; "
            "convert to a new folder"
        )
    return len(header)


def npy_header(dtype: np.dtype[Any], n_samples: int) -> bytes:
    """Return an ``.npy`` header of the same length for any number of samples."""
    descr, shape = np.lib.format.dtype_to_descr(dtype.base), (n_samples, *dtype.shape)
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    room = len(text) + 1 + LENGTH_DIGITS - len(str(n_samples))
    is_plain = text.isascii() and room + ALIGNMENT < 1 << 16
    magic = VERSION_1 if is_plain else VERSION_3
    before = MAGIC_NBYTES + LENGTH_NBYTES[magic]
    nbytes = -(-(before + room) // ALIGNMENT) * ALIGNMENT - before
    length = nbytes.to_bytes(LENGTH_NBYTES[magic], "little")
    return magic + length + text.ljust(nbytes - 1) + b"\n"
