"""What the link to a device carries: a bounded probe, timed by the device's own marks.

A batch of a run is compared with copies of as many bytes, in one piece and with nothing else under
way.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.recording.clocks import Budget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.recording.accelerator import Accelerator

MOST_NBYTES: Final = 1 << 28
"""Of larger batches as much is copied: their rate is the same, and pinning takes long."""
MOST_COPIES: Final = 20
LIMIT_S: Final = 1.0


def measure_link(
    accelerator: Accelerator, nbytes: int, *, limit_s: float | None = None
) -> dict[str, Any] | None:
    """Return what ``run.json`` says of the link under ``device.link``; None where nothing could.

    Copies of ``nbytes``, that of a batch, from pinned and from other memory in turns, each after
    one that is not counted: the fastest counts, as the link carried that much. A driver that
    refuses ends the probe and nothing else: a run will be told.

    Parameters
    ----------
    accelerator : Accelerator
        Nobody else uses it meanwhile.
    nbytes : int
        Of a batch.
    limit_s : float, optional
        After this time no further copy is begun; by default `LIMIT_S`.
    """
    limit_s = LIMIT_S if limit_s is None else limit_s
    own = max(1, min(nbytes, MOST_NBYTES))
    found = _rates(accelerator, own, Budget(limit_s / 2))
    if found is None:
        return None
    pinned, pageable, n_copies = found
    return {
        "pinned_bytes_per_s": pinned,
        "pageable_bytes_per_s": pageable,
        "nbytes": own,
        "n": n_copies,
    }


def _rates(
    accelerator: Accelerator, nbytes: int, budget: Budget
) -> tuple[float | None, float | None, int] | None:
    """Return bytes per second from pinned memory and from other, and how many copies say so."""
    if budget.spent:
        return None
    pages = mmap.mmap(-1, nbytes)
    pinned: NDArray[Any] = np.frombuffer(pages, dtype=np.uint8)
    pinned[:] = 1  # else there is one page of zeros
    best: dict[str, int] = {}
    counts = {"pinned": 0, "pageable": 0}
    try:
        held = accelerator.pin(pages)
        sources = {"pinned": pinned}
        if held is not None:  # without it all memory goes the pinned way
            sources["pageable"] = pinned.copy()
        for turn in range(MOST_COPIES + 1):
            for name, source in sources.items():
                if budget.spent and turn > 1:
                    break
                took_ns = _copy_ns(accelerator, [source])
                if turn and took_ns is not None and took_ns > 0:
                    best[name] = min(took_ns, best.get(name, took_ns))
                    counts[name] += 1
    except RuntimeError:  # of the driver
        pass
    if not best:
        return None
    rates = [nbytes * 1e9 / best[name] if name in best else None for name in counts]
    return rates[0], rates[1], max(counts.values())


def _copy_ns(accelerator: Accelerator, source: Sequence[Any]) -> int | None:
    copy = accelerator.copy(source, ahead=True)
    if copy.first is None or copy.last is None:
        return None
    accelerator.wait(copy.last)
    took_ns = accelerator.between_ns(copy.first, copy.last)
    accelerator.release(copy.first)
    accelerator.release(copy.last)
    return took_ns
