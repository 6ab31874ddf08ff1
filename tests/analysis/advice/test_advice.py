"""What is advised on recorded runs of which one knows what helps."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from schedules import STAGES, Script, pool

from iobench.analysis.exposure_figures import DecodedChunkFigures
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run
from iobench.findings.advice.advising import advice_of
from iobench.findings.advice.loading import Loading, loading_of
from iobench.findings.advice.proposals import (
    Advice,
    AdviceOutcome,
    AdvisedChange,
    Evidence,
    Lever,
    Reason,
)
from iobench.findings.faster_stages import predicted
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from tests.support.sketched_runs import CONSUMER, SketchedRun

if TYPE_CHECKING:
    from iobench.runs.contents import RunData

MS = 1_000_000
GB = 10**9
BATCH = 4
"""Samples of a batch of a sketch."""
SLOW = [(60.0, 30.0, 10.0)] * 60
STORED = [(30.0, 0.0, 10.0)] * 60
MACHINE = {"cpus": 2, "memory_nbytes": 16 * GB}
KNOWN = {
    "format": "source",
    "framework": "torch",
    "n_samples_all": 1000,
    "sample_nbytes": 24_000_000,
    "files_nbytes": 2 * GB,
    "machine": MACHINE,
    "cache": {"resident_fraction_before": 1.0},
}
COLD = {"cache": {"resident_fraction_before": 0.1}}
OF_SKETCHES = {"workers", "prefetch", "handover_ns", "in_order"}


def sketch_of(
    durations: list[tuple[float, float, float]],
    *,
    workers: int = 2,
    step: float = 15.0,
    cpu: float | None = None,
    **more: Any,
) -> SketchedRun:
    """Return a run of so many ms of reading, decoding and collating for each batch.

    ``cpu`` is the share of its work that is on a CPU.
    """
    whole_ns = [[round(each * MS) for each in stages] for stages in durations]
    sketch = pool(whole_ns, workers=workers, step_ns=round(step * MS), **more)
    for span in sketch.spans:
        if cpu is not None and span["kind"] in STAGES:
            span["cpu_ns"] = round(cpu * (span["end_ns"] - span["start_ns"]))
    return sketch


def measured(sketch: SketchedRun | RunData, **config: Any) -> Loading:
    """Return the training process of a sketch, of a run that says this of itself."""
    profile = sketch.data() if isinstance(sketch, SketchedRun) else sketch
    path = Path("-".join(str(config.get(name)) for name in ("format", "framework")))
    rank = Run(replace(profile, path=path, config={**profile.config, **config})).of_rank()
    return loading_of(rank, recorded_runs(rank))


def way(durations: Any, *, step: float = 15.0, cpu: float | None = None, **more: Any) -> Loading:
    """Return a way of loading; what is no name of a schedule's is what its run says."""
    schedule = {name: more.pop(name) for name in [*more] if name in OF_SKETCHES}
    return measured(sketch_of(durations, step=step, cpu=cpu, **schedule), **{**KNOWN, **more})


def advised(*ways: Loading) -> Advice:
    advice = advice_of(ways)
    assert advice is not None
    return advice


def only(changes: tuple[AdvisedChange, ...], *levers: Lever) -> AdvisedChange:
    every = [*changes, *(same for each in changes for same in each.same_bound)]
    return next(each for each in every if each.levers == levers)


def reasons(advice: Advice) -> dict[Lever, Reason]:
    return {lever: each.reason for each in advice.ruled_out for lever in each.levers}


def store_of(n_samples_all: int, convert_s: float | None) -> dict[str, Any]:
    """Return what a run says of a store of 100 samples that it read."""
    store = {"path": "a", "probe": True, "nbytes": GB, "n_samples": 100, "convert_s": convert_s}
    return {"format": "tfrecord", "store": {**store, "n_samples_all": n_samples_all}}


