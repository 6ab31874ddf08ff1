"""A run on more ranks, as people read it: the verdict, the curve, and what is assumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.analysis.replay.loader_run import LoaderRule
from iobench.findings.scaling.curve import BOUND_FACTOR
from iobench.findings.scaling.verdict import ranks_words
from iobench.report import units
from iobench.report.document import (
    NOT_APPLICABLE,
    Column,
    Count,
    Document,
    SampleRate,
    Section,
    Share,
    Table,
    sentences,
)
from iobench.report.json_walk import to_plain
from iobench.report.sentences import kept_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from iobench.findings.scaling.demand import RankDemand
    from iobench.findings.scaling.figures import ScalingFigures, ScalingPoint, Spread
    from iobench.findings.scaling.measured_job import MeasuredJob
    from iobench.report.document import Cell

COLD: Final = 0.9
OF_RULE: Final = {
    LoaderRule.SERIAL: "the training loop loads",
    LoaderRule.POOL: "loading processes",
    LoaderRule.THREADS: "loading threads",
}


def scaling_document(found: ScalingFigures) -> Document:
    """Return what ``iobench simulate`` says."""
    known = None if found.limit is None else found.limit.first_unknown(found.job.demand)
    return Document(
        title=f"{found.run}: {_measured(found.job)}",
        sections=(
            Section("verdict", "", sentences(found.verdict)),
            Section("ranks", "", (_table(found.curve.first_epoch, known),)),
            Section("assumed", "Assumptions", sentences(_assumed(found))),
        ),
        figures=lambda: to_plain(found),
    )


def _measured(job: MeasuredJob) -> str:
    demand = job.demand
    size = f"batches of {units.count(demand.batch_size)}"
    kept = kept_words(job.n_batches, job.n_folded)
    told = [f"{ranks_words(demand.n_ranks)} measured", size, _loader(demand), kept]
    return ", ".join(filter(None, told))


def _loader(demand: RankDemand) -> str:
    makers = OF_RULE[demand.rule]
    if demand.rule is LoaderRule.SERIAL:
        return makers
    if demand.workers == 1:
        makers = makers.removesuffix("es" if makers.endswith("sses") else "s")
    ahead = f"{units.count(demand.ahead)} batch{'es' * (demand.ahead != 1)} ahead"
    return f"{demand.workers} {makers}, {ahead}"


def _table(points: Sequence[ScalingPoint], unknown_from: int | None) -> Table:
    measured = unknown_from is not None
    names = ["ranks", "samples/s", *["if storage delivers all"] * measured, "spread", "efficiency"]
    names += ["exposed", "spread", "storage used"]
    rows: list[tuple[Cell, ...]] = []
    for point in points:
        rate, exposed, used = point.samples_per_s, point.exposed_fraction, point.storage_fraction
        rows.append(
            (
                Count(point.ranks),
                SampleRate(rate.median, _bound("<=", units.sample_rate(rate.median), point)),
                *[_free(point, unknown_from)] * measured,
                _range(rate, units.sample_rate),
                Share(point.efficiency),
                Share(exposed.median, _bound(">=", units.fraction(exposed.median), point)),
                _range(exposed, units.fraction),
                NOT_APPLICABLE if used is None else Share(used),
            )
        )
    return Table("", tuple(map(Column, names)), tuple(rows))


def _free(point: ScalingPoint, unknown_from: int | None) -> Cell:
    """Return what a job would do if storage gave all that is asked for, where that is not known."""
    if unknown_from is None or point.ranks < unknown_from:
        return NOT_APPLICABLE
    return SampleRate(point.free_samples_per_s, "<= {}")


def _bound(sign: str, text: str, point: ScalingPoint) -> str:
    """Return the words around a figure that is a bound, unless its text says so itself."""
    return f"{sign} {{}}" if point.is_bound and text[0] not in "<>" else "{}"


def _range(spread: Spread, shown: Callable[[float], str]) -> str:
    low, high = shown(spread.low), shown(spread.high)
    return f"{low}..{high}" if low != high else NOT_APPLICABLE


def _assumed(found: ScalingFigures) -> Iterator[str]:
    """Yield what the figures rest on."""
    curve, job, demand = found.curve, found.job, found.job.demand
    yield (
        f"Every rank does what was measured, on batches drawn from {units.count(len(demand))}. A "
        f"step takes {units.duration(demand.compute_median_ns)} besides loading (median), "
        "and waits for the slowest rank. Figures are for the steady state, without the start of "
        "epochs. Communication that the run did not have is not included."
    )
    if demand.n_ranks > 1:
        yield (
            f"The batches come from {units.count(job.n_looked_at)} ranks of the job. The step time "
            "besides loading is that of the rank that waited least for the others."
        )
    if job.n_loaders > 1:
        yield f"The run has {job.n_loaders} loaders; this one trains, or has most batches."
    delivered = job.delivered_nbytes
    loaded = "" if delivered is None else f" and has {units.nbytes(delivered)} once it is loaded"
    yield (
        f"A sample takes {units.nbytes(demand.sample_nbytes)} from storage, in "
        f"{units.number(job.reads_per_sample)} read{'s' * (job.reads_per_sample != 1)},{loaded}; "
        "concurrent reads share storage equally."
    )
    yield _reading(found)
    yield from _measured_limit(found)
    if not demand.reading_known:
        yield (
            "Reading is not a separate stage here: the off-CPU time of the stage that contains "
            "it counts as reading."
        )
    if not demand.in_order:
        yield "The model takes batches in order; the run's loader took whichever was ready."
    yield from _epoch(found)
    error = curve.model_error_fraction
    if error is not None:
        sign = "longer" if error > 0 else "shorter"
        yield f"For the measured run, the model's step is {units.fraction(abs(error))} {sign}."
    if any(point.is_bound for point in curve.first_epoch):
        yield (
            f"Beyond {units.count(BOUND_FACTOR * demand.n_ranks)} ranks ({BOUND_FACTOR} times what "
            "was measured), figures are bounds for this step time: upper bounds of samples/s, "
            "lower bounds of the exposed share."
        )
    yield f"Spread: over {curve.n_seeds} simulations with newly drawn batches."


def _reading(found: ScalingFigures) -> str:
    cold = found.job.cold_fraction
    if cold is not None and cold >= COLD:
        return "The time of a read by one rank alone was measured from storage."
    source = "It was not counted whether the run read from storage or from the page cache"
    if cold is not None:
        source = f"{units.fraction(1 - cold)} of what the run read came from the page cache"
    return (
        f"{source}, so the time of a read from this storage is unknown and is assumed to be no "
        "slower."
    )


def _measured_limit(found: ScalingFigures) -> Iterator[str]:
    """Yield what was measured of storage, and from where on nothing was."""
    limit, demand = found.limit, found.job.demand
    if limit is None:
        return
    first = limit.first_unknown(demand)
    yield (
        f"A probe of {limit.mount} on {units.moment(limit.wall_ns)} got "
        f"{units.byte_rate(limit.bytes_per_s)} with reads of {units.nbytes(limit.request_nbytes)} "
        f"from one node. Nothing was measured beyond {units.count(limit.readers)} "
        f"reader{'s' * (limit.readers != 1)}: from {ranks_words(first)} on, storage may deliver "
        "more than the probe got. The first column of samples/s assumes that it does not, the "
        "second that it delivers everything requested."
    )


def _epoch(found: ScalingFigures) -> Iterator[str]:
    """Yield the check that MLPerf HPC prints: an epoch's reading beside the epoch."""
    last, demand = found.curve.first_epoch[-1], found.job.demand
    nbytes, rate = found.job.dataset_nbytes, last.samples_per_s.median
    if not (nbytes and demand.sample_nbytes and rate):
        return
    n_samples = nbytes / demand.sample_nbytes
    of_step = last.ranks * demand.batch_size
    if of_step > n_samples * (1 + 1e-9):
        yield (
            f"A step of {ranks_words(last.ranks)} takes {units.count(of_step)} samples, more than "
            f"the {units.count(round(n_samples))} of an epoch: that many ranks need a larger data "
            "set, or smaller batches."
        )
        return
    reading = ""
    if found.storage.bytes_per_s:
        reading_ns = nbytes / found.storage.bytes_per_s * 1e9
        reading = f"; storage needs {units.duration(reading_ns)} to read it"
    yield (
        f"With {ranks_words(last.ranks)} an epoch of {units.nbytes(nbytes)} takes "
        f"{units.duration(n_samples / rate * 1e9)}{reading}."
    )
