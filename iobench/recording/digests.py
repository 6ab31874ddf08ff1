"""Digests of the samples that were delivered: who writes them, their files, and their table.

One file per process in ``digests/`` of the run directory, little-endian::

    0      header, 64 bytes: magic, version, bytes of a record, pid, rank
    64     records of 48 bytes, appended batch by batch in one write each

Nothing is buffered, so that what a worker made before it was killed is there. A record that was
cut off is known by its check.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import struct
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import ProfileError
from iobench.frozen import frozen
from iobench.json_files import LARGEST_NBYTES, read_small_file
from iobench.recording.canonical import (
    UndigestibleError,
    batch_digests,
    load_xxhash,
    sample_digest,
)
from iobench.recording.this_process import host_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

MAGIC: Final = b"IOBDGSTS"
VERSION: Final = 1
HEADER: Final = struct.Struct("<8s2I2q32x")
NO_DIGEST: Final = bytes(16)
UNDIGESTIBLE: Final = 1
"""Flag of a sample that holds something whose value cannot be told."""
DIGEST_DTYPE: Final = np.dtype(
    [
        ("sample", "<i8"),
        ("batch", "<i4"),
        ("epoch", "<i4"),
        ("position", "<i4"),
        ("n_samples", "<i4"),
        ("high", ">u8"),
        ("low", ">u8"),
        ("flags", "<u4"),
        ("check", "<u4"),
    ]
)
"""One sample: its number (-1 unknown), its place in a batch of so many, and 128 bits as XXH3's
canonical form has them."""
RECORD: Final = struct.Struct("<q4i16sI4x")
TABLE_DTYPE: Final = np.dtype([*DIGEST_DTYPE.descr, ("rank", "<i4")])
N_WORDS: Final = DIGEST_DTYPE.itemsize // 4
# Odd, so that no change of a single word goes unseen; no power of two, so that none is shifted out.
FACTORS: Final = np.array([2 * (index * 40503 + 12345) + 1 for index in range(N_WORDS - 1)], "<u4")
START: Final = np.uint32(0x9E3779B9)
"""What makes a record of zeros, as a file that grew but was not written has, a wrong one."""


def row_checks(table: NDArray[Any]) -> NDArray[np.uint32]:
    """Return what tells of each row whether it is as it was written."""
    words = table.view("<u4").reshape(len(table), N_WORDS)[:, :-1]
    found: NDArray[np.uint32] = (words * FACTORS).sum(axis=1, dtype=np.uint32) + START
    return found


class DigestLog:
    """Notes digests of one process's batches; usable from several threads, and in its forks.

    What cannot be written is one warning: the training goes on, and the samples count as unknown.

    Parameters
    ----------
    run : Path
        The run directory.
    rank : int
        Training process it works for.

    Raises
    ------
    MissingExtraError
        If xxhash is not installed.
    """

    def __init__(self, run: Path, *, rank: int = 0) -> None:
        load_xxhash()
        self._folder = run / "digests"
        self._rank = rank
        self._lock = threading.Lock()
        self._fd = self._pid = -1
        self._failed = self._told = False

    def add_samples(
        self, batch: int, epoch: int, numbers: Sequence[Any] | None, samples: Sequence[Any]
    ) -> None:
        """Note samples that are no batch yet.

        Parameters
        ----------
        numbers : sequence, optional
            Of the samples in their dataset; what is no whole number is unknown.
        """
        found: list[bytes | None] = []
        for sample in samples:
            try:
                found.append(sample_digest(sample))
            except UndigestibleError as error:
                self._tell(error)
                found.append(None)
        self._add(batch, epoch, numbers, found)

    def add_batch(
        self, batch: int, epoch: int, numbers: Sequence[Any] | None, value: Any, n_samples: int
    ) -> None:
        """Note the samples of a batch: rows of its arrays; parameters as of `add_samples`."""
        try:
            found: list[bytes | None] = [*batch_digests(value, n_samples)]
        except UndigestibleError as error:
            self._tell(error)
            found = [None] * n_samples
        self._add(batch, epoch, numbers, found)

    def _add(
        self,
        batch: int,
        epoch: int,
        numbers: Sequence[Any] | None,
        found: Sequence[bytes | None],
    ) -> None:
        n_samples = len(found)
        data = bytearray(n_samples * RECORD.size)
        for place, number in enumerate(_numbers(numbers, n_samples)):
            digest = found[place]
            flags = UNDIGESTIBLE if digest is None else 0
            RECORD.pack_into(
                data, place * RECORD.size,
                number, batch, epoch, place, n_samples, digest or NO_DIGEST, flags,
            )  # fmt: skip
        table = np.frombuffer(data, DIGEST_DTYPE)
        table["check"] = row_checks(table)
        self._write(data)

    def _write(self, data: bytes | bytearray) -> None:
        with self._lock:
            if self._failed:
                return
            try:
                if self._pid != os.getpid():
                    self._open()
                left = memoryview(data)
                while left:
                    left = left[os.write(self._fd, left) :]
            except OSError as error:
                self._failed = True
                logger.warning(
                    "%s: no more digests are written (%s); the run continues",
                    self._folder, error.strerror or error,
                )  # fmt: skip

    def _open(self) -> None:
        """Begin a file of this process; a fork's is its own, and its parent's stays open there."""
        self._folder.mkdir(parents=True, exist_ok=True)
        host = re.sub(r"[^A-Za-z0-9._-]", "_", host_name())
        how = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        for number in itertools.count():
            path = self._folder / f"{host}-{os.getpid()}-{number}.bin"
            try:
                fd = os.open(path, how, 0o666)
            except FileExistsError:
                continue
            break
        header = HEADER.pack(MAGIC, VERSION, DIGEST_DTYPE.itemsize, os.getpid(), self._rank)
        if self._fd >= 0:
            os.close(self._fd)
        os.write(fd, header)
        self._fd, self._pid = fd, os.getpid()

    def _tell(self, error: UndigestibleError) -> None:
        if not self._told:
            self._told = True
            logger.warning("digests: %s", error)

    def close(self) -> None:
        """Close the file. Idempotent; more to note opens another one."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = self._pid = -1