def test_more_workers_gain_what_the_recurrence_says() -> None:
    advice = advised(way(SLOW, workers=1, machine={**MACHINE, "cpus": 4}))
    more = only(advice.changes, Lever.WORKERS)
    assert more.settings == {"workers": 4}
    assert more.evidence is Evidence.REPLAYED
    assert more.saved_fraction == pytest.approx(0.75, abs=0.02)  # a batch in 25 ms instead of 100
    assert more.low_fraction <= 0.75 <= more.high_fraction + 0.02
    assert more.cost.memory_nbytes == 3 * 2 * BATCH * 24_000_000
    assert more.break_even is None


def test_a_format_that_was_measured_too_is_priced_and_ranked_first() -> None:
    advice = advised(way(SLOW), way(STORED, **store_of(1000, 5.0)))
    best = advice.changes[0]
    assert (best.levers, best.settings) == ((Lever.FORMAT,), {"format": "tfrecord"})
    assert best.evidence is Evidence.MEASURED
    # Two workers, and four samples a batch: 12.5 ms a sample become 5.
    assert best.saved_fraction == pytest.approx(0.6, abs=0.001)
    assert best.low_fraction <= best.saved_fraction <= best.high_fraction
    assert (best.cost.spent_s, best.cost.disk_nbytes) == (50.0, 10 * GB)
    assert advice.baseline.epoch_s == pytest.approx(12.5, abs=0.01)
    assert best.saved_s == pytest.approx(best.saved_fraction * advice.baseline.epoch_s)
    assert best.break_even.epochs == pytest.approx(50.0 / best.saved_s)
    assert best.break_even.staging_to_epoch == pytest.approx(50.0 / 5.0, rel=0.01)
    gains = [each.expected for each in advice.changes]
    assert gains == sorted(gains, reverse=True)
    # Of a store that was there already nobody knows what converting takes.
    best = advised(way(SLOW), way(STORED, **store_of(1000, None))).changes[0]
    assert best.cost.spent_s is None


def test_what_rests_on_a_replay_that_is_wrong_is_withheld_and_what_was_measured_is_not() -> None:
    # One says that batches were less far ahead than they were, which would have taken longer.
    bursts = ([(1.0, 1.0, 1.0)] * 8 + [(80.0, 20.0, 20.0)] * 4) * 10
    wrong = measured(sketch_of(bursts, prefetch=8), **{**KNOWN, "prefetch": 1})
    assert advised(way(bursts, prefetch=8)).outcome is AdviceOutcome.ADVICE
    alone = advised(wrong)
    assert alone.outcome is AdviceOutcome.WITHHELD
    assert alone.replay_error_fraction > 0.1
    assert (alone.changes, alone.to_measure) == ((), ())
    other = advised(wrong, way([(1.0, 1.0, 1.0)] * 120, format="numpy"))
    assert other.outcome is AdviceOutcome.ADVICE
    assert {each.evidence for each in other.changes} == {Evidence.MEASURED}
    assert other.to_measure == ()
    opaque = advised(measured(sketch_of(SLOW).without(("worker", 1)), **KNOWN))
    assert (opaque.outcome, opaque.replay_error_fraction) == (AdviceOutcome.WITHHELD, None)


@pytest.mark.parametrize("step", [1, 50, 85, 98, 101, 104, 106, 120, 200])
def test_nothing_to_gain_never_stands_above_a_proposal(step: int) -> None:
    """Whatever share of its time, of 99 to 0 %, the loop waits for batches of 200 ms by two."""
    slow = [(120.0, 60.0, 20.0)] * 60
    for ways in (
        [way(slow, step=step)],
        [way(slow, step=step), way(STORED, step=step, **store_of(1000, 5.0))],
    ):
        advice = advised(*ways)
        proposed = bool(advice.changes or advice.to_measure)
        assert (advice.outcome is AdviceOutcome.ADVICE) is proposed
        if advice.baseline.wait_fraction < 0.05:
            assert advice.to_measure == ()
        else:
            assert proposed


