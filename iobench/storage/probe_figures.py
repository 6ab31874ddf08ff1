"""What a probe of storage measured: figures past the page cache and out of it, kept in run.json."""

from __future__ import annotations

from typing import Any, Final

import msgspec

DIRECT: Final = "direct"
CACHED: Final = "cached"
DEVICE: Final = "device"
SERVER: Final = "server"
STORAGE: Final = "storage"
"""A device or a server: more is not known."""
CACHE: Final = "page cache"
MEMORY: Final = "memory"
UNKNOWN: Final = "unknown"
UNCACHED: Final = (DEVICE, SERVER, STORAGE)
CACHES: Final = (CACHE, MEMORY, "the file system's cache")


class ReadFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Reads in one way, by so many threads.

    Parameters
    ----------
    way : str
        ``"direct"``, past the page cache, or ``"cached"``, out of it; older probes have others.
    n_reads, nbytes, wall_ns : int
        Reads that ended, what they returned, and how long that took.
    latency_ns : tuple of int
        Median, 90th and 99th percentile and maximum of a read; empty without reads.
    served_by : str
        ``"device"``, ``"server"`` (or its cache), ``"storage"`` (one of these), ``"page cache"``,
        ``"memory"`` or ``"unknown"``.
    refused : str
        Why there is no figure, else ``""``.
    """

    way: str
    threads: int
    n_reads: int = 0
    nbytes: int = 0
    wall_ns: int = 0
    latency_ns: tuple[int, ...] = ()
    served_by: str = UNKNOWN
    refused: str = ""

    @property
    def bytes_per_s(self) -> float | None:
        """Bandwidth; None without reads."""
        return self.nbytes / self.wall_ns * 1e9 if self.wall_ns and self.n_reads else None

    @property
    def reads_per_s(self) -> float | None:
        """Reads per second; None without reads."""
        return self.n_reads / self.wall_ns * 1e9 if self.wall_ns and self.n_reads else None


class StorageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe of existing files measured; ``wall_ns`` is when, since the epoch.

    ``like`` says whose requests these are, ``n_files`` and ``files_nbytes`` what was chosen.
    """

    path: str
    mount: str
    host: str
    file_system: str
    wall_ns: int
    like: str
    request_nbytes: int
    n_files: int
    files_nbytes: int
    reads: tuple[ReadFigures, ...] = ()
    spent_ns: int

    def fastest(self, threads: int, *servers: str) -> ReadFigures | None:
        """Return the fastest reads that one of ``servers`` served, by the nearest threads tried."""
        return min(
            (each for each in self.reads if each.served_by in servers and each.bytes_per_s),
            key=lambda each: (abs(each.threads - threads), -(each.bytes_per_s or 0)),
            default=None,
        )

    def rate(self, threads: int, servers: tuple[str, ...]) -> float | None:
        """Return the bandwidth of the `fastest` reads."""
        fastest = self.fastest(threads, *servers)
        return None if fastest is None else fastest.bytes_per_s

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        for row, figures in zip(document["reads"], self.reads, strict=True):
            row["bytes_per_s"], row["reads_per_s"] = figures.bytes_per_s, figures.reads_per_s
        return document


def read_limits(rows: object) -> list[StorageLimits]:
    """Return the limits in a list of JSON; what is none is left out."""
    result = []
    for row in rows if isinstance(rows, list) else []:
        try:
            result.append(msgspec.convert(row, StorageLimits))
        except msgspec.ValidationError:
            continue
    return result
