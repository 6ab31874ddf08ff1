"""What a probe of storage found: figures of each way of reading, and by whom they were served."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
from msgspec.structs import replace

from iobench.errors import StorageError
from iobench.json_files import read_fields

if TYPE_CHECKING:
    from iobench.storage.file_systems import FileSystem

VERSION: Final = 1

DIRECT: Final = "direct"
BUFFERED: Final = "buffered"
AGAIN: Final = "again"
"""Buffered, of what was just read: the page cache, if it keeps it."""

DEVICE: Final = "device"
SERVER: Final = "server"
CACHE: Final = "page cache"
OWN_CACHE: Final = "the file system's cache"
MEMORY: Final = "memory"
STORAGE: Final = "storage"
"""A device or a server: more is not known."""
MIXED: Final = "mixed"
UNKNOWN: Final = "unknown"

NEARLY_ALL, HARDLY_ANY = 0.9, 0.1
"""Shares that count as all and none: a bandwidth is told to a tenth."""


class ReadFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Reads in one way, by so many threads.

    Parameters
    ----------
    way : {"direct", "buffered", "again"}
        With ``O_DIRECT``; through the page cache; so of what was just read.
    n_reads, nbytes, wall_ns : int
        Reads that ended, what they returned, and the time from the first to the last.
    latency_ns : tuple of int
        Median, 90th and 99th percentile and maximum of a read; empty without reads.
    resident_fraction : float or None
        Share of a sample of the ranges that the page cache held before.
    device_nbytes : int or None
        What storage delivered meanwhile, by ``read_bytes`` of ``/proc/self/io``; with read-ahead
        more than was asked for.
    served_by : str
        By this evidence: ``"device"``, ``"server"`` (or its cache), ``"storage"`` (one of these),
        ``"page cache"``, ``"the file system's cache"``, ``"memory"``, ``"mixed"`` or ``"unknown"``.
    refused : str
        Why there is no figure, else ``""``.
    turns_bytes_per_s : tuple of float
        Of each turn where it was read in several, by all readers at once.
    """

    way: str
    threads: int
    n_reads: int = 0
    nbytes: int = 0
    wall_ns: int = 0
    latency_ns: tuple[int, ...] = ()
    resident_fraction: float | None = None
    device_nbytes: int | None = None
    served_by: str = UNKNOWN
    refused: str = ""
    turns_bytes_per_s: tuple[float, ...] = ()

    @property
    def bytes_per_s(self) -> float | None:
        """Bandwidth; None without reads."""
        return self.nbytes / self.wall_ns * 1e9 if self.wall_ns and self.n_reads else None

    @property
    def reads_per_s(self) -> float | None:
        """Reads per second; None without reads."""
        return self.n_reads / self.wall_ns * 1e9 if self.wall_ns and self.n_reads else None


class StorageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe of existing files found.

    Parameters
    ----------
    path, mount, host, file_system, reach : str
        What was probed, and where; see `FileSystem`.
    wall_ns : int
        When, since the epoch.
    like : str
        Whose requests these are, in words.
    request_nbytes : int
        One read.
    n_files, files_nbytes : int
        Files chosen, and their size.
    spent_ns, read_nbytes : int
        What the probe took in all.
    notes : tuple of str
        What was left out.
    """

    path: str
    mount: str
    host: str
    file_system: str
    reach: str
    wall_ns: int
    like: str
    request_nbytes: int
    n_files: int
    files_nbytes: int
    reads: tuple[ReadFigures, ...] = ()
    spent_ns: int
    read_nbytes: int
    notes: tuple[str, ...] = ()

    @property
    def threads(self) -> tuple[int, ...]:
        """The numbers of threads that were tried."""
        return tuple(sorted({each.threads for each in self.reads}))

    def fastest(self, threads: int, *servers: str) -> ReadFigures | None:
        """Return the fastest reads that one of ``servers`` served, by the nearest threads tried."""
        found = [each for each in self.reads if each.served_by in servers and each.bytes_per_s]
        return min(
            found,
            key=lambda each: (abs(each.threads - threads), -(each.bytes_per_s or 0)),
            default=None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        made = msgspec.to_builtins(self)
        for row, figures in zip(made["reads"], self.reads, strict=True):
            row["bytes_per_s"], row["reads_per_s"] = figures.bytes_per_s, figures.reads_per_s
        return {"version": VERSION, **made}

    @classmethod
    def from_dict(cls, told: object) -> Self:
        """Read what `to_dict` made.

        Raises
        ------
        StorageError
            If it is something else, or of another version.
        """
        try:
            if not isinstance(told, Mapping) or told["version"] != VERSION:
                raise ValueError("of another version")
            wall_ns = told["wall_ns"]  # larger than any duration
            if not isinstance(wall_ns, int):
                raise TypeError(f"wall_ns is {wall_ns!r}")
            return replace(read_fields(cls, {**told, "wall_ns": 0}), wall_ns=wall_ns)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StorageError(f"no figures of 'iobench limits' can be read: {error}") from error


def read_limits(rows: object) -> list[StorageLimits]:
    """Return the limits in a list of JSON; what is none is left out."""
    found = []
    for row in rows if isinstance(rows, list) else []:
        with suppress(StorageError):
            found.append(StorageLimits.from_dict(row))
    return found


def served_by(
    file_system: FileSystem,
    way: str,
    *,
    nbytes: int,
    resident_fraction: float | None,
    device_nbytes: int | None,
) -> str:
    """Return who served reads of ``nbytes``, as far as the evidence goes.

    What storage delivered goes before what the cache held: it was counted meanwhile. A count that
    is not known to be kept on this file system proves reads from storage, but not their absence.
    """
    if file_system.reach == "memory":
        return MEMORY
    if not nbytes:
        return UNKNOWN
    beyond = {"local": DEVICE, "network": SERVER}.get(file_system.reach, STORAGE)
    cache = CACHE if file_system.in_page_cache else OWN_CACHE
    delivered = None if device_nbytes is None else device_nbytes / nbytes
    cached = None if way == DIRECT else resident_fraction
    if delivered is not None and delivered >= NEARLY_ALL:
        # What was read ahead in vain counts as delivered, too: some may be from the cache still.
        return beyond if cached is None or cached <= HARDLY_ANY else MIXED
    if delivered is not None and file_system.counts_device_reads:
        if delivered > HARDLY_ANY:
            return MIXED
        # Else neither storage nor the cache accounts for it.
        return cache if resident_fraction is None or resident_fraction >= 0.5 else UNKNOWN
    if not file_system.in_page_cache:
        return UNKNOWN
    if way == DIRECT:
        return (
            SERVER if file_system.name.partition(".")[0] in ("nfs", "nfs4", "lustre") else UNKNOWN
        )
    if cached is None:
        return UNKNOWN
    if cached >= NEARLY_ALL:
        return CACHE
    if file_system.reach != "network":  # layers and users' processes have caches of their own
        return UNKNOWN
    return SERVER if cached <= HARDLY_ANY else MIXED
