"""From ways of loading that were measured to ranked advice with its price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from iobench.analysis.advice.bounds import bounded_candidates
from iobench.analysis.advice.break_even import BreakEven, DeviceBill, bill_of
from iobench.analysis.advice.candidates import Found, measured_candidates, replayed_candidates
from iobench.analysis.advice.figures import (
    Advice,
    AdvisedChange,
    Circumstances,
    Cost,
    LoadingWay,
    RuledOut,
)
from iobench.analysis.advice.gains import GainPredictor, beginning_of
from iobench.analysis.advice.levers import AdviceOutcome, Evidence, Lever, Reason
from iobench.analysis.conversion import predict_full_conversion
from iobench.analysis.diagnosis import HIDDEN_FRACTION, hidden_fraction
from iobench.analysis.replay.payoffs import payoffs
from iobench.analysis.replay.simulated_run import can_replay
from iobench.recording.kinds import WORKER_KINDS

__all__ = ["WITHHELD_ABOVE", "advise"]

WITHHELD_ABOVE: Final = 0.1
"""Of the replay's error: nothing that rests on it is said."""
WORTH_SAYING: Final = 0.01
PAYOFF_BATCHES: Final = 500


def advise(
    ways: Sequence[LoadingWay],
    circumstances: Circumstances,
    *,
    ranks: int = 1,
    epochs: int = 1,
    idle_fraction: float | None = None,
    n_loaders: int = 1,
) -> Advice:
    """Return what would help, ranked by what it gains.

    Parameters
    ----------
    ways : sequence of LoadingWay
        Ways of loading the same samples, run in turns; all others are compared with the first.
    circumstances : Circumstances
    ranks, epochs : int
        Of the training whose bill is made.
    idle_fraction : float, optional
        Share of the steady state in which the devices had no work for want of input, where that
        was measured.
    n_loaders : int
        How many the run has.

    Raises
    ------
    ValueError
        If there is no way of loading.
    """
    if not ways:
        raise ValueError("expected one way of loading or more")
    baseline = ways[0]
    blank = Advice(
        outcome=AdviceOutcome.NO_BATCH,
        baseline=baseline,
        error_fraction=None,
        wait_fraction=baseline.window.wait_fraction,
        hidden_fraction=hidden_fraction(baseline.window),
        n_loaders=n_loaders,
        in_script=circumstances.is_script,
        loop_fraction=circumstances.loop_fraction,
    )
    if not len(baseline.run) or not baseline.window.wall_ns:
        return blank
    epoch_s = _epoch_s(baseline, circumstances)
    advice = replace(
        blank,
        epoch_s=epoch_s,
        bill=_bill(baseline, circumstances, ranks, epochs, idle_fraction),
    )
    found: list[Found] = []
    ruled_out: list[RuledOut] = []
    predictor = _predictor(baseline, circumstances)
    trusted = predictor is not None and abs(predictor.error_fraction) <= WITHHELD_ABOVE
    items = [*measured_candidates(baseline, ways)]
    if predictor is not None and trusted:
        items += replayed_candidates(baseline, circumstances, predictor)
        items += bounded_candidates(baseline, ways, circumstances, predictor)
    for item in items:
        if isinstance(item, RuledOut):
            ruled_out.append(item)
        elif (why := _worthless(item)) is not None:
            ruled_out.append(why)
        else:
            found.append(item)
    priced = [_priced(each, ways, circumstances, epoch_s) for each in found]
    part = beginning_of(baseline.run, PAYOFF_BATCHES)
    priced.sort(key=lambda each: -each.gain.expected)
    advice = replace(
        advice,
        error_fraction=None if predictor is None else predictor.error_fraction,
        payoffs=payoffs(part) if trusted else None,
        changes=tuple(each for each in priced if each.gain.is_proven),
        to_measure=tuple(each for each in priced if not each.gain.is_proven),
        ruled_out=tuple(ruled_out),
    )
    return replace(advice, outcome=_outcome(advice, trusted=trusted))


def _predictor(baseline: LoadingWay, circumstances: Circumstances) -> GainPredictor | None:
    if not can_replay(baseline.run):
        return None
    return GainPredictor(baseline.run, circumstances.machine)


def _outcome(advice: Advice, *, trusted: bool) -> AdviceOutcome:
    if (advice.wait_fraction or 0.0) < HIDDEN_FRACTION and not advice.changes:
        return AdviceOutcome.NOTHING_TO_GAIN
    if not trusted and not advice.changes:
        return AdviceOutcome.OPAQUE if advice.error_fraction is None else AdviceOutcome.WITHHELD
    if advice.changes or advice.to_measure:
        return AdviceOutcome.ADVICE
    if advice.payoffs is not None and advice.payoffs.no_single_stage_helps:
        return AdviceOutcome.NO_SINGLE_STAGE
    return AdviceOutcome.NOTHING_FOUND


def _levers(change: AdvisedChange) -> tuple[Lever, ...]:
    return change.candidate.levers


