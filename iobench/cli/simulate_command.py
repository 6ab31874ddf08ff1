"""``iobench simulate``: a measured run on more ranks, all reading from one storage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iobench.cli.documents import Json, print_document

if TYPE_CHECKING:
    from iobench.analysis.run import Run
    from iobench.subjects.scaling.measured_job import MeasuredJob
    from iobench.subjects.scaling.target import Hosts


def simulate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    ranks: Annotated[
        str,
        typer.Option(
            metavar="N,N|N..N", help="Numbers of training processes; a range doubles at each step."
        ),
    ] = "1..4096",
    storage_bandwidth: Annotated[
        str | None,
        typer.Option(
            metavar="RATE|measured",
            help=(
                "Storage bandwidth for all ranks together, e.g. 100GB/s; measured: as found by "
                "a probe."
            ),
        ),
    ] = None,
    storage_iops: Annotated[
        str | None,
        typer.Option(
            metavar="RATE", help=("Reads per second that storage serves in total, e.g. 1M.")
        ),
    ] = None,
    read_latency: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Extra time per read compared with the run, e.g. 500us. [default: 0]",
        ),
    ] = None,
    client_bandwidth: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Bandwidth of a single loading process or thread. [default: as measured]",
        ),
    ] = None,
    hosts: Annotated[
        int | None,
        typer.Option("--nodes", help="Number of nodes; ranks are spread evenly over them.", min=1),
    ] = None,
    ranks_per_host: Annotated[
        int | None,
        typer.Option("--ranks-per-node", help="Ranks per node, on as many nodes as needed.", min=1),
    ] = None,
    host_bandwidth: Annotated[
        str | None,
        typer.Option("--node-bandwidth", metavar="RATE", help="Network bandwidth of one node."),
    ] = None,
    host_cache: Annotated[
        str | None,
        typer.Option(
            "--cache-per-node",
            metavar="SIZE",
            help="Cache of each node for data it has read, e.g. 256GB.",
        ),
    ] = None,
    dataset_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Bytes per epoch. [default: as recorded]"),
    ] = None,
    own_shards: Annotated[
        bool,
        typer.Option(
            "--own-shards",
            help="Each rank reads (or stages) the same samples in every epoch instead of new ones.",
        ),
    ] = False,
    staged: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help=(
                "Also simulate data staged to each node's own storage of this bandwidth, e.g. "
                "3GB/s."
            ),
        ),
    ] = None,
    staged_latency: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="--staged: latency per read there. [default: 0]"),
    ] = None,
    allreduce_ms: Annotated[
        float,
        typer.Option(
            help=("Extra allreduce time per step, beyond that in the run's steps."),
            min=0,
            max=3.6e6,
        ),
    ] = 0.0,
    reads_per_sample: Annotated[
        float | None,
        typer.Option(help="Storage requests per sample. [default: as measured]"),
    ] = None,
    bytes_per_sample: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Bytes read per sample. [default: as measured]"),
    ] = None,
    json: Json = False,
) -> None:
    """Predict samples/s and exposed share of a run on more ranks, and where storage saturates."""
    from dataclasses import replace

    from iobench.cli.amounts import parse_byte_rate, parse_rank_counts, parse_rate, parse_time_ns
    from iobench.cli.screen import TerminalScreen
    from iobench.errors import OptionError
    from iobench.sizes import parse_nbytes
    from iobench.subjects.scaling.curve import MOST_RANKS, simulate_ranks
    from iobench.subjects.scaling.figures import ScalingFigures
    from iobench.subjects.scaling.measured_job import measured_job
    from iobench.subjects.scaling.scenarios import measured_limit, staged_scenario
    from iobench.subjects.scaling.section import scaling_document
    from iobench.subjects.scaling.target import SharedStorage

    counts = parse_rank_counts("--ranks", ranks, most=MOST_RANKS)

    def rate(option: str, text: str | None) -> float | None:
        return None if text is None else parse_byte_rate(option, text)

    def size(option: str, text: str | None) -> int | None:
        return None if text is None else parse_nbytes(option, text)

    if reads_per_sample is not None and not 0 < reads_per_sample <= 1e9:
        raise OptionError(
            f"--reads-per-sample {reads_per_sample:g}: expected more than 0, at most 1e9"
        )
    if staged_latency is not None and staged is None:
        raise OptionError("--staged-latency: needs --staged; give both")
    measured = storage_bandwidth == "measured"
    storage = SharedStorage(
        bytes_per_s=None if measured else rate("--storage-bandwidth", storage_bandwidth),
        reads_per_s=None if storage_iops is None else parse_rate("--storage-iops", storage_iops),
        read_latency_ns=0
        if read_latency is None
        else parse_time_ns("--read-latency", read_latency),
        reader_bytes_per_s=rate("--client-bandwidth", client_bandwidth),
        host_bytes_per_s=rate("--node-bandwidth", host_bandwidth),
    )
    cache = size("--cache-per-node", host_cache) or 0
    dataset = size("--dataset-size", dataset_size)
    if hosts is not None and ranks_per_host is not None:
        raise OptionError(
            "--nodes and --ranks-per-node both place the ranks: give only one of them"
        )
    if hosts is None and ranks_per_host is None and (cache or host_bandwidth is not None):
        named = "--cache-per-node" if cache else "--node-bandwidth"
        raise OptionError(
            f"{named}: needs --nodes or --ranks-per-node, which say which ranks share a node"
        )
    if own_shards and not cache and staged is None:
        raise OptionError("--own-shards: needs --cache-per-node or --staged; give one of them")
    job = measured_job(
        _opened(run),
        reads_per_sample=reads_per_sample,
        nbytes_per_sample=size("--bytes-per-sample", bytes_per_sample),
    )
    limit = measured_limit(job) if measured else None
    if limit is not None:
        bytes_per_s, reads_per_s = limit.bounds(job.demand)
        told = reads_per_s if storage.reads_per_s is None else storage.reads_per_s
        storage = replace(storage, bytes_per_s=bytes_per_s, reads_per_s=told)
    places = _hosts(job, hosts, ranks_per_host, cache, dataset, own_shards=own_shards)
    with TerminalScreen().progress("simulating") as progress:
        curve = simulate_ranks(
            job.demand,
            storage,
            counts,
            hosts=places,
            allreduce_ns=round(allreduce_ms * 1_000_000),
            measured_step_ns=job.step_ns,
            progress=progress,
        )
    scenario = None
    if staged is not None:
        scenario = staged_scenario(
            job,
            curve,
            storage,
            places,
            near_bytes_per_s=parse_byte_rate("--staged", staged),
            read_latency_ns=0
            if staged_latency is None
            else parse_time_ns("--staged-latency", staged_latency),
            allreduce_ns=round(allreduce_ms * 1_000_000),
        )
    found = ScalingFigures(curve, job, storage, places, allreduce_ms, limit, scenario)
    print_document(scaling_document(found), "json" if json else "")


def _opened(run: Path) -> Run:
    from iobench.analysis.run import Run
    from iobench.errors import OptionError
    from iobench.profiles.folders import run_paths

    paths = run_paths(run)
    if len(paths) > 1:
        names = ", ".join(map(str, paths))
        raise OptionError(f"{run}: holds several runs; expected one of {names}")
    return Run.open(paths[0])


def _hosts(
    job: MeasuredJob,
    n_hosts: int | None,
    ranks_per_host: int | None,
    cache_nbytes: int,
    dataset_nbytes: int | None,
    *,
    own_shards: bool,
) -> Hosts:
    from iobench.errors import OptionError
    from iobench.subjects.scaling.target import Hosts

    dataset_nbytes = dataset_nbytes or job.dataset_nbytes
    if cache_nbytes and dataset_nbytes is None:
        raise OptionError(
            f"{job.name}: does not record how many bytes an epoch has; give --dataset-size"
        )
    return Hosts(
        n_hosts=n_hosts,
        ranks_per_host=None if n_hosts is not None else ranks_per_host or 1,
        cache_nbytes=cache_nbytes,
        dataset_nbytes=dataset_nbytes,
        own_shards=own_shards,
    )
