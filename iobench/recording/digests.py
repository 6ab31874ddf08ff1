"""Digests of the batches that were delivered: one XXH3 of 128 bits each, their files, their table.

A digest is of the names, dtypes, shapes and bytes of a batch in tree order: names of a dict sorted,
items of lists and tuples as they come. Whose framework holds an array, its strides and byte order
make no difference; what a mask covers is no value. XXH3 is fast, and no proof against who wants two
batches to look alike.

One file per process in ``digests/`` of the run directory, little-endian: a header of 64 bytes, then
rows, each appended by one write, so that what a worker made before it was killed is there. Files of
version 1 have a row for each sample, whose digests can be compared with their like alone.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import logging
import os
import struct
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.errors import MissingExtraError, ProfileError
from iobench.json_files import LARGEST_NBYTES, read_small_file
from iobench.recording.clocks import SYSTEM_CLOCK
from iobench.recording.this_process import host_name, name_in_files

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

MAGIC: Final = b"IOBDGSTS"
HEADER: Final = struct.Struct("<8s2I2q32x")
"""Magic, version, bytes of a row, pid, rank."""
ROW: Final = struct.Struct("<4i16s")
ROWS: Final = {
    1: np.dtype(
        [
            ("sample", "<i8"), ("batch", "<i4"), ("epoch", "<i4"), ("position", "<i4"),
            ("n_rows", "<i4"), ("high", ">u8"), ("low", ">u8"), ("flags", "<u4"), ("check", "<u4"),
        ]
    ),
    2: np.dtype(
        [
            ("batch", "<i4"), ("epoch", "<i4"), ("n_samples", "<i4"), ("known", "<i4"),
            ("high", ">u8"), ("low", ">u8"),
        ]
    ),
}  # fmt: skip
"""By version of the file."""
TABLE_DTYPE: Final = np.dtype(
    [
        ("batch", "<i4"), ("position", "<i4"), ("n_rows", "<i4"), ("n_samples", "<i4"),
        ("known", "?"), ("high", "<u8"), ("low", "<u8"), ("rank", "<i4"),
    ]
)  # fmt: skip
"""A batch, or of version 1 a sample: at a position of so many rows of its batch."""
BATCHES, SAMPLES = "batch", "sample"


class UndigestibleError(TypeError):
    """A batch holds something whose value nobody can tell from outside."""


@functools.cache
def load_xxhash() -> Any:
    """Return the module that hashes; an extra, since nothing else of a recording needs it."""
    try:
        return importlib.import_module("xxhash")
    except ImportError as error:
        raise MissingExtraError(
            "digests of samples need xxhash: pip install 'iobench[digest]'"
        ) from error


def batch_digest(batch: Any) -> bytes:
    """Return the 16 bytes that stand for a batch."""
    state = load_xxhash().xxh3_128()
    try:
        _add(batch, state.update)
    except RecursionError as error:
        raise UndigestibleError("a batch holds itself, or too much inside each other") from error
    return bytes(state.digest())


def _add(value: Any, update: Any) -> None:
    """Add what stands for a value: a letter, counts, then its parts."""
    masked = vars(np).get("ma")  # not loaded, there is none: to load it takes 50 ms
    if value is None:
        update(b"n")
    elif isinstance(value, str | bytes | bytearray):
        text = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(value)
        update(b"%b%d:%b" % (b"s" if isinstance(value, str) else b"b", len(text), text))
    elif isinstance(value, Mapping):
        update(b"m%d:" % len(value))
        for name in sorted(value, key=lambda name: (type(name).__name__, str(name))):
            _add(name, update)
            _add(value[name], update)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _add({each.name: getattr(value, each.name) for each in dataclasses.fields(value)}, update)
    elif isinstance(value, list | tuple):
        update(b"l%d:" % len(value))
        for item in value:
            _add(item, update)
    elif masked is not None and isinstance(value, masked.MaskedArray):
        mask = masked.getmaskarray(value)
        _add([mask, np.where(mask, np.zeros((), value.dtype), value.data)], update)
    else:
        _add_array(*_as_array(value), update)


def _add_array(array: NDArray[Any], name: str, update: Any) -> None:
    if array.dtype.kind in "USTO":  # how wide texts are held is no value
        return _add(array.tolist(), update)
    if array.dtype.hasobject:
        raise UndigestibleError(f"a batch holds an array of {array.dtype}, with objects inside")
    dtype = array.dtype.newbyteorder("<")
    name = name or (str(dtype.descr) if dtype.names else dtype.name)
    update(f"a{name}{array.shape}".encode())
    update(np.ascontiguousarray(array, dtype=dtype).reshape(-1).view(np.uint8))
    return None


def _as_array(value: Any) -> tuple[NDArray[Any], str]:
    """Return a value as an array, and what its bits are where NumPy has no name for that."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_torch(torch, value)
    if isinstance(value, bool | int | float | complex | np.generic | np.ndarray) or hasattr(
        value, "__array__"
    ):
        try:
            array = np.asarray(value)
        except (TypeError, ValueError, RuntimeError, LookupError, AttributeError) as error:
            raise UndigestibleError(f"a {type(value).__qualname__}: {error}") from error
        if array.dtype.kind != "O" or isinstance(value, np.ndarray):
            return array, ""
    kind = type(value)
    raise UndigestibleError(
        f"a batch holds a {kind.__module__}.{kind.__qualname__}, whose value iobench cannot read; "
        "expected arrays, tensors, numbers, texts, and dicts, lists and tuples of these"
    )