def _worthless(found: Found) -> RuledOut | None:
    gain = found.gain
    if gain.saved is None:
        if gain.expected >= WORTH_SAYING:
            return None
        return RuledOut(found.candidate, Reason.NOT_WAITED_FOR, gain.expected)
    if gain.saved >= WORTH_SAYING and gain.is_proven is not False:
        return None
    lost = gain.evidence is Evidence.MEASURED and gain.saved >= WORTH_SAYING
    reason = Reason.WITHIN_NOISE if lost else Reason.GAINS_NOTHING
    error = None if gain.low is None else gain.saved - gain.low
    return RuledOut(found.candidate, reason, gain.saved, error)


def _priced(
    found: Found, ways: Sequence[LoadingWay], circumstances: Circumstances, epoch_s: float | None
) -> AdvisedChange:
    gain = found.gain
    saved_s = None if epoch_s is None else epoch_s * gain.expected
    cost = _cost(found, ways, circumstances)
    break_even = None
    if cost.convert_s != 0.0:
        after_s = None if epoch_s is None or saved_s is None else epoch_s - saved_s
        break_even = BreakEven(cost.convert_s, epoch_s, after_s, cost.at_least)
    return AdvisedChange(found.candidate, gain, cost, saved_s, break_even)


def _cost(found: Found, ways: Sequence[LoadingWay], circumstances: Circumstances) -> Cost:
    baseline, candidate = ways[0], found.candidate
    batch_nbytes = _batch_nbytes(baseline, circumstances)
    if {Lever.WORKERS, Lever.PREFETCH} & set(candidate.levers):
        more = found.batches_more
        nbytes = None if more and not batch_nbytes else more * batch_nbytes
        return Cost(memory_nbytes=nbytes, starts=found.starts)
    if Lever.PAGE_CACHE in candidate.levers:
        return Cost(memory_nbytes=baseline.all_nbytes(circumstances.files_nbytes))
    if {Lever.FORMAT, Lever.OFFLINE, Lever.MEMORY, Lever.CHUNKS, Lever.CODEC} & set(
        candidate.levers
    ):
        return _cost_of_store(found, ways, circumstances)
    return Cost()


def _cost_of_store(found: Found, ways: Sequence[LoadingWay], circumstances: Circumstances) -> Cost:
    """Return what the whole dataset takes in another format: from a probe, else what is known."""
    baseline = ways[0]
    samples, nbytes = circumstances.n_samples_all, circumstances.sample_nbytes
    making_s = _making_s(baseline, circumstances)
    way = found.way
    if way is not None and way.store is not None and way.store.n_samples:
        full = predict_full_conversion(
            n_samples=way.store.n_samples_all,
            probe_n_samples=way.store.n_samples,
            probe_nbytes=way.store.nbytes,
            probe_convert_s=_convert_s(way, ways),
            source=baseline.window,
            store=way.window,
        )
        if full.convert_s is not None:
            return Cost(full.convert_s, disk_nbytes=full.nbytes)
        return Cost(making_s, at_least=making_s is not None, disk_nbytes=full.nbytes)
    stored = samples * nbytes if samples and nbytes else None
    if Lever.MEMORY in found.candidate.levers:
        return Cost(making_s, making_s is not None, disk_nbytes=0, memory_nbytes=stored)
    return Cost(making_s, at_least=making_s is not None, disk_nbytes=stored)


def _convert_s(way: LoadingWay, ways: Sequence[LoadingWay]) -> float | None:
    """Return how long a way's probe took; of several that read it, only one made it."""
    same = [
        each.store.convert_s
        for each in ways
        if each.store is not None and each.format == way.format
    ]
    return next((seconds for seconds in same if seconds is not None), None)


def _making_s(baseline: LoadingWay, circumstances: Circumstances) -> float | None:
    """Return how long all CPUs take to make all samples once, whatever writing them takes."""
    window, samples = baseline.window, circumstances.n_samples_all
    if not window.n_samples or not samples or not circumstances.cpus:
        return None
    busy_ns = sum(row.busy_ns for row in window.stages if row.kind in WORKER_KINDS)
    return busy_ns / window.n_samples * samples / circumstances.cpus / 1e9


def _batch_nbytes(baseline: LoadingWay, circumstances: Circumstances) -> int:
    return (baseline.run.batch_size or 0) * (circumstances.sample_nbytes or 0)


def _epoch_s(baseline: LoadingWay, circumstances: Circumstances) -> float | None:
    sample_ns, samples = baseline.sample_ns, circumstances.n_samples_all
    return None if sample_ns is None or not samples else sample_ns * samples / 1e9


def _bill(
    baseline: LoadingWay,
    circumstances: Circumstances,
    ranks: int,
    epochs: int,
    idle_fraction: float | None,
) -> DeviceBill | None:
    """Return the bill of a training; None where an epoch is not known."""
    sample_ns, samples = baseline.sample_ns, circumstances.n_samples_all
    if sample_ns is None or not samples:
        return None
    idle = idle_fraction
    if idle is None:
        idle = baseline.window.wait_fraction or 0.0
    # The devices' idle time, and the wait of whole epochs or of a whole run have starts in them.
    apart = idle_fraction is None and baseline.window is baseline.steady
    startups = baseline.run.startup_ns if apart else baseline.run.startup_ns[:0]
    return bill_of(
        ranks=ranks,
        epochs=epochs,
        n_samples=samples,
        sample_wall_ns=sample_ns,
        sample_idle_ns=sample_ns * idle,
        start_ns=float(startups.mean()) if len(startups) else 0.0,
        on_device=idle_fraction is not None,
    )
