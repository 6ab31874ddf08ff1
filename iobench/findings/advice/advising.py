"""From ways of loading that were measured to ranked advice with its price."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from iobench.analysis.break_even import BreakEven, predict_full_conversion
from iobench.analysis.diagnosis import HIDDEN_FRACTION
from iobench.analysis.replay.runs import beginning_of
from iobench.findings.advice.candidates import (
    READ_STAGES,
    Found,
    bounded_candidates,
    measured_candidates,
    replayed_candidates,
    staged_nbytes,
    worthless,
)
from iobench.findings.advice.commands import commands_of
from iobench.findings.advice.figures import (
    Advice,
    AdviceOutcome,
    AdvisedChange,
    Cost,
    Evidence,
)
from iobench.findings.advice.gains import PAYOFF_FACTOR, GainPredictor
from iobench.findings.advice.levers import Lever, Reason, RuledOut
from iobench.findings.advice.measured import ways_of
from iobench.findings.faster_stages import is_trusted, payoffs
from iobench.recording.kinds import MIXED_KINDS, WORKER_KINDS, Kind

if TYPE_CHECKING:
    from iobench.analysis.replay.loader_run import LoaderRun
    from iobench.findings.advice.figures import Circumstances, LoadingWay
    from iobench.findings.advice.measured import MeasuredRank
    from iobench.findings.faster_stages import Payoffs

PAYOFF_BATCHES: Final = 500
OF_STORE: Final = {Lever.FORMAT, Lever.CHUNKS, Lever.CODEC}
FUSED: Final = frozenset(kind.spelled for kind in MIXED_KINDS)


def advice_of(measured: Iterable[MeasuredRank], *, epochs: int | None = None) -> Advice | None:
    """Return the advice on a run, for so many epochs; None without a batch."""
    methods, circumstances = ways_of(measured)
    if not methods:
        return None
    if epochs is not None:
        circumstances = replace(circumstances, epochs=epochs)
    return advise(methods, circumstances)


def advise(ways: Sequence[LoadingWay], circumstances: Circumstances) -> Advice:
    """Return what would help, ranked by what it gains.

    Parameters
    ----------
    ways : sequence of LoadingWay
        Ways of loading the same samples, run in turns; all others are compared with the first.

    Raises
    ------
    ValueError
        If there is no way of loading.
    """
    if not ways:
        raise ValueError("expected one way of loading or more")
    baseline = ways[0]
    if not len(baseline.run) or not baseline.window.wall_ns:
        return Advice(AdviceOutcome.NO_BATCH, baseline, circumstances)
    sample_ns, samples = baseline.sample_ns, circumstances.n_samples_all
    epoch_s = None if sample_ns is None or not samples else sample_ns * samples / 1e9
    predictor = None
    if baseline.run.can_replay:
        predictor = GainPredictor(ways, circumstances)
    trusted = predictor is not None and is_trusted(predictor.error_fraction)
    items = [*measured_candidates(ways)]
    if predictor is not None and trusted:
        items += replayed_candidates(predictor)
        items += bounded_candidates(predictor)
    judged = [worthless(item) or item if isinstance(item, Found) else item for item in items]
    every = [
        _priced(each, ways, circumstances, epoch_s) for each in judged if isinstance(each, Found)
    ]
    priced = [each for each in every if not _too_late(each, circumstances)]
    late = [late for each in every if (late := _too_late(each, circumstances))]
    # Who waits for files to open waits for as many of them with any loader, but for one of a store.
    stages = baseline.window.stages
    opens = bool(stages) and stages[0].kind == Kind.OPEN

    def rank(each: AdvisedChange) -> tuple[bool, float]:
        bound = each.gain.evidence is Evidence.BOUND
        opens_as_many = opens and bound and not OF_STORE & {*each.candidate.levers}
        return opens_as_many, -each.gain.expected

    priced.sort(key=rank)
    advice = Advice(
        outcome=AdviceOutcome.ADVICE,
        baseline=baseline,
        circumstances=circumstances,
        error_fraction=None if predictor is None else predictor.error_fraction,
        payoffs=_payoffs(baseline.run) if trusted else None,
        changes=tuple(each for each in priced if each.gain.is_proven),
        to_measure=tuple(each for each in priced if not each.gain.is_proven),
        ruled_out=(*(each for each in judged if isinstance(each, RuledOut)), *late),
        epoch_s=epoch_s,
    )
    return replace(advice, outcome=_outcome(advice, trusted=trusted))


def _payoffs(run: LoaderRun) -> Payoffs:
    return payoffs(beginning_of(run, PAYOFF_BATCHES), PAYOFF_FACTOR)


def _outcome(advice: Advice, *, trusted: bool) -> AdviceOutcome:
    if advice.changes:
        return AdviceOutcome.ADVICE
    if (advice.baseline.wait_fraction or 0.0) < HIDDEN_FRACTION:
        return AdviceOutcome.NOTHING_TO_GAIN
    if not trusted:
        return AdviceOutcome.OPAQUE if advice.error_fraction is None else AdviceOutcome.WITHHELD
    if advice.to_measure:
        return AdviceOutcome.ADVICE
    if advice.payoffs is not None and advice.payoffs.no_single_stage_helps:
        return AdviceOutcome.NO_SINGLE_STAGE
    return AdviceOutcome.NOTHING_FOUND


def _priced(
    found: Found, ways: Sequence[LoadingWay], circumstances: Circumstances, epoch_s: float | None
) -> AdvisedChange:
    saved_s = None if epoch_s is None else epoch_s * found.gain.expected
    cost = _cost(found, ways, circumstances)
    return AdvisedChange(
        candidate=found.candidate,
        gain=found.gain,
        cost=cost,
        saved_s=saved_s,
        break_even=None if cost.spent_s == 0.0 else BreakEven.of(cost.spent_s, epoch_s, saved_s),
        commands=commands_of(found.candidate, circumstances.facts, ways[0]),
    )


def _too_late(change: AdvisedChange, circumstances: Circumstances) -> RuledOut | None:
    """Return that staging has not paid by the end of the training; None where it has."""
    after = None if change.break_even is None else change.break_even.epochs
    last = circumstances.epochs
    staged = "stage" in change.candidate.settings
    if not staged or after is None or last is None or last > after:
        return None
    return RuledOut(change.candidate, Reason.TOO_FEW_EPOCHS, after, last)


def _cost(found: Found, ways: Sequence[LoadingWay], circumstances: Circumstances) -> Cost:
    baseline, levers = ways[0], {*found.candidate.levers}
    if {Lever.WORKERS, Lever.PREFETCH} & levers:
        batch_nbytes = (baseline.batch_size or 0) * (circumstances.sample_nbytes or 0)
        nbytes = found.batches_more * batch_nbytes
        unknown = found.batches_more and not batch_nbytes
        return Cost(memory_nbytes=None if unknown else nbytes, starts=found.starts)
    if "stage" in found.candidate.settings:
        size = staged_nbytes(baseline, circumstances)
        rate = _staging_rate(baseline)
        cost = Cost(stage_s=size / rate if size and rate else None)
        near, place = circumstances.facts.near, found.candidate.settings["stage"]
        if near and any(each.in_memory and each.path == place for each in near.places):
            return replace(cost, memory_nbytes=size)
        return replace(cost, disk_nbytes=size)
    if Lever.CACHE in levers:
        return Cost(memory_nbytes=baseline.all_nbytes(circumstances.files_nbytes))
    return _cost_of_store(found, ways, circumstances) if OF_STORE & levers else Cost()


def _cost_of_store(found: Found, ways: Sequence[LoadingWay], circumstances: Circumstances) -> Cost:
    """Return what the whole dataset takes in another format: from a probe, else what is known."""
    baseline, method = ways[0], found.way
    samples, nbytes = circumstances.n_samples_all, circumstances.sample_nbytes
    if method is not None and method.given is not None:
        return Cost()  # it is there
    making_s = _making_s(baseline, circumstances)
    least = Cost(making_s, at_least=making_s is not None)
    if method is not None and method.store is not None and method.store.n_samples:
        full = predict_full_conversion(
            n_samples=method.store.n_samples_all,
            probe_n_samples=method.store.n_samples,
            probe_nbytes=method.store.nbytes,
            probe_convert_s=_convert_s(method, ways),
            source=baseline.window,
            store=method.window,
        )
        if full.convert_s is not None:
            return Cost(full.convert_s, disk_nbytes=full.nbytes)
        return replace(least, disk_nbytes=full.nbytes)
    stored = samples * nbytes if samples and nbytes else None
    return replace(least, disk_nbytes=stored)


def _staging_rate(baseline: LoadingWay) -> float | None:
    """Return how many bytes a second may be copied, as this run's readers got them at once."""
    run = baseline.run
    kinds = [name.partition(":")[0] for name in run.stages]
    waits = run.work_ns - np.where([kind in FUSED for kind in kinds], np.maximum(run.cpu_ns, 0), 0)
    spent_ns = int(waits[:, [kind in READ_STAGES for kind in kinds]].sum())
    nbytes = int(run.read_nbytes.sum())
    if spent_ns <= 0 or nbytes <= 0 or (run.read_nbytes < 0).any():
        return None
    return nbytes / spent_ns * 1e9 * max(1, run.workers)


def _convert_s(way: LoadingWay, ways: Sequence[LoadingWay]) -> float | None:
    """Return how long a way's probe took; of several that read it, only one made it."""
    same = (each.store for each in ways if each.format == way.format)
    return next((each.convert_s for each in same if each and each.convert_s is not None), None)


def _making_s(baseline: LoadingWay, circumstances: Circumstances) -> float | None:
    """Return how long all CPUs take to make all samples once, whatever writing them takes."""
    window, samples = baseline.window, circumstances.n_samples_all
    if not window.n_samples or not samples or not circumstances.cpus:
        return None
    busy_ns = sum(row.busy_ns for row in window.stages if row.kind in WORKER_KINDS)
    return busy_ns / window.n_samples * samples / circumstances.cpus / 1e9