def _of_torch(torch: Any, value: Any) -> tuple[NDArray[Any], str]:
    name, bits = str(value.dtype).removeprefix("torch."), {1: torch.uint8, 2: torch.int16}
    try:
        if value.layout is not torch.strided or value.is_nested or value.is_quantized:
            raise TypeError("it is not dense")
        plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
        if hasattr(np, name) or name == "bool":
            return plain.numpy(), ""
        return plain.view(bits[plain.element_size()]).numpy(), name
    except (RuntimeError, TypeError, KeyError) as error:  # also one of shape alone
        raise UndigestibleError(
            f"a batch holds a tensor of {name}, {value.layout}: {error}"
        ) from error


class DigestLog:
    """Notes digests of one process's batches; usable from several threads, and in its forks."""

    def __init__(self, run: Path, *, rank: int = 0) -> None:
        load_xxhash()
        self._folder, self._rank = run / "digests", rank
        self._lock = threading.Lock()
        self._fd = self._pid = -1
        self._failed = self._warned = False

    def add(self, batch: int, epoch: int, value: Any, n_samples: int) -> None:
        """Note a batch of so many samples."""
        digest = b""
        try:
            digest = batch_digest(value)
        except UndigestibleError as error:
            if not self._warned:
                self._warned = True
                logger.warning("digests: %s", error)
        row = ROW.pack(batch, epoch, n_samples, bool(digest), digest)
        with self._lock:
            if self._failed:
                return
            try:
                if self._pid != os.getpid():
                    self._open()
                if os.write(self._fd, row) < len(row):
                    raise OSError("no space left")
            except OSError as error:
                self._failed = True
                logger.warning(
                    "%s: no more digests are written (%s); the run continues",
                    self._folder, error.strerror or error,
                )  # fmt: skip

    def _open(self) -> None:
        """Begin a file of this process; a fork's is its own, and its parent's stays open there."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"{name_in_files(host_name())}-{os.getpid()}-{SYSTEM_CLOCK.wall_ns()}.bin"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self._folder / name, flags, 0o666)
        if self._fd >= 0:
            os.close(self._fd)
        os.write(fd, HEADER.pack(MAGIC, max(ROWS), ROW.size, os.getpid(), self._rank))
        self._fd, self._pid = fd, os.getpid()

    def close(self) -> None:
        """Close the file. Idempotent; more to note opens another one."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = self._pid = -1


class DigestTable(msgspec.Struct, frozen=True, eq=False):
    """The digests of a run's batches, of version 1 of its samples, in no order."""

    rows: NDArray[Any]  # TABLE_DTYPE
    scheme: str  # what a digest was made of: "batch", or "sample" in earlier versions
    n_damaged: int  # files that cannot be read, and rows that were cut off

    def of_rank(self, rank: int) -> DigestTable:
        """Return those of one training process; nobody knows whose the damaged ones are."""
        return DigestTable(self.rows[self.rows["rank"] == rank], self.scheme, self.n_damaged)


def read_digests(run: Path) -> DigestTable | None:
    """Return the digests in a run directory; None where no process wrote any."""
    paths = sorted((run / "digests").glob("*.bin"))
    tables, n_damaged, scheme = [np.zeros(0, TABLE_DTYPE)], 0, BATCHES
    for path in paths:
        try:
            data = read_small_file(path, limit=LARGEST_NBYTES)
        except OSError:
            data = b""
        if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
            n_damaged += 1
            continue
        _, version, nbytes, _, rank = HEADER.unpack_from(data)
        if version not in ROWS or nbytes != ROWS[version].itemsize:
            raise ProfileError(
                f"{path}: digests of version {version}, expected {max(ROWS)} or lower; use the "
                "iobench that wrote them"
            )
        n_rows, cut = divmod(len(data) - HEADER.size, nbytes)
        n_damaged += cut > 0
        rows = np.frombuffer(data, ROWS[version], n_rows, HEADER.size)
        table = np.zeros(n_rows, TABLE_DTYPE)
        table["n_rows"] = table["n_samples"] = 1
        for name in set(TABLE_DTYPE.names or ()) & set(rows.dtype.names or ()):
            table[name] = rows[name]
        if version == 1:
            scheme, table["known"] = SAMPLES, rows["flags"] == 0
        table["rank"] = rank if abs(rank) < 1 << 31 else -1
        written = (table["n_samples"] > 0) & (table["n_rows"] > 0)  # else reserved alone
        n_damaged += int((~written).sum())
        tables.append(table[written])
    return DigestTable(np.concatenate(tables), scheme, n_damaged) if paths else None
