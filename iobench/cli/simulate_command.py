"""``iobench simulate``: a measured run on more ranks, all reading from one storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.cli.documents import print_document

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.analysis.run import Run


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
    from msgspec.structs import replace

    from iobench.cli.amounts import parse_byte_rate, parse_rank_counts, parse_rate
    from iobench.cli.screen import TerminalScreen
    from iobench.errors import OptionError
    from iobench.findings.scaling.curve import MOST_RANKS, simulate_ranks
    from iobench.findings.scaling.figures import ScalingFigures
    from iobench.findings.scaling.measured_job import measured_job
    from iobench.findings.scaling.section import scaling_document
    from iobench.findings.scaling.target import SharedStorage, measured_limit

    counts = parse_rank_counts("--ranks", ranks, most=MOST_RANKS)
    if reads_per_sample is not None and not 0 < reads_per_sample <= 1e9:
        raise OptionError(
            f"--reads-per-sample {reads_per_sample:g}: expected more than 0, at most 1e9"
        )
    measured = storage_bandwidth == "measured"
    storage = SharedStorage(
        bytes_per_s=None
        if measured or storage_bandwidth is None
        else parse_byte_rate("--storage-bandwidth", storage_bandwidth),
        reads_per_s=None if storage_iops is None else parse_rate("--storage-iops", storage_iops),
    )
    job = measured_job(
        _opened(run), reads_per_sample=reads_per_sample, nbytes_per_sample=bytes_per_sample
    )
    limit = measured_limit(job) if measured else None
    if limit is not None:
        bytes_per_s, reads_per_s = limit.bounds(job.demand)
        told = reads_per_s if storage.reads_per_s is None else storage.reads_per_s
        storage = replace(storage, bytes_per_s=bytes_per_s, reads_per_s=told)
    with TerminalScreen().progress("simulating") as progress:
        curve = simulate_ranks(
            job.demand,
            storage,
            counts,
            measured_step_ns=job.step_ns,
            progress=progress,
        )
    found = ScalingFigures(curve, job, storage, limit)
    print_document(scaling_document(found), "json" if json else "")


def _opened(run: Path) -> Run:
    from iobench.analysis.run import Run
    from iobench.errors import OptionError
    from iobench.runs.folders import run_paths

    paths = run_paths(run)
    if len(paths) > 1:
        names = ", ".join(map(str, paths))
        raise OptionError(f"{run}: holds several runs; expected one of {names}")
    return Run(paths[0])
