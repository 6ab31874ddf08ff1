"""What would help a validation that waits: replayed as the training is, by its own passes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.analysis.replay.changes import Change
from iobench.analysis.replay.simulated_run import can_replay
from iobench.report import units
from iobench.report.document import (
    Column,
    Command,
    Duration,
    Section,
    Sentence,
    Share,
    Table,
    sentences,
)
from iobench.report.sentences import validation_words
from iobench.subjects.advice.candidates import WORTH_SAYING, Found, replayed_candidates, worthless
from iobench.subjects.advice.commands import commands_of
from iobench.subjects.advice.figures import Evidence, Gain, ValidationAdvice, ValidationChange
from iobench.subjects.advice.gains import GainPredictor
from iobench.subjects.advice.levers import Candidate, Lever, Reason, RuledOut
from iobench.subjects.advice.measured import reported_rank
from iobench.subjects.contract import Subject
from iobench.subjects.replay.figures import is_told

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iobench.analysis.run import RankRun
    from iobench.report.document import Block
    from iobench.subjects.advice.figures import LoadingWay
    from iobench.subjects.advice.measured import MeasuredRank

LARGER: Final = 4
"""How many times as large a batch is tried."""
HOW: Final = {
    Evidence.MEASURED: "measured",
    Evidence.REPLAYED: "by replay",
    Evidence.BOUND: "at most, to be measured",
}


def validation_advice(rank: MeasuredRank) -> ValidationAdvice | None:
    """Return what would help the validations of a training; None where they hardly wait."""
    exposure = rank.exposure
    part, job = exposure.validation, exposure.job
    if part is None or not validation_words(part, job):
        return None
    job_ns = None if job is None else job.wall_ns
    changes: list[ValidationChange] = []
    ruled_out: list[RuledOut] = []
    unknown = []
    for way in rank.validations:
        if not can_replay(way.run) or not way.run.wall_ns:
            unknown.append(f"{_name(way, rank)}: {way.run.reason or 'nothing was measured'}")
            continue
        predictor = GainPredictor((way,), rank.circumstances)
        if not is_told(predictor.error_fraction):
            error = units.signed_fraction(predictor.error_fraction)
            unknown.append(f"{_name(way, rank)}: the replay misses its time by {error}")
            continue
        for item in _candidates(predictor):
            told = _judged(item, predictor, rank, job_ns)
            if isinstance(told, RuledOut):
                ruled_out.append(told)
            else:
                changes.append(told)
    changes.sort(key=lambda each: (each.gain.evidence is Evidence.BOUND, -each.saved_ns))
    if rank.beside_ns:
        most = rank.beside_ns / part.wall_ns
        gain = Gain(Evidence.BOUND, None, 0.0, most)
        beside = Candidate((Lever.BESIDE,))
        changes.append(ValidationChange(beside, gain, "", rank.beside_ns, job_ns))
    top = part.stages[0] if part.stages else None
    return ValidationAdvice(
        wall_ns=part.wall_ns,
        wait_ns=part.wait_ns,
        n_batches=part.n_batches,
        job_ns=job_ns,
        stage=top.stage if top is not None and top.exposed_ns else None,
        changes=tuple(changes),
        ruled_out=tuple(ruled_out),
        unknown=tuple(unknown),
    )


def _candidates(predictor: GainPredictor) -> Iterator[Found | RuledOut]:
    """Yield what may be tried: what the loader is set to, and larger batches."""
    yield from replayed_candidates(predictor)
    size = predictor.run.batch_size
    if size:
        candidate = Candidate((Lever.BATCH,), {"batch_size": LARGER * size})
        yield Found(candidate, predictor.resized(LARGER * size))


def _judged(
    item: Found | RuledOut, predictor: GainPredictor, rank: MeasuredRank, job_ns: int | None
) -> ValidationChange | RuledOut:
    """Return a change with what it saves of the run, or why it is not proposed."""
    found = (worthless(item) or item) if isinstance(item, Found) else item
    if isinstance(found, RuledOut):
        return found
    way = predictor.baseline
    starts_ns = _starts_ns(found, predictor, rank) if found.starts else 0
    if starts_ns:
        found, starts_ns = _fewest_starts(found, predictor, rank)
    saved_ns = round(found.gain.expected * way.run.all_ns) - (starts_ns or 0)
    if saved_ns < WORTH_SAYING * way.run.all_ns:
        return RuledOut(found.candidate, Reason.GAINS_NOTHING, saved_ns / way.run.all_ns)
    return ValidationChange(
        candidate=found.candidate,
        gain=found.gain,
        loader=_name(way, rank) if len(rank.validations) > 1 else "",
        saved_ns=saved_ns,
        job_ns=job_ns,
        starts_ns=starts_ns,
        commands=commands_of(found.candidate, rank.facts, way),
    )


def _starts_ns(found: Found, predictor: GainPredictor, rank: MeasuredRank) -> int | None:
    """Return what starting workers takes, by those of the training; None where it had none.

    They are made one after another, and begin side by side.
    """
    train = None if rank.way is None else rank.way.run
    if train is None or not train.workers or train.opening_ns is None:
        return None
    began = np.flatnonzero(train.startup_ns == train.startup_ns.max())[0]
    each_ns = int(train.opening_ns[began]) // train.workers
    once = Lever.KEEP_WORKERS in found.candidate.levers
    passes = 1 if once else len(predictor.baseline.run.startup_ns)
    return passes * (_workers(found) * each_ns + int(train.startup_ns[began]))


def _fewest_starts(found: Found, predictor: GainPredictor, rank: MeasuredRank) -> tuple[Found, int]:
    """Return the number of workers that saves most, their start counted, and what that takes."""
    name = next(
        name for name, value in found.candidate.settings.items() if value == _workers(found)
    )
    best: tuple[int, Found, int] | None = None
    for number in range(1, _workers(found) + 1):
        settings = {**found.candidate.settings, name: number}
        gain = predictor.gain(Change(workers=number), parallel=True)
        one = replace(found, candidate=replace(found.candidate, settings=settings), gain=gain)
        starts_ns = _starts_ns(one, predictor, rank) or 0
        saved_ns = round(gain.expected * predictor.baseline.run.all_ns) - starts_ns
        if best is None or saved_ns > best[0]:
            best = saved_ns, one, starts_ns
    assert best is not None
    return best[1:]


def _workers(found: Found) -> int:
    """Return how many workers a candidate has."""
    settings = found.candidate.settings
    return int(settings.get("num_workers", settings.get("workers", 0)))


def _name(way: LoadingWay, rank: MeasuredRank) -> str:
    return way.run.name.removeprefix(f"{rank.path.name}, ")


def best_change(found: ValidationAdvice) -> ValidationChange | None:
    """Return what helps most by replay; where nothing does, what may at most."""
    return found.changes[0] if found.changes else None


def change_words(change: ValidationChange) -> str:
    """Return what a change saves, of this run and of the job."""
    of_job = change.saved_of_job_fraction
    share = "" if of_job is None else f", {units.fraction(of_job)} of the job"
    of_loader = f" of {change.loader}" if change.loader else ""
    told = change.gain.is_proven or change.gain.evidence is Evidence.BOUND
    return (
        f"{change.candidate.title}{of_loader}: saves {units.duration(change.saved_ns)}{share}, "
        f"{HOW[change.gain.evidence]}{'' if told else ', with unknown certainty'}"
        f"{', minus worker start-up' * (change.starts_ns is None)}"
    )


def validation_section(found: ValidationAdvice) -> Section:
    """Return what a validation waits, and what would make it wait less, by how much."""
    of_job = found.wait_of_job_fraction
    share = "" if of_job is None else f", {units.fraction(of_job)} of the job"
    lead = (
        f"Validation, test and prediction passes take {units.duration(found.wall_ns)}; "
        f"{units.duration(found.wait_ns)} of that is waiting for data{share}."
    )
    if found.changes:
        lead += " Each change below is considered alone; savings apply to this run."
    blocks: list[Block] = [Sentence(lead)]
    if found.changes:
        blocks.append(_table(found.changes, found.wall_ns))
        blocks += sentences(_starts(found.changes))
        blocks += [Command(line) for each in found.changes[:1] for line in each.commands]
    blocks += sentences(
        f"Not proposed: {each.candidate.title}: {each.sentence}" for each in found.ruled_out
    )
    blocks += sentences(f"Not replayed: {text}." for text in found.unknown)
    return Section("faster_validation", "What would help the validation", tuple(blocks))


def _table(changes: Sequence[ValidationChange], wall_ns: int) -> Table:
    return Table(
        "",
        (
            *(Column("change"), Column("saves", "time"), Column("of the job")),
            *(Column("of the validation"), Column("")),
        ),
        tuple(
            (
                f"{each.candidate.title}{f' of {each.loader}' * bool(each.loader)}",
                Duration(each.saved_ns),
                Share(each.saved_of_job_fraction),
                Share(each.saved_ns / wall_ns if wall_ns else None),
                HOW[each.gain.evidence],
            )
            for each in changes
        ),
    )


def _starts(changes: Sequence[ValidationChange]) -> Iterator[str]:
    """Yield what starting workers takes, or that it is unknown."""
    if any(each.starts_ns is None for each in changes):
        yield (
            "Worker start-up is not included, because this run started none: it is paid once where "
            "workers are kept, else in each pass."
        )
    for each in changes:
        if each.starts_ns:
            yield (
                f"Worker start-up is included: {units.duration(each.starts_ns)}, as measured for "
                "the training's workers."
            )


def _of_run(run: RankRun) -> ValidationAdvice | None:
    return validation_advice(run.once(reported_rank))


def _of_job(ranks: Sequence[ValidationAdvice]) -> ValidationAdvice:
    """Return what helps the training process whose validations wait longest."""
    return max(ranks, key=lambda each: each.wait_ns)


SUBJECT: Final = Subject("faster_validation", 65, _of_run, validation_section, _of_job)
"""What would help the validation, as the entry point names it."""
