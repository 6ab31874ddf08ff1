"""What is advised for runs of which one knows what helps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from schedules import pool

from iobench.analysis.replay.loader_run import LoaderRule
from iobench.analysis.replay.replay import replay_error
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run
from iobench.analysis.step_sums import RoundTimes, StepSums, step_sums
from iobench.recording.kinds import Kind
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.subjects.advice.advising import advise
from iobench.subjects.advice.figures import (
    Advice,
    AdviceOutcome,
    AdvisedChange,
    Circumstances,
    Evidence,
    LoadingWay,
    StoreProbe,
)
from iobench.subjects.advice.gains import beginning_of, gain_between
from iobench.subjects.advice.levers import Lever, Reason
from iobench.subjects.advice.section import advice_document, outcome_sentence
from iobench.subjects.replay.figures import predicted

MS = 1_000_000
GB = 10**9
BATCH = 4
"""Samples a batch in sketches."""


def way(
    durations: list[tuple[float, float, float]],
    *,
    workers: int = 2,
    step: float = 15.0,
    label: str = "source",
    framework: str = "torch",
    store: StoreProbe | None = None,
    **more: Any,
) -> LoadingWay:
    """Return a way of loading from ms of read, decode and collate for each batch."""
    whole_ns = [[round(each * MS) for each in stages] for stages in durations]
    sketch = pool(whole_ns, workers=workers, step_ns=round(step * MS), **more)
    profile = sketch.profile()
    measured = Run(profile).of_rank()
    exposure = measured.exposure
    (run,) = recorded_runs(Run(profile).of_rank())
    return LoadingWay(
        label=label,
        format=label,
        framework=framework,
        pipeline="own",
        run=replace(run, batch_size=BATCH),
        whole=replace(exposure.whole, n_samples=BATCH * len(run)),
        steady=None
        if exposure.steady is None
        else replace(exposure.steady, n_samples=BATCH * exposure.steady.n_batches),
        sums={exposure.window: step_sums(measured, exposure.window)},
        store=store,
    )


HERE = Circumstances(
    cpus=2,
    memory_nbytes=16 * GB,
    n_samples_all=1000,
    sample_nbytes=24_000_000,
    files_nbytes=2 * GB,
    cold_fraction=0.0,
)
SLOW = [(60.0, 30.0, 10.0)] * 60


def found(changes: tuple[AdvisedChange, ...], *levers: Lever) -> AdvisedChange | None:
    return next((each for each in changes if each.candidate.levers == levers), None)


def reasons(advice: Advice) -> dict[Lever, Reason]:
    return {lever: each.reason for each in advice.ruled_out for lever in each.candidate.levers}


def test_a_loop_that_hardly_waits_has_nothing_to_gain() -> None:
    advice = advise([way(SLOW, step=80.0)], HERE)
    assert advice.outcome is AdviceOutcome.NOTHING_TO_GAIN
    assert advice.baseline.hidden_fraction == pytest.approx(1.0)
    assert (advice.changes, advice.to_measure) == ((), ())


def test_stages_that_take_turns_in_holding_the_loop_up_have_no_single_help() -> None:
    turns = [(100.0, 0.0, 0.0), (0.0, 100.0, 0.0)] * 40
    advice = advise([way(turns, step=5.0, framework="")], replace(HERE, own_order=True))
    assert advice.payoffs is not None
    assert advice.payoffs.no_single_stage_helps
    assert advice.outcome is AdviceOutcome.NO_SINGLE_STAGE
    # Where samples may be finished beforehand both are gone at once: that helps, and is said.
    open_to_it = advise([way(turns, step=5.0)], HERE)
    assert open_to_it.outcome is AdviceOutcome.ADVICE
    assert found(open_to_it.to_measure, Lever.OFFLINE, Lever.FORMAT) is not None


def test_more_workers_gain_what_the_recurrence_says() -> None:
    one = way(SLOW, workers=1)
    advice = advise([one], replace(HERE, cpus=4))
    more = found(advice.changes, Lever.WORKERS)
    assert more is not None
    assert more.candidate.settings == {"workers": 4}
    assert more.gain.evidence is Evidence.REPLAYED
    assert more.gain.saved == pytest.approx(0.75, abs=0.02)  # a batch in 25 ms instead of 100
    assert more.gain.low <= 0.75 <= more.gain.high + 0.02
    assert more.cost.memory_nbytes == 3 * 2 * BATCH * 24_000_000
    assert more.break_even is None


def test_a_format_that_was_measured_beside_is_priced_and_ranked_first() -> None:
    probe = StoreProbe(n_samples=100, nbytes=GB, convert_s=5.0, n_samples_all=1000)
    source = way(SLOW)
    store = way([(30.0, 0.0, 10.0)] * 60, label="tfrecord", store=probe)
    advice = advise([source, store], HERE, ranks=2, epochs=3)
    best = advice.changes[0]
    assert best.candidate.levers == (Lever.FORMAT,)
    assert best.candidate.settings == {"format": "tfrecord"}
    assert best.gain.evidence is Evidence.MEASURED
    assert source.sample_ns is not None
    assert store.sample_ns is not None
    saved = 1 - store.sample_ns / source.sample_ns
    assert best.gain.saved == pytest.approx(saved)
    assert best.gain.low <= saved <= best.gain.high
    assert best.cost.convert_s == 50.0
    assert best.cost.disk_nbytes == 10 * GB
    epoch_s = source.sample_ns * 1000 / 1e9
    assert advice.epoch_s == pytest.approx(epoch_s)
    assert best.saved_s == pytest.approx(saved * epoch_s)
    assert best.break_even is not None
    assert best.break_even.epochs == pytest.approx(50.0 / (saved * epoch_s))
    assert advice.bill is not None
    assert 0 < advice.bill.idle_hours < advice.bill.all_hours
    assert [each.gain.expected for each in advice.changes] == sorted(
        (each.gain.expected for each in advice.changes), reverse=True
    )


def test_a_probe_that_was_there_costs_at_least_making_its_samples() -> None:
    probe = StoreProbe(n_samples=100, nbytes=GB, convert_s=None, n_samples_all=1000)
    source, store = way(SLOW), way([(30.0, 0.0, 10.0)] * 60, label="tfrecord", store=probe)
    best = advise([source, store], HERE).changes[0]
    assert best.cost.at_least
    assert best.break_even is not None
    assert best.break_even.at_least
    assert best.cost.convert_s == pytest.approx(0.1 / BATCH * 1000 / 2, rel=0.05)


def test_what_rests_on_a_replay_that_is_wrong_is_withheld_and_what_was_measured_is_not() -> None:
    source = way(SLOW)
    wrong = replace(source, run=replace(source.run, wall_ns=round(1.3 * source.run.wall_ns)))
    alone = advise([wrong], HERE)
    assert alone.outcome is AdviceOutcome.WITHHELD
    assert alone.error_fraction == pytest.approx(1 / 1.3 - 1, abs=0.01)
    assert (alone.changes, alone.to_measure, alone.payoffs) == ((), (), None)
    store = way([(30.0, 0.0, 10.0)] * 60, label="numpy")
    beside = advise([wrong, store], HERE)
    assert beside.outcome is AdviceOutcome.ADVICE
    assert {each.gain.evidence for each in beside.changes} == {Evidence.MEASURED}
    assert beside.to_measure == ()


def test_a_loader_that_nobody_saw_at_work_gets_no_advice() -> None:
    source = way(SLOW)
    hidden = replace(source, run=replace(source.run, rule=LoaderRule.OPAQUE, reason="not seen"))
    advice = advise([hidden], HERE)
    assert advice.outcome is AdviceOutcome.OPAQUE
    assert advice.error_fraction is None


def test_work_that_nobody_saw_is_in_no_share_of_what_is_hidden() -> None:
    source = way(SLOW, step=80.0)
    seen = source.window
    opaque = replace(
        seen.stages[0],
        stage="opaque",
        kind=Kind.OPAQUE,
        n_spans=0,
        busy_ns=MS,
        exposed_ns=MS,
        hidden_ns=0,
    )
    only = replace(source, steady=replace(seen, stages=(opaque,)))
    advice = advise([only], HERE)
    assert advice.baseline.hidden_fraction is None
    assert outcome_sentence(advice).startswith("Nothing to gain: no change of it can save more")
    both = replace(source, steady=replace(seen, stages=(*seen.stages, opaque)))
    assert advise([both], HERE).baseline.hidden_fraction == pytest.approx(1.0)


def test_what_is_impossible_is_ruled_out_with_its_reason() -> None:
    told = reasons(advise([way(SLOW)], HERE))
    assert told[Lever.PIN] is Reason.NO_ACCELERATOR
    assert told[Lever.PAGE_CACHE] is Reason.CACHED_ALREADY
    assert told[Lever.WORKERS] is Reason.NO_MORE_CPUS
    cold = replace(HERE, cold_fraction=0.9, files_nbytes=100 * GB)
    advice = advise([way(SLOW)], cold)
    told = reasons(advice)
    assert told[Lever.PAGE_CACHE] is Reason.TOO_LARGE
    assert told[Lever.MEMORY] is Reason.TOO_LARGE  # 24 GB of samples and 16 GB of memory
    assert told[Lever.CHUNKS] is Reason.SIZE_UNKNOWN
    native = reasons(advise([way(SLOW, framework="native")], HERE))
    assert native[Lever.LOADER] is Reason.IN_USE
    serial = reasons(advise([way(SLOW, workers=0)], HERE))
    assert serial[Lever.PREFETCH] is Reason.NO_WORKERS


def test_more_workers_than_cpus_are_proposed_only_where_they_wait_for_storage() -> None:
    one = way(SLOW, workers=1)
    off_cpu = replace(one, run=replace(one.run, cpu_ns=one.run.work_ns // 4))
    cold = advise([off_cpu], replace(HERE, cold_fraction=0.9))
    more = found(cold.changes, Lever.WORKERS)
    assert more is not None
    assert more.candidate.settings["workers"] in range(3, 9)
    # With 1 % from storage, workers off the CPU wait for a CPU.
    hardly = replace(HERE, cold_fraction=0.012)
    for circumstances, ways in (
        (HERE, off_cpu),
        (hardly, off_cpu),
        (replace(HERE, cold_fraction=0.9), one),
    ):
        change = found(advise([ways], circumstances).changes, Lever.WORKERS)
        assert change is not None
        assert change.candidate.settings == {"workers": 2}


def test_files_that_fit_into_memory_may_be_cached() -> None:
    advice = advise([way(SLOW)], replace(HERE, cold_fraction=0.9))
    cached = found(advice.to_measure, Lever.PAGE_CACHE)
    assert cached is not None
    assert cached.gain.saved is None
    # Reading 60 of 100 ms by two workers at a step of 15: 50 ms a batch become 20.
    assert cached.gain.high == pytest.approx(0.6, abs=0.02)
    assert cached.cost.memory_nbytes == 2 * GB


def test_what_lies_in_memory_is_no_slower_than_the_store_that_was_measured() -> None:
    probe = StoreProbe(n_samples=100, nbytes=GB, convert_s=None, n_samples_all=100)
    made = replace(probe, convert_s=5.0)
    stored = [(30.0, 0.0, 10.0)] * 60
    ways = [
        way(SLOW),
        way(stored, label="tfrecord", store=probe),
        way(stored, label="tfrecord", framework="native", store=made),
    ]
    advice = advise(ways, replace(HERE, cold_fraction=0.9, n_samples_all=100))
    memory = found(advice.to_measure, Lever.MEMORY)
    assert memory is not None
    assert memory.candidate.settings["format"] == "tfrecord"
    for change in advice.changes:
        # Whichever framework came first made the probe; it costs both ways the same.
        assert (change.cost.convert_s, change.cost.at_least) == (5.0, False)
        assert change.gain.saved is not None
        assert change.gain.saved <= memory.gain.high + 0.02


def test_rare_slow_batches_are_overtaken_out_of_order() -> None:
    generator = np.random.default_rng(7)
    slow = [(400.0 if generator.random() < 0.05 else 20.0, 5.0, 1.0) for _ in range(400)]
    advice = advise([way(slow, workers=4, step=8.0)], replace(HERE, cpus=4))
    change = found(advice.changes, Lever.OUT_OF_ORDER)
    assert change is not None
    assert (change.gain.saved or 0) > 0.05


def test_the_fast_loader_gains_no_more_than_what_does_not_compute() -> None:
    advice = advise([way(SLOW, handover_ns=5 * MS)], HERE)
    fast = found(advice.to_measure, Lever.LOADER)
    assert fast is not None
    assert fast.gain.evidence is Evidence.BOUND
    # Nobody knows that making computes: threads may be as many as wait, and 15 of 50 ms are left.
    assert fast.gain.high == pytest.approx(0.7, abs=0.02)
    one = way(SLOW, handover_ns=5 * MS)
    computing = replace(one, run=replace(one.run, cpu_ns=one.run.work_ns))
    fast = found(advise([computing], HERE).to_measure, Lever.LOADER)
    assert fast is not None
    # Of 50 ms a batch at two workers collating takes 5, and handing over is beside the work.
    assert fast.gain.high == pytest.approx(0.1, abs=0.02)


def test_a_run_without_a_batch_gets_no_advice() -> None:
    source = way(SLOW)
    empty = replace(
        source, whole=replace(source.whole, wall_ns=0, wait_ns=0, n_batches=0), steady=None
    )
    assert advise([empty], HERE).outcome is AdviceOutcome.NO_BATCH
    with pytest.raises(ValueError, match="one way"):
        advise([], HERE)


def test_without_sizes_and_an_epoch_the_advice_stands_and_its_price_is_unknown() -> None:
    advice = advise([way(SLOW)], Circumstances(cpus=2, cold_fraction=0.9))
    change = found(advice.to_measure, Lever.OFFLINE, Lever.FORMAT)
    assert change is not None
    assert (change.saved_s, change.cost.convert_s, change.cost.disk_nbytes) == (None, None, None)
    assert change.break_even is not None
    assert change.break_even.epochs is None
    assert advice.bill is None
    assert reasons(advice)[Lever.PAGE_CACHE] is Reason.SIZE_UNKNOWN


@settings(max_examples=8, deadline=None)
@example(
    durations=[
        (0.0, 0.0, 1.0),
        (0.0, 0.0, 2.0),
        *[(0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 1.0)],
    ]
    + [(0.0, 0.0, 0.0)] * 5,
    workers=3,
    step=0.0,
)
@example(durations=[(0.0, 0.0, 0.0)] * 10, workers=2, step=0.0)
@given(
    durations=st.lists(
        st.tuples(*[st.floats(0.0, 80.0) for _ in range(3)]), min_size=8, max_size=40
    ),
    workers=st.integers(0, 3),
    step=st.floats(0.0, 50.0),
)
def test_whatever_the_run_gains_are_shares_and_intervals_hold_them(
    durations, workers, step
) -> None:
    advice = advise([way(durations, workers=workers, step=step)], HERE)
    for each in advice.changes:
        assert each.gain.saved is not None
        assert 0.01 <= each.gain.saved <= 1
        assert each.gain.is_proven
        assert each.gain.low <= each.gain.saved <= each.gain.high <= 1
    for each in advice.to_measure:
        assert 0.01 <= each.gain.expected <= 1
        assert not each.gain.is_proven


def test_a_prediction_tells_apart_what_these_batches_gain_and_what_others_will() -> None:
    generator = np.random.default_rng(3)
    before = 100 + generator.normal(0, 10, 400)
    found = predicted(before, 0.8 * before, error=0.05)
    assert found.saved == pytest.approx(0.2)
    assert found.helps
    assert found.low is not None
    assert found.high is not None
    # Both replays are of the same batches, and gain the same; another run has other batches.
    assert found.low < 1 - 0.8 * 1.05 < 1 - 0.8 * 0.95 < found.high
    assert found.low == pytest.approx(1 - 0.8 * 1.05, abs=0.03)
    assert predicted(before, 0.97 * before, error=0.05).helps is False


@pytest.mark.parametrize("n_batches", [2, 3, 47])
def test_too_few_batches_prove_nothing(n_batches: int) -> None:
    few = predicted(np.full(n_batches, 100.0), np.full(n_batches, 50.0))
    assert (few.saved, few.low, few.high, few.helps) == (0.5, None, None, None)


def test_what_two_or_three_batches_gain_is_not_taken_as_proven() -> None:
    source = way([(60.0, 30.0, 10.0)] * 3)
    luck = way([(40.0, 20.0, 10.0)] * 3, label="tfrecord")
    advice = advise([source, luck], HERE)
    assert advice.changes == ()
    change = found(advice.to_measure, Lever.FORMAT)
    assert change is not None
    assert (change.gain.low, change.gain.high, change.gain.is_proven) == (None, None, None)
    text = TerminalRenderer().render(advice_document(advice, "run"))
    assert "too few batches to tell it from noise" in " ".join(text.split())
    assert outcome_sentence(advice).startswith("Nothing is sure to help")


def test_ways_that_took_turns_are_compared_turn_by_turn() -> None:
    # Of both alike a turn takes up to three times as long as another: the machine's doing.
    by_turn = np.array([10.0, 30.0, 12.0, 28.0, 15.0, 25.0]) * MS
    ways = [
        replace(
            way(SLOW, label=label),
            sums={"steady": in_turns(share * by_turn, begin, share * np.array([10.0, 30.0]) * MS)},
        )
        for begin, share, label in ((0, 1.0, "source"), (1, 0.9, "tfrecord"))
    ]
    paired = gain_between(*ways)
    assert paired is not None
    assert paired.saved == pytest.approx(0.1)
    assert paired.is_proven
    apart = [
        replace(each, sums={"steady": replace(each.sums["steady"], times=None)}) for each in ways
    ]
    alone = gain_between(*apart)
    assert alone is not None
    assert alone.is_proven is False


def test_ways_are_compared_over_the_part_that_both_have() -> None:
    steps = StepSums(
        {"steps": np.ones(2), "samples": np.ones(2), "wall": np.array([9.0, 11.0])}, {}, None
    )
    other = replace(steps, stretches={**steps.stretches, "wall": np.array([4.0, 6.0])})
    recurring = replace(way(SLOW), sums={"recurring": other, "steady": steps, "whole": steps})
    steady = replace(way(SLOW), sums={"steady": other, "whole": other})
    gain = gain_between(recurring, steady)
    assert gain is not None
    assert gain.saved == pytest.approx(0.5)  # and not nothing, of epochs against a steady state


def in_turns(wall_ns: Any, begin: int, cells_ns: Any) -> StepSums:
    """Return a run whose rounds take turns with those of another that begins 0 or 1 s later."""
    starts = np.arange(len(wall_ns)) * 10**10 + begin * 10**9
    ones = np.ones(len(wall_ns))
    return StepSums(
        {"steps": np.ones(2), "samples": np.ones(2), "wall": cells_ns},
        {"steps": ones, "samples": ones, "wall": wall_ns},
        RoundTimes("boot", starts, starts + 10**8),
    )


def test_the_beginning_of_a_long_run_replays_as_well() -> None:
    run = way(SLOW).run
    part = beginning_of(run, 20)
    assert len(part) == 20
    assert part.work_ns.shape == (20, len(run.stages))
    assert abs(replay_error(part)) < 0.1
    assert beginning_of(run, 100) is run


def test_what_was_measured_in_much_noise_is_said_to_be_so() -> None:
    slow = way(SLOW, step=5.0)
    generator = np.random.default_rng(2)
    noisy = [(600.0 if generator.random() < 0.12 else 5.0, 1.0, 1.0) for _ in range(60)]
    other = way(noisy, step=5.0, label="tfrecord", framework="native")
    advice = advise([slow, other], HERE)
    lost = next(each for each in advice.ruled_out if each.reason is Reason.WITHIN_NOISE)
    assert "measure more batches" in lost.sentence
