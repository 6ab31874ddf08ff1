"""What a probe of storage measured past the page cache, kept in run.json."""

from __future__ import annotations

from typing import Final

import msgspec

DIRECT: Final = "direct"
DEVICE: Final = "device"
SERVER: Final = "server"
STORAGE: Final = "storage"
"""A device or a server: more is not known."""
MEMORY: Final = "memory"
UNKNOWN: Final = "unknown"
UNCACHED: Final = (DEVICE, SERVER, STORAGE)


class ReadFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Reads by so many threads; no figures where they are refused."""

    way: str  # "direct", past the page cache; older probes have others
    threads: int
    n_reads: int = 0  # that ended
    nbytes: int = 0
    wall_ns: int = 0
    latency_ns: tuple[int, ...] = ()  # median, 90th and 99th percentile and maximum of a read
    served_by: str = UNKNOWN
    refused: str = ""  # why there is no figure
    bytes_per_s: float | None = None
    reads_per_s: float | None = None


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

    def rate(self, threads: int) -> float | None:
        """Return the bandwidth of the fastest reads of the storage itself.

        By the nearest threads tried.
        """
        known = [each for each in self.reads if each.served_by in UNCACHED and each.bytes_per_s]
        fastest = min(
            known,
            key=lambda each: (abs(each.threads - threads), -(each.bytes_per_s or 0)),
            default=None,
        )
        return None if fastest is None else fastest.bytes_per_s


def read_limits(rows: object) -> list[StorageLimits]:
    """Return the limits in a list of JSON; what is none is left out."""
    result = []
    for row in rows if isinstance(rows, list) else []:
        try:
            result.append(msgspec.convert(row, StorageLimits))
        except msgspec.ValidationError:
            continue
    return result
