"""``iobench simulate``: a measured run on more ranks, all reading from one storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from iobench.analysis.run import Run
from iobench.cli.amounts import parse_byte_rate, parse_rank_counts, parse_rate
from iobench.cli.documents import print_document
from iobench.errors import OptionError
from iobench.findings.scaling import (
    MOST_RANKS,
    SharedStorage,
    probed_storage,
    rank_demand,
    scaling_curve,
    scaling_document,
)
from iobench.runs.folders import run_paths

if TYPE_CHECKING:
    from pathlib import Path


def simulate(
    *,
    run: Path,
    ranks: str,
    storage_bandwidth: str | None,
    storage_iops: str | None,
    reads_per_sample: float | None,
    bytes_per_sample: int | None,
    json: bool,
) -> None:
    """Print what a run on more ranks would reach."""
    counts = parse_rank_counts("--ranks", ranks, most=MOST_RANKS)
    if reads_per_sample is not None and not 0 < reads_per_sample <= 1e9:
        raise OptionError(
            f"--reads-per-sample {reads_per_sample:g}: expected more than 0, at most 1e9"
        )
    storage = SharedStorage()
    if storage_bandwidth not in (None, "measured"):
        rate = parse_byte_rate("--storage-bandwidth", storage_bandwidth)
        storage = replace(storage, bytes_per_s=rate)
    if storage_iops is not None:
        storage = replace(storage, reads_per_s=parse_rate("--storage-iops", storage_iops))
    opened = _opened(run)
    demand = rank_demand(
        opened, reads_per_sample=reads_per_sample, nbytes_per_sample=bytes_per_sample
    )
    if storage_bandwidth == "measured":
        probed = probed_storage(opened, demand)
        if storage_iops is not None:
            probed = replace(probed, reads_per_s=storage.reads_per_s)
        storage = probed
    curve = scaling_curve(demand, storage, counts)
    print_document(scaling_document(curve), "json" if json else "")


def _opened(run: Path) -> Run:

    paths = run_paths(run)
    if len(paths) > 1:
        names = ", ".join(map(str, paths))
        raise OptionError(f"{run}: holds several runs; expected one of {names}")
    return Run(paths[0])
