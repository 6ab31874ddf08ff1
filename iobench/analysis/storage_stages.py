"""The stages that read: how long, how much of it was storage, and whether that was a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.analysis.partition import leaf_pieces
from iobench.analysis.storage_figures import StageStorage
from iobench.analysis.storage_spans import NOT_SUMMED, counted_bytes, is_decoding
from iobench.recording import WORKER_KINDS, Flag, Kind, stage_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.analysis.storage_figures import Placement
    from iobench.profiles import Profile

__all__ = ["FROM_CACHE", "FROM_DEVICE", "MIXED", "UNKNOWN", "stage_storage", "verdict_of"]

FROM_CACHE: Final = "from cache"
FROM_DEVICE: Final = "from device"
MIXED: Final = "mixed"
UNKNOWN: Final = "unknown"

FEW: Final = 0.05
"""Up to this share from the device is the cache's, and from one less this share the device's."""


def verdict_of(read_nbytes: int | None, device_nbytes: int | None) -> str:
    """Return where bytes came from, given those that were read and those from the device."""
    if not read_nbytes or device_nbytes is None:
        return UNKNOWN
    share = device_nbytes / read_nbytes
    if share < FEW:
        return FROM_CACHE
    return FROM_DEVICE if share > 1 - FEW else MIXED


def stage_storage(profile: Profile, placement: Placement | None) -> tuple[StageStorage, ...]:
    """Return the stages that read or opened, or that segments lie in; the longest first."""
    spans = profile.spans
    rows = np.flatnonzero(
        ((spans["flags"] & NOT_SUMMED) == 0) & np.isin(spans["kind"], [*WORKER_KINDS])
    )
    work = spans[rows]
    lane = work["process"].astype(np.int64) << 32 | work["thread"].astype(np.int64)
    pieces = leaf_pieces(work, lane)
    key = work["kind"].astype(np.int64) << 32 | work["label"].astype(np.int64)
    of_piece = key[pieces.span]
    found = []
    for value in np.unique(key).tolist():
        kind, label = Kind(value >> 32), profile.strings[value & 0xFFFFFFFF]
        if not _reads(kind, label):
            continue
        own = of_piece == value
        first = own & pieces.first
        cpu_ns = pieces.cpu_ns[first]
        busy_ns = int(pieces.duration_ns[own].sum())
        mine = work[key == value]
        nbytes = mine["nbytes"]
        told = bool(len(nbytes)) and bool((nbytes >= 0).all())
        found.append(
            StageStorage(
                stage=stage_name(kind, label),
                busy_ns=busy_ns,
                storage_ns=None,
                rest_ns=None,
                rest_is_bound=is_decoding(kind, label),
                off_cpu_ns=_off_cpu_ns(busy_ns, cpu_ns),
                nbytes=int(nbytes.sum()) if told else None,
                verdict=_verdict(profile, mine),
            )
        )
    return tuple(sorted(found, key=lambda row: (-row.busy_ns, row.stage)))


def _reads(kind: Kind, label: str) -> bool:
    return kind in {Kind.OPEN, Kind.READ} or (kind == Kind.FUSED and label.startswith("read"))


def _off_cpu_ns(busy_ns: int, cpu_ns: NDArray[Any]) -> int | None:
    if not len(cpu_ns) or (cpu_ns < 0).any():
        return None
    # The clocks of threads advance in ticks: a short stage may show more CPU time than time.
    return max(busy_ns - int(cpu_ns.sum()), 0)


def _verdict(profile: Profile, mine: NDArray[Any]) -> str:
    """Return where the bytes of the batches came from for which a stage ran."""
    counted = counted_bytes(profile)
    if not len(mine) or any(counted[one].device is None for one in np.unique(mine["process"])):
        return UNKNOWN
    spans = profile.spans
    looks = spans[(spans["flags"] & Flag.IO) != 0]
    looks = looks[np.isin(_process_and_batch(looks), _process_and_batch(mine))]
    read, device = int(looks["nbytes"].sum()), int(looks["cpu_ns"].sum())
    told = mine["nbytes"][mine["nbytes"] >= 0]
    # What is read through a mapping shows in the device's count alone.
    return verdict_of(max(read, int(told.sum())) if read < FEW * told.sum() else read, device)


def _process_and_batch(spans: NDArray[Any]) -> NDArray[np.int64]:
    both: NDArray[np.int64] = spans["process"].astype(np.int64) << 32 | (
        spans["batch"].astype(np.int64) + 1
    )
    return both
