"""A run on more ranks, as people read it: the verdict, the curve, and what is assumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.analysis.replay.loader_run import LoaderRule
from iobench.analysis.scaling.curve import BOUND_FACTOR
from iobench.analysis.scaling.saturation import FARTHEST
from iobench.report import units
from iobench.report.sentences import kept_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from iobench.analysis.scaling.contract import (
        Hosts,
        Saturation,
        ScalingCurve,
        ScalingPoint,
        SharedStorage,
        Spread,
    )
    from iobench.analysis.scaling.demand import RankDemand
    from iobench.analysis.scaling.measured import MeasuredJob

__all__ = ["scaling_lines", "scaling_verdict"]

BAR: Final = 20
"""Characters of an efficiency of 1."""
MISSED: Final = 0.1
"""A model that misses the measured run by more gives no figures to rely on."""
COLD: Final = 0.9
LOSS: Final = 0.9
"""An efficiency below is worth a sentence."""
OF_RULE: Final = {
    LoaderRule.SERIAL: "the training loop loads",
    LoaderRule.POOL: "loading processes",
    LoaderRule.THREADS: "loading threads",
}


def scaling_lines(
    curve: ScalingCurve,
    job: MeasuredJob,
    storage: SharedStorage,
    hosts: Hosts,
    *,
    allreduce_ms: float,
) -> Iterator[str]:
    """Yield what ``iobench simulate`` prints."""
    yield f"{job.name}: {_measured(job)}"
    yield from scaling_verdict(curve)
    yield ""
    if curve.later_epochs:
        yield "First epoch, nothing cached"
    yield from _table(curve.first_epoch, hosts)
    if curve.later_epochs:
        yield ""
        yield "Later epochs, caches warm"
        yield from _table(curve.later_epochs, hosts)
    yield ""
    for line in _assumed(curve, job, storage, hosts, allreduce_ms):
        yield f"- {line}"


def scaling_verdict(curve: ScalingCurve) -> list[str]:
    """Return where storage saturates, and what else more ranks lose; a sentence each."""
    last = curve.first_epoch[-1]
    lines = _saturation_lines(curve.saturation, curve.host_saturation, last.ranks)
    if curve.later_epochs:
        later = _saturation_lines(curve.later_saturation, curve.later_host_saturation, last.ranks)
        lines += [
            f"With warm caches: {line[0].lower()}{line[1:]}" for line in later if line not in lines
        ]
    free = last.efficiency * last.step_ns / last.free_step_ns if last.free_step_ns else 1.0
    if last.ranks > 1 and free < LOSS:
        lines.append(
            f"Whatever storage gives, efficiency falls to {units.fraction(free)} at "
            f"{units.count(last.ranks)} ranks: a step waits for the slowest of them."
        )
    error = curve.model_error_fraction
    if error is not None and abs(error) > MISSED:
        lines.append(
            f"The model misses the measured run's step by {units.fraction(abs(error))}: "
            "rely on the shape of the curve only."
        )
    return lines


def _saturation_lines(
    of_storage: Saturation | None, of_host: Saturation | None, most: int
) -> list[str]:
    found = [
        (each.ranks or FARTHEST + 1, line)
        for what, each in (("Storage", of_storage), ("What reaches a node", of_host))
        if each is not None
        for line in [_saturation_line(what, each, most)]
    ]
    return [line for _, line in sorted(found)] or [
        "No bound of storage is given: --storage-bandwidth and --storage-iops set one."
    ]


def _saturation_line(what: str, found: Saturation, most: int) -> str:
    if found.ranks is None:
        return f"{what} does not saturate, not with {units.count(FARTHEST)} ranks either."
    ranks = f"{units.count(found.ranks)} rank{'s' * (found.ranks != 1)}"
    if found.ranks <= most:
        return f"{what} saturates at {ranks}: {found.by}."
    many = f"{units.count(most)} rank{'s' * (most != 1)}"
    return f"{what} does not saturate up to {many}; {ranks} would: {found.by}."


def _measured(job: MeasuredJob) -> str:
    demand = job.demand
    ranks = f"{units.count(demand.n_ranks)} rank{'s' * (demand.n_ranks != 1)} measured"
    size = f"batches of {units.count(demand.batch_size)}"
    kept = kept_words(job.n_batches, job.n_folded)
    return f"{ranks}, {size}, {_loader(demand)}{kept and f', {kept}'}"


def _loader(demand: RankDemand) -> str:
    if demand.rule is LoaderRule.SERIAL:
        return OF_RULE[demand.rule]
    makers = OF_RULE[demand.rule]
    if demand.workers == 1:
        makers = makers.removesuffix("es" if makers.endswith("sses") else "s")
    return f"{demand.workers} {makers}, {_batches(demand.ahead)} ahead"


def _batches(number: int) -> str:
    return f"{units.count(number)} batch{'es' * (number != 1)}"


def _table(points: Sequence[ScalingPoint], hosts: Hosts) -> Iterator[str]:
    shows_hosts = hosts.n_hosts is not None or hosts.ranks_per_host > 1
    shows_cache = any(point.cache is not None for point in points)
    rows = [["ranks", "samples/s", "spread", "efficiency", "", "exposed", "spread", "storage used"]]
    rows += [_row(point) for point in points]
    if shows_hosts:
        for row, text in zip(
            rows, ["nodes", *(units.count(point.hosts) for point in points)], strict=True
        ):
            row.insert(1, text)
    if shows_cache:
        shares = [
            units.fraction(point.cache.hit_fraction if point.cache else 0.0) for point in points
        ]
        for row, text in zip(rows, ["cached", *shares], strict=True):
            row.append(text)
    bar = rows[0].index("")
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            f"{cell:<{width}}" if number == bar else f"{cell:>{width}}"
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _row(point: ScalingPoint) -> list[str]:
    used = "-" if point.storage_fraction is None else units.fraction(point.storage_fraction)
    exposed = point.exposed_fraction
    return [
        units.count(point.ranks),
        _bound("<= ", units.sample_rate(point.samples_per_s.median), point),
        _range(point.samples_per_s, units.sample_rate),
        units.fraction(point.efficiency),
        "#" * min(BAR, int(BAR * point.efficiency + 0.5)),
        _bound(">= ", units.fraction(exposed.median), point),
        _range(exposed, units.fraction),
        used,
    ]


def _bound(sign: str, text: str, point: ScalingPoint) -> str:
    return text if not point.is_bound or text[0] in "<>" else sign + text


def _range(spread: Spread, shown: Callable[[float], str]) -> str:
    low, high = shown(spread.low), shown(spread.high)
    return f"{low}..{high}" if low != high else "-"


def _assumed(
    curve: ScalingCurve,
    job: MeasuredJob,
    storage: SharedStorage,
    hosts: Hosts,
    allreduce_ms: float,
) -> Iterator[str]:
    """Yield what the figures rest on."""
    demand = job.demand
    median_ns = float(np.median(demand.compute_ns))
    more = f", {units.duration(allreduce_ms * 1e6)} more for the allreduce" if allreduce_ms else ""
    beyond = "" if allreduce_ms else " Communication that the run did not have is left out."
    yield (
        f"Every rank does what was measured, on batches drawn from {units.count(len(demand))}: "
        f"a step of {units.duration(median_ns)} besides loading (median){more}; each step waits "
        f"for the slowest rank. Steady state, without the start of an epoch.{beyond}"
    )
    if demand.n_ranks > 1:
        yield (
            f"The batches are of {units.count(job.n_looked_at)} ranks of the job; a step besides "
            "loading is that of the rank that waited for the others least."
        )
    if job.n_loaders > 1:
        yield f"The run has {job.n_loaders} loaders; this one trains, or has most batches."
    per_sample = float(demand.nbytes.mean()) / demand.batch_size
    delivered = job.delivered_nbytes
    loaded = "" if delivered is None else f" and has {units.nbytes(delivered)} once it is loaded"
    yield (
        f"A sample takes {units.nbytes(per_sample)} from storage, in "
        f"{units.number(job.reads_per_sample)} read{'s' * (job.reads_per_sample != 1)},{loaded}; "
        "reads under way share storage alike."
    )
    yield _reading_line(job, storage)
    if not demand.reading_known:
        yield "Reading is no stage of its own here: what its stage does off the CPU counts as it."
    if not demand.in_order:
        yield "Batches are taken in their order here; the run's loader took any that was ready."
    yield from _cache_lines(curve, hosts)
    yield from _epoch_line(curve, job, storage, hosts)
    error = curve.model_error_fraction
    if error is not None:
        sign = "longer" if error > 0 else "shorter"
        yield f"Of the measured run the model makes a step {units.fraction(abs(error))} {sign}."
    if any(point.is_bound for point in curve.first_epoch):
        yield (
            f"Beyond {units.count(BOUND_FACTOR * demand.n_ranks)} ranks, {BOUND_FACTOR} times what "
            "was measured, figures are bounds: at most so many samples/s, at least such a share "
            "exposed, at this step."
        )
    yield f"Spread: of {curve.n_seeds} simulations with batches drawn anew."


def _reading_line(job: MeasuredJob, storage: SharedStorage) -> str:
    told = storage.read_latency_ns or storage.reader_bytes_per_s is not None
    if job.cold_fraction is not None and job.cold_fraction >= COLD:
        return "What a read takes a rank alone was measured from storage."
    if job.cold_fraction is None:
        source = "Nobody counted whether the run read from storage or from the page cache"
    else:
        source = (
            f"{units.fraction(1 - job.cold_fraction)} of what the run read came from the page cache"
        )
    if told:
        return f"{source}; --read-latency and --client-bandwidth say what the target adds."
    return (
        f"{source}, so what a read takes on this storage is not known: it is taken to be no "
        "slower; --read-latency and --client-bandwidth tell."
    )


def _cache_lines(curve: ScalingCurve, hosts: Hosts) -> Iterator[str]:
    if not curve.later_epochs:
        return
    last = curve.later_epochs[-1]
    assert last.cache is not None
    whose = (
        "each rank reads the same samples again"
        if hosts.own_shards
        else "samples are dealt anew in every epoch, and nodes do not serve each other"
    )
    epochs = last.cache.warm_after_epochs
    yield (
        f"A node keeps {units.nbytes(hosts.cache_nbytes)}; an epoch has "
        f"{units.nbytes(hosts.dataset_nbytes)}; "
        f"{whose}: with {units.count(last.hosts)} node{'s' * (last.hosts != 1)} "
        f"{units.fraction(last.cache.hit_fraction)} of reads are served once caches are warm, "
        f"after {units.count(epochs)} epoch{'s' * (epochs != 1)}. What is cached takes a rank "
        "what it took in the run."
    )
    if last.cache.evicting_hit_fraction < last.cache.hit_fraction:
        yield (
            "That is a cache that keeps what it has; one that drops what was used longest ago, "
            f"such as a page cache, serves {units.fraction(last.cache.evicting_hit_fraction)}."
        )


def _epoch_line(
    curve: ScalingCurve, job: MeasuredJob, storage: SharedStorage, hosts: Hosts
) -> Iterator[str]:
    """Yield the check that MLPerf HPC prints: an epoch's reading beside the epoch."""
    last = curve.first_epoch[-1]
    per_sample = float(job.demand.nbytes.mean()) / job.demand.batch_size
    rate = last.samples_per_s.median
    if not (hosts.dataset_nbytes and per_sample and rate):
        return
    n_samples = hosts.dataset_nbytes / per_sample
    of_step = last.ranks * job.demand.batch_size
    if of_step > n_samples * (1 + 1e-9):
        yield (
            f"A step of {units.count(last.ranks)} rank{'s' * (last.ranks != 1)} takes "
            f"{units.count(of_step)} samples, more than the {units.count(round(n_samples))} of an "
            "epoch: that many ranks need a larger data set, or smaller batches."
        )
        return
    epoch_ns = n_samples / rate * 1e9
    reading = ""
    if storage.bytes_per_s:
        reading_ns = hosts.dataset_nbytes / storage.bytes_per_s * 1e9
        reading = f"; storage needs {units.duration(reading_ns)} to read it"
    yield (
        f"With {units.count(last.ranks)} rank{'s' * (last.ranks != 1)} an epoch of "
        f"{units.nbytes(hosts.dataset_nbytes)} takes {units.duration(epoch_ns)}{reading}."
    )