def test_a_run_that_took_no_time_gets_no_advice() -> None:
    assert advice_of([way([(0.0, 0.0, 0.0)] * 10, step=0.0)]) is None
    assert advice_of([]) is None


@pytest.mark.parametrize(
    ("run", "lever", "reason"),
    [
        ({}, Lever.CACHE, Reason.CACHED_ALREADY),
        ({}, Lever.WORKERS, Reason.NO_MORE_CPUS),
        ({**COLD, "files_nbytes": 100 * GB}, Lever.CACHE, Reason.TOO_LARGE),
        ({"own_order": True}, Lever.WORKERS, Reason.OWN_ORDER),
        ({"step": 200.0, **COLD}, Lever.FORMAT, Reason.NOT_WAITED_FOR),
    ],
)
def test_what_is_impossible_is_ruled_out_with_its_reason(run, lever, reason) -> None:
    assert reasons(advised(way(SLOW, **run)))[lever] is reason


def test_more_workers_than_cpus_are_proposed_only_where_they_wait_for_storage() -> None:
    def workers(durations: Any = SLOW, **run: Any) -> Any:
        advice = advised(way(durations, workers=1, **run))
        change = only((*advice.changes, *advice.to_measure), Lever.WORKERS)
        return change.settings["workers"], change.evidence

    def limited(durations: Any, **run: Any) -> Any:
        loading = way(durations, workers=1, **run)
        machine = replace(loading.machine, read_nbytes_per_s=1e12)
        advice = advised(replace(loading, machine=machine))
        return only((*advice.changes, *advice.to_measure), Lever.WORKERS)

    reading = [(95.0, 0.0, 5.0)] * 60
    change = limited(reading, cpu=0.25, **COLD)
    assert (change.settings["workers"] in range(3, 9), change.evidence) == (True, Evidence.REPLAYED)
    # Off the CPU they wait for another one where all was in memory.
    assert workers(reading, cpu=0.25) == (2, Evidence.REPLAYED)
    assert workers(**COLD)[0] == 2
    # What decodes and is on no CPU may hold a lock: what more workers do to it is not known.
    assert workers(cpu=0.25) == (2, Evidence.UNKNOWN)
    assert workers(cpu=0.9) == (2, Evidence.REPLAYED)


def test_of_more_workers_than_cpus_nobody_knows_what_they_wait_for() -> None:
    advice = advised(way([(95.0, 0.0, 5.0)] * 60, workers=1, cpu=0.25, **COLD))
    every = [each for each in (*advice.changes, *advice.to_measure) if Lever.WORKERS in each.levers]
    known = [(each.settings["workers"] > 2, each.evidence is Evidence.UNKNOWN) for each in every]
    assert (True, True) in known
    assert (True, False) not in known


def test_bounds_are_what_goes() -> None:
    cached = only(advised(way(SLOW, **COLD)).to_measure, Lever.CACHE)
    assert cached.saved_fraction is None
    # Reading 60 of 100 ms by two workers at a step of 15: 50 ms a batch become 20.
    assert cached.high_fraction == pytest.approx(0.6, abs=0.02)
    assert cached.cost.memory_nbytes == 2 * GB
    fast = only(advised(way(SLOW, handover_ns=5 * MS)).to_measure, Lever.LOADER)
    assert fast.evidence is Evidence.BOUND
    # Nobody knows that making computes: threads may be as many as wait, and 15 of 50 ms are left.
    assert fast.high_fraction == pytest.approx(0.7, abs=0.02)
    fast = only(advised(way(SLOW, handover_ns=5 * MS, cpu=1.0)).to_measure, Lever.LOADER)
    # Of 50 ms a batch at two workers collating takes 5; handing over is not in that.
    assert fast.high_fraction == pytest.approx(0.1, abs=0.02)


