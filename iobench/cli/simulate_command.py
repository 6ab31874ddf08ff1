"""``iobench simulate``: a measured run on more ranks, all reading from one storage."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from iobench.analysis.run import Run
from iobench.cli.documents import print_document
from iobench.errors import OptionError
from iobench.findings.scaling import (
    MOST_RANKS,
    SharedStorage,
    rank_demand,
    scaling_curve,
    scaling_document,
)
from iobench.runs.reading import run_paths
from iobench.sizes import parse_nbytes, parse_quantity

if TYPE_CHECKING:
    from pathlib import Path

UNITS: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


def simulate(
    *,
    run: Path,
    ranks: str,
    storage_bandwidth: str | None,
    storage_iops: str | None,
    bytes_per_sample: int | None,
    json: bool,
) -> None:
    """Print what a run on more ranks would reach."""
    counts = _rank_counts(ranks)
    storage = SharedStorage(
        bytes_per_s=None if storage_bandwidth is None else _byte_rate(storage_bandwidth),
        reads_per_s=None if storage_iops is None else _rate(storage_iops),
    )
    paths = run_paths(run)
    if len(paths) > 1:
        names = ", ".join(map(str, paths))
        raise OptionError(f"{run}: holds several runs; expected one of {names}")
    demand = rank_demand(Run(paths[0]), nbytes_per_sample=bytes_per_sample)
    document = scaling_document(scaling_curve(demand, storage, counts))
    print_document(document, "json" if json else "")


def _byte_rate(text: str) -> float:
    """Return bytes per second, of ``100GB/s`` or ``100GB``; bits (``Gb``) are refused."""
    size = text.strip().removesuffix("/s")
    if size.endswith("b") and not size.islower():
        raise OptionError(f"--storage-bandwidth {text}: expected bytes, not bits, such as 100GB/s")
    return float(parse_nbytes("--storage-bandwidth", size))


def _rate(text: str) -> float:
    """Return a number per second, of ``1M``, ``500k`` or ``20000/s``."""
    number = text.strip().removesuffix("/s")
    return parse_quantity("--storage-iops", number, UNITS, "reads per second such as 500k or 1M")


def _rank_counts(text: str) -> list[int]:
    """Return numbers of ranks: ``1,2,4`` each, ``1..4096`` its ends and powers of two within."""
    result: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r" ?(\d{1,9})(?:\.\.(\d{1,9}))? ?", part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= low <= high <= MOST_RANKS:
            raise OptionError(
                f"--ranks {text}: expected numbers from 1 to {MOST_RANKS} such as 1..4096 or 1,2,4"
            )
        powers = (1 << power for power in range(MOST_RANKS.bit_length()))
        result |= {low, high, *(power for power in powers if low < power < high)}
    return sorted(result)