def _numbers(numbers: Sequence[Any] | None, n_samples: int) -> list[int]:
    if numbers is None or len(numbers) != n_samples:
        return [-1] * n_samples
    return [
        int(n) if isinstance(n, (int, np.integer)) and 0 <= n < 1 << 63 else -1 for n in numbers
    ]


@frozen(eq=False)
class DigestTable:
    """The digests of a run, in no order.

    Parameters
    ----------
    rows : ndarray of TABLE_DTYPE
        `DIGEST_DTYPE` and the rank.
    n_damaged : int
        Records that were cut off or cannot be right, and files that cannot be read at all.
    """

    rows: NDArray[Any]
    n_damaged: int

    def of_rank(self, rank: int) -> DigestTable:
        """Return those of one training process; nobody knows whose the damaged ones are."""
        return DigestTable(self.rows[self.rows["rank"] == rank], self.n_damaged)


def read_digests(run: Path) -> DigestTable | None:
    """Return the digests in a run directory; None where no process wrote any.

    Raises
    ------
    ProfileError
        If a file is of another version.
    """
    tables, n_damaged = [], 0
    paths = sorted((run / "digests").glob("*.bin"))
    for path in paths:
        try:
            data = read_small_file(path, limit=LARGEST_NBYTES)
        except OSError:
            n_damaged += 1
            continue
        if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
            n_damaged += 1
            continue
        _, version, nbytes, _, rank = HEADER.unpack_from(data)
        if (version, nbytes) != (VERSION, DIGEST_DTYPE.itemsize):
            raise ProfileError(
                f"{path}: digests of version {version}, expected {VERSION}; use the iobench that "
                "wrote them"
            )
        n_rows, cut = divmod(len(data) - HEADER.size, nbytes)
        rows = np.frombuffer(data, DIGEST_DTYPE, n_rows, HEADER.size)
        right = row_checks(rows) == rows["check"]
        n_damaged += int((~right).sum()) + (cut > 0)
        table = np.zeros(int(right.sum()), TABLE_DTYPE)
        for name in DIGEST_DTYPE.names or ():
            table[name] = rows[name][right]
        table["rank"] = rank if abs(rank) < 1 << 31 else -1
        tables.append(table)
    if not paths:
        return None
    rows = np.concatenate(tables) if tables else np.zeros(0, TABLE_DTYPE)
    return DigestTable(rows, n_damaged)