@settings(max_examples=8, deadline=None)
@example(
    durations=[(0.0, 0.0, each) for each in (1.0, 2.0, 0.0, 0.0, 1.0, *[0.0] * 5)],
    workers=3,
    step=0.0,
)
@example(  # that gets faster as it goes on
    durations=[(0.0, 0.0, each) for each in (*[1.0] * 12, *[2.0] * 4, *[1.0] * 8)],
    workers=0,
    step=0.0,
)
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
    advice = advice_of([way(durations, workers=workers, step=step)])
    if advice is None:
        assert step < 1
        return
    for each in advice.changes:
        assert each.is_proven
        assert 0.01 <= each.saved_fraction <= 1
        assert each.low_fraction <= each.saved_fraction <= each.high_fraction <= 1
    for each in advice.to_measure:
        assert not each.is_proven
        if each.evidence is Evidence.UNKNOWN:  # to be tried: without any figure
            assert (each.saved_fraction, each.low_fraction, each.high_fraction) == (None,) * 3
        else:
            assert 0.01 <= each.expected <= 1


def test_a_prediction_distinguishes_what_these_batches_gain_and_what_others_will() -> None:
    before = 100 + np.random.default_rng(3).normal(0, 10, 400)
    found = predicted(before, 0.8 * before, error=0.05)
    assert found.saved == pytest.approx(0.2)
    assert found.helps
    # Both replays are of the same batches, and gain the same; another run has other batches.
    assert found.low < 1 - 0.8 * 1.05 < 1 - 0.8 * 0.95 < found.high
    assert found.low == pytest.approx(1 - 0.8 * 1.05, abs=0.03)
    assert predicted(before, 0.97 * before, error=0.05).helps is False
    few = predicted(np.full(47, 100.0), np.full(47, 50.0))
    assert (few.saved, few.low, few.high, few.helps) == (0.5, None, None, None)


def test_a_slow_sampler_stays_when_samples_are_finished_and_is_proposed_first() -> None:
    sketch, clock = SketchedRun({"workers": 0, "batch_size": BATCH}), 0
    for batch in range(60):  # 30 ms of choosing, 10 of making, 10 of computing
        asked, clock = clock, clock + 30 * MS
        sketch.add(CONSUMER, Kind.SAMPLER, asked, clock, batch=batch)
        stages = {Kind.DECODE: 8 * MS, Kind.COLLATE: 2 * MS}
        end = sketch.work(CONSUMER, clock, stages, batch=batch)
        sketch.wait(batch, asked, end, "consumer")
        clock = end + 10 * MS
    sketch.shutdown(clock, clock)
    sketch.round(0, clock)
    advice = advised(measured(sketch, **{**KNOWN, "machine": {"cpus": 1}}))
    bounds = [each for each in advice.to_measure if each.evidence is Evidence.BOUND]
    assert bounds[0].levers == (Lever.SAMPLER,)
    assert bounds[0].high_fraction == pytest.approx(0.6)
    assert only(advice.to_measure, Lever.FORMAT).high_fraction == pytest.approx(0.16)
    assert only(advice.to_measure, Lever.LOADER).high_fraction <= 0.2


def test_a_sampler_that_draws_as_each_pass_begins_is_proposed_with_all_its_wait() -> None:
    sketch, clock = SketchedRun({"workers": 0, "batch_size": BATCH}, kind="script"), 0
    for epoch in range(3):  # 300 ms of choosing, 20 times 10 of making and 10 of computing
        begun, clock = clock, clock + 300 * MS
        sketch.add(CONSUMER, Kind.SAMPLER, begun, clock, epoch=epoch)
        sketch.wait(-1, begun, clock, label="startup", epoch=epoch, sample=epoch)
        for batch in range(20 * epoch, 20 * epoch + 20):
            end = sketch.work(CONSUMER, clock, {Kind.DECODE: 10 * MS}, batch=batch, epoch=epoch)
            sketch.wait(batch, clock, end, "consumer", epoch=epoch, sample=epoch)
            clock = end + 10 * MS
        sketch.round(begun, clock, epoch)
    advice = advised(measured(sketch, **{**KNOWN, "kind": "script"}))
    assert only(advice.to_measure, Lever.SAMPLER).high_fraction == pytest.approx(300 / 700)


