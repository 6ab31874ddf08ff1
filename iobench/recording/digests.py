"""Digests of the batches that were delivered: one XXH3 of 128 bits each, their files, their table.

A digest is of the names, dtypes, shapes and bytes of a batch in tree order: names of a dict sorted,
items of lists and tuples as they come. Whose framework holds an array, its strides and byte order
make no difference; what a mask covers is no value.

One file per process in ``digests/`` of the run directory: a header, then rows, each appended by one
write.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import struct
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from iobench.errors import ProfileError, import_extra
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
VERSION: Final = 2
ROW: Final = struct.Struct("<4i16s")
"""Batch, epoch, samples, whether the digest is known, and the digest."""


class UndigestibleError(TypeError):
    """A batch holds something whose value nobody can tell from outside."""


@functools.cache
def load_xxhash() -> Any:
    """Return the module that hashes; an extra, since nothing else of a recording needs it."""
    return import_extra("xxhash", "digests need xxhash", extra="digest")


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
    torch, kind = sys.modules.get("torch"), f"{type(value).__module__}.{type(value).__qualname__}"
    try:
        if torch is not None and isinstance(value, torch.Tensor):
            plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
            name = str(value.dtype).removeprefix("torch.")
            if hasattr(np, name) or name == "bool":
                return plain.numpy(), ""
            bits = {1: torch.uint8, 2: torch.int16}[plain.element_size()]
            return plain.view(bits).numpy(), name
        if isinstance(value, bool | int | float | complex) or hasattr(value, "__array__"):
            array = np.asarray(value)
            if array.dtype.kind != "O" or isinstance(value, np.ndarray):
                return array, ""
    except (TypeError, ValueError, RuntimeError, LookupError, AttributeError) as error:
        raise UndigestibleError(f"a batch holds a {kind}: {error}") from error
    raise UndigestibleError(
        f"a batch holds a {kind}, whose value iobench cannot read; expected arrays, tensors, "
        "numbers, texts, and dicts, lists and tuples of these"
    )


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
                if os.write(self._opened(), row) < len(row):
                    raise OSError("no space left")
            except OSError as error:
                self._failed = True
                logger.warning("%s: no more digests are written (%s)", self._folder, error)

    def _opened(self) -> int:
        """Return the file of this process; a fork begins its own."""
        if self._pid != os.getpid():
            self._folder.mkdir(parents=True, exist_ok=True)
            name = f"{name_in_files(host_name())}-{os.getpid()}-{SYSTEM_CLOCK.wall_ns()}.bin"
            self._fd = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            self._pid = os.getpid()
            os.write(self._fd, HEADER.pack(MAGIC, VERSION, ROW.size, self._pid, self._rank))
        return self._fd

    def close(self) -> None:
        """Close the file. Idempotent; more to note opens another one."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = self._pid = -1


class BatchDigest(NamedTuple):
    """A batch that a training process's loader made; the digest is None where it is not known."""

    rank: int
    batch: int
    n_samples: int
    digest: int | None


def read_digests(run: Path) -> tuple[BatchDigest, ...] | None:
    """Return the digests in a run directory; None where no process wrote any."""
    paths = sorted((run / "digests").glob("*.bin"))
    rows = list[BatchDigest]()
    for path in paths:
        try:
            data = read_small_file(path, limit=LARGEST_NBYTES)
        except OSError:
            data = b""
        if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
            continue  # its batches have no digest
        _, version, nbytes, _, rank = HEADER.unpack_from(data)
        if (version, nbytes) != (VERSION, ROW.size):
            raise ProfileError(
                f"{path}: digests of version {version}, expected {VERSION}; use the iobench that "
                "wrote them"
            )
        whole = data[HEADER.size : len(data) - (len(data) - HEADER.size) % nbytes]
        rows += [
            BatchDigest(rank, batch, n_samples, int.from_bytes(digest) if known else None)
            for batch, _, n_samples, known, digest in ROW.iter_unpack(whole)
        ]
    return tuple(rows) if paths else None