def test_no_bound_exceeds_the_wait() -> None:
    sketch = sketch_of([(20.0, 10.0, 5.0)] * 60, workers=1, step=10.0, drain_ns=5 * MS)
    slow = way([(20.0, 10.0, 5.0)] * 60, workers=1, step=25.0, **COLD)
    for loading in (measured(sketch, **KNOWN), slow):
        advice = advised(loading)
        wait = advice.baseline.wait_fraction
        bounds = [each for each in advice.to_measure if each.evidence is Evidence.BOUND]
        assert bounds
        assert all(each.high_fraction <= wait for each in bounds)


def test_bounds_that_are_the_same_are_one_proposal() -> None:
    advice = advised(way(SLOW, handover_ns=5 * MS))
    bounds = [each for each in advice.to_measure if each.evidence is Evidence.BOUND]
    shares = sorted(each.high_fraction for each in bounds)
    assert all(b - a >= 0.005 for a, b in itertools.pairwise(shares))
    assert [each.levers for each in bounds[0].same_bound] == [(Lever.LOADER,)]


def locked(sketch: SketchedRun) -> SketchedRun:
    """Return a run of which half of each decoding is for a lock of the library."""
    for span in [each for each in sketch.spans if each["kind"] == Kind.DECODE]:
        until = span["start_ns"] + (span["end_ns"] - span["start_ns"]) // 2
        sketch.spans.append({**span, "kind": Kind.LOCK, "end_ns": until})
        span["start_ns"] = until
    return sketch


def retaining(sketch: SketchedRun) -> SketchedRun:
    """Return a run whose worker's dataset kept something of what it read."""
    worker = next(each["lane"] for each in sketch.spans if each["kind"] == Kind.DECODE)
    sketch.add(worker, Kind.OTHER, 1, 1, label="retains", flags=Flag.DETAIL)
    return sketch


@pytest.mark.parametrize(
    "sketch", [locked(sketch_of(SLOW, workers=1)), retaining(sketch_of(SLOW, workers=1))]
)
def test_what_other_workers_do_to_stages_is_tried_not_predicted(sketch) -> None:
    advice = advised(measured(sketch, **{**KNOWN, "machine": {**MACHINE, "cpus": 4}}))
    first = advice.to_measure[0]
    assert (first.levers, first.evidence) == ((Lever.WORKERS,), Evidence.UNKNOWN)
    assert (first.saved_fraction, first.low_fraction, first.high_fraction) == (None, None, None)
    assert advice.sentence.startswith("To be tried first: 4 workers")
    assert advice.outcome is AdviceOutcome.ADVICE


def validated(*, kept: bool, anew: bool) -> RunData:
    """Return a training whose four evaluations of 8 batches start two workers each, or once."""
    script = Script()
    train, check = script.loader(stages=(1, 1, 1)), None
    for number in range(4):
        script.train(train, 10, 40, end=False)
        script.spend(Kind.OTHER, 0, label="trains", sample=train.round, flags=Flag.DETAIL)
        train.end()
        began = script.now
        if check is None or anew:
            how = {"kept": kept, "open_ns": 400, "batches": 8, "restarts": True}
            check = script.loader(2, 2, start_ns=900, name="Fields", **how)
        script.train(check, 8, 5, end=False)
        check.end(0 if kept and number < 3 else 100)
        script.add(CONSUMER, Kind.EVALUATE, began, script.now)
    return script.data()


@pytest.mark.parametrize("anew", [False, True])
def test_workers_of_an_evaluation_are_to_be_kept_with_what_that_gains(anew) -> None:
    before, after = validated(kept=False, anew=anew), validated(kept=True, anew=False)
    walls = [Run(each).of_rank().exposure.whole.wall_ns for each in (before, after)]
    best = advised(measured(before, framework="torch", machine=MACHINE)).changes[0]
    assert best.levers == (Lever.KEEP_WORKERS,)
    assert best.settings["passes"] == "validation"
    assert best.saved_fraction == pytest.approx(1 - walls[1] / walls[0], abs=0.005)
    assert best.low_fraction <= best.saved_fraction <= best.high_fraction
    (line,) = best.commands
    assert line.endswith("persistent_workers=True)  # made once, before the first validation")


def chunked_script(per_used: int, *, shuffles: bool = False) -> RunData:
    """Return a script of 40 batches: 64 ms of reading and decoding, 10 of other work, a step of 5.

    Chunks that were decoded hold ``per_used`` times the 1000 bytes that each batch uses.
    """
    script = Script()
    script.config["command"] = "python train.py --epochs 1"
    script.loader(name="Fields")
    script.loaders[0] = replace(script.loaders[0], shuffles=shuffles)
    script.round(0, 40 * 79 * MS)
    for batch in range(40):
        begin, of = script.now, {"batch": batch, "nbytes": 1000}
        script.spend(Kind.FUSED, 64 * MS, label="read+decode", cpu_ns=64 * MS, **of)
        script.spend(Kind.PREPROCESS, 6 * MS, cpu_ns=6 * MS, **of)
        script.spend(Kind.COLLATE, 4 * MS, cpu_ns=4 * MS, **of)
        looks = {"label": "time", "detail": "a b.nc:/t2m", "flags": Flag.IO | Flag.DECODED}
        script.spend(Kind.DECODE, 0, batch=batch, nbytes=1000 * per_used, cpu_ns=1000, **looks)
        script.wait(batch, begin, script.now, "consumer")
        script.compute(5 * MS)
    script.shutdown(script.now, script.now)
    return script.data()


def test_chunks_of_many_samples_are_the_first_cause_with_what_decoding_once_saves() -> None:
    loading = measured(chunked_script(64), machine=MACHINE)
    assert loading.judged.decoded == DecodedChunkFigures(*loading_decoded(loading))
    advice = advised(loading)
    every = (*advice.changes, *advice.to_measure)
    assert every[0].levers == (Lever.CHUNKS,)
    # Of 79 ms a batch 64 become 1.
    assert every[0].saved_fraction == pytest.approx(63 / 79, abs=1e-6)
    assert every[0].evidence is Evidence.REPLAYED
    assert every[0].commands == (
        "iobench convert 'a b.nc' 'a b.nc.zarr' --to zarr --sample-dim time --variables t2m",
        'iobench.loader("a b.nc.zarr", 4, framework="torch")',
    )


def loading_decoded(loading: Loading) -> tuple[int, int]:
    """Return the bytes decoded and used of the batches judged."""
    n_batches = loading.judged.n_batches
    return n_batches * 64_000, n_batches * 1000


def test_chunks_that_fit_are_ruled_out_and_what_is_not_known_is_not_0() -> None:
    ruled_out = advised(measured(chunked_script(1), machine=MACHINE)).ruled_out
    sentence = next(each.sentence for each in ruled_out if each.levers == (Lever.CHUNKS,))
    assert sentence == "unknown bytes read and 1.00 decoded for each byte used."


@pytest.mark.parametrize("shuffles", [False, True])
def test_a_script_is_advised_the_order_that_it_has(shuffles) -> None:
    advice = advised(measured(chunked_script(1, shuffles=shuffles), machine=MACHINE))
    lines = only((*advice.changes, *advice.to_measure), Lever.LOADER).commands
    more = ", shuffle=True" if shuffles else ""
    assert lines == (f'iobench.open_dataset("train:Fields").loader(4{more})',)
