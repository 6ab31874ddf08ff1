"""What is advised on recorded runs of which one knows what helps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from epochs import epochs_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from schedules import CONSUMER, STAGES, Sketch, epochs, pool
from scripts import Script

from iobench.analysis.replay.replay import replay_error
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run
from iobench.findings.advice.advising import advice_of
from iobench.findings.advice.figures import Advice, AdviceOutcome, AdvisedChange, Evidence
from iobench.findings.advice.gains import beginning_of
from iobench.findings.advice.levers import Lever, Reason
from iobench.findings.advice.measured import MeasuredRank, measured_rank
from iobench.findings.advice.section import advice_document, outcome_sentence
from iobench.findings.faster_stages import predicted
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.report.renderers.terminal import TerminalRenderer

if TYPE_CHECKING:
    from iobench.runs.contents import RunData

MS = 1_000_000
GB = 10**9
BATCH = 4
"""Samples of a batch of a sketch."""
ON_DEVICE = {"flags": Flag.DEVICE | Flag.DETAIL, "thread": 1}
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


def sketch_of(
    durations: list[tuple[float, float, float]],
    *,
    workers: int = 2,
    step: float = 15.0,
    cpu: float | None = None,
    **more: Any,
) -> Sketch:
    """Return a run of so many ms of reading, decoding and collating for each batch.

    ``cpu`` is the share of its work that is on a CPU.
    """
    whole_ns = [[round(each * MS) for each in stages] for stages in durations]
    sketch = pool(whole_ns, workers=workers, step_ns=round(step * MS), **more)
    for span in sketch.spans:
        if cpu is not None and span["kind"] in STAGES:
            span["cpu_ns"] = round(cpu * (span["end_ns"] - span["start_ns"]))
    return sketch


def measured(sketch: Sketch | RunData, **config: Any) -> MeasuredRank:
    """Return the training process of a sketch, of a run that says this of itself."""
    profile = sketch.profile() if isinstance(sketch, Sketch) else sketch
    path = Path("-".join(str(config.get(name)) for name in ("format", "framework")))
    rank = Run(replace(profile, path=path, config={**profile.config, **config})).of_rank()
    return measured_rank(rank, recorded_runs(rank))


def way(durations: list[tuple[float, float, float]], **more: Any) -> MeasuredRank:
    """Return a way of loading; what is no name of a schedule's is what its run says."""
    told = {**KNOWN, **{name: more.pop(name) for name in [*more] if name not in OF_SKETCHES}}
    return measured(sketch_of(durations, **more), **told)


OF_SKETCHES = {"workers", "step", "cpu", "prefetch", "handover_ns", "in_order"}


def advised(*ways: MeasuredRank) -> Advice:
    advice = advice_of(ways)
    assert advice is not None
    return advice


def found(changes: tuple[AdvisedChange, ...], *levers: Lever) -> AdvisedChange | None:
    return next((each for each in changes if each.candidate.levers == levers), None)


def sure(advice: Advice, *levers: Lever) -> AdvisedChange:
    change = found(advice.changes, *levers)
    assert change is not None
    return change


def to_measure(advice: Advice, *levers: Lever) -> AdvisedChange:
    change = found(advice.to_measure, *levers)
    assert change is not None
    return change


def reasons(advice: Advice) -> dict[Lever, Reason]:
    return {lever: each.reason for each in advice.ruled_out for lever in each.candidate.levers}


def store_of(n_samples_all: int, convert_s: float | None) -> dict[str, Any]:
    """Return what a run says of a store of 100 samples that it read."""
    store = {"path": "a", "probe": True, "nbytes": GB, "n_samples": 100, "convert_s": convert_s}
    return {"format": "tfrecord", "store": {**store, "n_samples_all": n_samples_all}}


def test_stages_that_take_turns_in_holding_the_loop_up_have_no_single_help() -> None:
    turns = [(100.0, 0.0, 0.0), (0.0, 100.0, 0.0)] * 40
    advice = advised(way(turns, step=5.0, framework="", own_order=True))
    assert advice.payoffs is not None
    assert advice.payoffs.no_single_stage_helps
    assert advice.outcome is AdviceOutcome.NO_SINGLE_STAGE
    # Where samples may be finished beforehand both are gone at once: that helps, and is said.
    open_to_it = advised(way(turns, step=5.0))
    assert open_to_it.outcome is AdviceOutcome.ADVICE
    assert to_measure(open_to_it, Lever.FORMAT)


def test_more_workers_gain_what_the_recurrence_says() -> None:
    more = sure(advised(way(SLOW, workers=1, machine={**MACHINE, "cpus": 4})), Lever.WORKERS)
    assert more.candidate.settings == {"workers": 4}
    assert more.gain.evidence is Evidence.REPLAYED
    assert more.gain.saved == pytest.approx(0.75, abs=0.02)  # a batch in 25 ms instead of 100
    assert more.gain.low <= 0.75 <= more.gain.high + 0.02
    assert more.cost.memory_nbytes == 3 * 2 * BATCH * 24_000_000
    assert more.break_even is None


def test_a_format_that_was_measured_beside_is_priced_and_ranked_first() -> None:
    store = way(STORED, **store_of(1000, 5.0))
    advice = advised(way(SLOW), store)
    best = advice.changes[0]
    assert best.candidate.levers == (Lever.FORMAT,)
    assert best.candidate.settings == {"format": "tfrecord"}
    assert best.gain.evidence is Evidence.MEASURED
    # Two workers, and four samples a batch: 12.5 ms a sample become 5.
    assert best.gain.saved == pytest.approx(0.6, abs=0.001)
    assert best.gain.low <= best.gain.saved <= best.gain.high
    assert (best.cost.convert_s, best.cost.disk_nbytes) == (50.0, 10 * GB)
    assert advice.epoch_s == pytest.approx(12.5, abs=0.01)
    assert best.saved_s == pytest.approx(best.gain.saved * advice.epoch_s)
    assert best.break_even is not None
    assert best.break_even.epochs == pytest.approx(50.0 / best.saved_s)
    assert best.break_even.staging_to_epoch == pytest.approx(50.0 / 5.0, rel=0.01)
    gains = [each.gain.expected for each in advice.changes]
    assert gains == sorted(gains, reverse=True)
    # Of a store that was there already nobody knows more than what making its samples takes.
    best = advised(way(SLOW), way(STORED, **store_of(1000, None))).changes[0]
    assert best.cost.at_least
    assert best.cost.convert_s == pytest.approx(0.1 / BATCH * 1000 / 2, rel=0.05)


def test_what_rests_on_a_replay_that_is_wrong_is_withheld_and_what_was_measured_is_not() -> None:
    # One says that batches were less far ahead than they were, which would have taken longer.
    bursts = ([(1.0, 1.0, 1.0)] * 8 + [(80.0, 20.0, 20.0)] * 4) * 10
    source = way(bursts, prefetch=8)
    wrong = measured(sketch_of(bursts, prefetch=8), **{**KNOWN, "prefetch": 1})
    assert advised(source).outcome is AdviceOutcome.ADVICE
    alone = advised(wrong)
    assert alone.outcome is AdviceOutcome.WITHHELD
    assert alone.error_fraction is not None
    assert alone.error_fraction > 0.1
    assert (alone.changes, alone.to_measure, alone.payoffs) == ((), (), None)
    beside = advised(wrong, way([(1.0, 1.0, 1.0)] * 120, format="numpy"))
    assert beside.outcome is AdviceOutcome.ADVICE
    assert {each.gain.evidence for each in beside.changes} == {Evidence.MEASURED}
    assert beside.to_measure == ()


def test_a_loader_that_nobody_saw_at_work_gets_no_advice() -> None:
    advice = advised(measured(sketch_of(SLOW).without(("worker", 1)), **KNOWN))
    assert advice.outcome is AdviceOutcome.OPAQUE
    assert advice.error_fraction is None


def test_work_that_nobody_saw_is_in_no_share_of_what_is_hidden() -> None:
    script = Script()
    loader = script.loader()
    loader.iter()
    for batch in range(60):
        asked, script.now = script.now, script.now + MS
        script.wait(loader, batch, asked, "", "dali")
        script.compute(99 * MS)
    advice = advised(measured(script.profile(), **KNOWN))
    assert [each.stage for each in advice.baseline.window.stages] == ["opaque"]
    assert advice.baseline.hidden_fraction is None
    assert outcome_sentence(advice).startswith(
        "Nothing to gain: no change to loading can save more"
    )
    assert advised(way(SLOW, step=80.0)).baseline.hidden_fraction == pytest.approx(1.0)


def test_a_run_that_took_no_time_gets_no_advice() -> None:
    assert advised(way([(0.0, 0.0, 0.0)] * 10, step=0.0)).outcome is AdviceOutcome.NO_BATCH
    assert advice_of([]) is None


def test_what_is_impossible_is_ruled_out_with_its_reason() -> None:
    told = reasons(advised(way(SLOW)))
    assert told[Lever.CACHE] is Reason.CACHED_ALREADY
    assert told[Lever.WORKERS] is Reason.NO_MORE_CPUS
    told = reasons(advised(way(SLOW, **COLD, files_nbytes=100 * GB)))
    assert told[Lever.CACHE] is Reason.TOO_LARGE
    assert told[Lever.CHUNKS] is Reason.SIZE_UNKNOWN
    assert reasons(advised(way(SLOW, framework="native")))[Lever.LOADER] is Reason.IN_USE
    assert reasons(advised(way(SLOW, workers=0)))[Lever.PREFETCH] is Reason.NO_WORKERS


def test_more_workers_than_cpus_are_proposed_only_where_they_wait_for_storage() -> None:
    def workers(**told: Any) -> object:
        return sure(advised(way(SLOW, workers=1, **told)), Lever.WORKERS).candidate.settings

    assert workers(cpu=0.25, **COLD)["workers"] in range(3, 9)
    # Off the CPU they wait for another one where all was in memory.
    assert workers(cpu=0.25) == workers(**COLD) == {"workers": 2}
    # With 1 % from storage as well.
    sketch = sketch_of(SLOW, workers=1, cpu=0.25)
    sketch.add(
        CONSUMER, Kind.READ, 0, sketch.spans[-1]["end_ns"], batch=0,
        nbytes=10**10, cpu_ns=12 * 10**7, flags=Flag.IO,
    )  # fmt: skip
    advice = advised(measured(sketch, **KNOWN))
    assert advice.circumstances.cold_fraction == pytest.approx(0.012, rel=0.1)
    assert sure(advice, Lever.WORKERS).candidate.settings == {"workers": 2}


def test_files_that_fit_into_memory_may_be_cached() -> None:
    cached = to_measure(advised(way(SLOW, **COLD)), Lever.CACHE)
    assert cached.gain.saved is None
    # Reading 60 of 100 ms by two workers at a step of 15: 50 ms a batch become 20.
    assert cached.gain.high == pytest.approx(0.6, abs=0.02)
    assert cached.cost.memory_nbytes == 2 * GB


def test_who_made_the_probe_of_a_store_does_not_change_its_price() -> None:
    here = {**COLD, "n_samples_all": 100}
    advice = advised(
        way(SLOW, **here),
        way(STORED, **here, **store_of(100, None)),
        way(STORED, **here, **store_of(100, 5.0), framework="native"),
    )
    assert advice.changes
    for change in advice.changes:
        assert (change.cost.convert_s, change.cost.at_least) == (5.0, False)


@pytest.mark.parametrize("cpus", [2, 64, 1024])
def test_at_most_64_replays_are_made_however_many_cpus(
    cpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from iobench.analysis.replay import replay as module

    n_replays, simulate = [0], module.simulate_run

    def counted(run: Any) -> Any:
        n_replays[0] += 1
        return simulate(run)

    cold = {**COLD, "machine": {"cpus": cpus, "memory_nbytes": 64 * GB}}
    ways = [
        way(SLOW, workers=1, cpu=0.1, **cold),
        way(STORED, cpu=0.1, **cold, **store_of(100, 5.0)),
        way(STORED, cpu=0.1, **cold, format="numpy"),
    ]
    monkeypatch.setattr(module, "simulate_run", counted)
    assert advised(*ways).changes
    assert 10 < n_replays[0] <= 64


def test_the_fast_loader_gains_no_more_than_what_does_not_compute() -> None:
    fast = to_measure(advised(way(SLOW, handover_ns=5 * MS)), Lever.LOADER)
    assert fast.gain.evidence is Evidence.BOUND
    # Nobody knows that making computes: threads may be as many as wait, and 15 of 50 ms are left.
    assert fast.gain.high == pytest.approx(0.7, abs=0.02)
    fast = to_measure(advised(way(SLOW, handover_ns=5 * MS, cpu=1.0)), Lever.LOADER)
    # Of 50 ms a batch at two workers collating takes 5, and handing over is beside the work.
    assert fast.gain.high == pytest.approx(0.1, abs=0.02)


def test_without_sizes_and_an_epoch_the_advice_stands_and_its_price_is_unknown() -> None:
    known = {name: KNOWN[name] for name in ("format", "framework")}
    advice = advised(measured(sketch_of(SLOW), **known, **COLD, machine={"cpus": 2}))
    change = to_measure(advice, Lever.FORMAT)
    assert (change.saved_s, change.cost.convert_s, change.cost.disk_nbytes) == (None, None, None)
    assert change.break_even is not None
    assert change.break_even.epochs is None
    assert reasons(advice)[Lever.CACHE] is Reason.SIZE_UNKNOWN


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
    advice = advised(way(durations, workers=workers, step=step))
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
    advice = advised(
        way([(60.0, 30.0, 10.0)] * 3), way([(40.0, 20.0, 10.0)] * 3, **store_of(1000, 5.0))
    )
    assert advice.changes == ()
    change = to_measure(advice, Lever.FORMAT)
    assert (change.gain.low, change.gain.high, change.gain.is_proven) == (None, None, None)
    text = TerminalRenderer().render(advice_document(advice, "run"))
    assert "too few batches to distinguish it from noise" in " ".join(text.split())
    assert outcome_sentence(advice).startswith("Nothing is certain to help")


def rounds_of(reads_ms: list[float], *, begin: int = 0) -> Sketch:
    """Return rounds, one every 10 s, of batches that each take so long to read."""
    whole = Sketch()
    for number, read in enumerate(reads_ms):
        one = sketch_of([(read, 0.0, 0.0)] * 12, workers=0, step=0.0)
        part = epochs([one]).moved((number * 10_000 * MS + begin).__add__)
        whole.config = part.config
        for span in part.spans:
            batch = {"batch": span["batch"] + 12 * number} if "batch" in span else {}
            mark = {"sample": number} if span["kind"] == Kind.OTHER else {}
            whole.spans.append({**span, **batch, **mark})
    return whole


def test_ways_that_took_turns_are_compared_turn_by_turn() -> None:
    # Of both alike a turn takes up to three times as long as another: the machine's doing.
    turns = [10.0, 30.0, 12.0, 28.0, 15.0, 25.0]
    source = measured(rounds_of(turns), **KNOWN)
    told = {**KNOWN, "format": "tfrecord"}
    beside = rounds_of([0.9 * each for each in turns], begin=1000 * MS)
    assert sure(advised(source, measured(beside, **told)), Lever.FORMAT).gain.saved == (
        pytest.approx(0.1)
    )
    # Long after it, nobody knows which turns had the machine to themselves.
    apart = rounds_of([0.9 * each for each in turns], begin=10**6 * MS)
    assert found(advised(source, measured(apart, **told)).changes, Lever.FORMAT) is None


def test_ways_are_compared_over_the_part_that_both_have() -> None:
    # Epochs that each begin slowly, and one that is longer: by their steady states both are alike.
    several = measured(epochs_of(epochs=6, batches=30, open_ns=3000), **KNOWN)
    single = measured(epochs_of(epochs=1, batches=180), **{**KNOWN, "format": "tfrecord"})
    assert several.way is not None
    assert single.way is not None
    assert (several.way.part, single.way.part) == ("recurring", "steady")
    assert reasons(advised(several, single))[Lever.FORMAT] is Reason.GAINS_NOTHING


def test_the_beginning_of_a_long_run_replays_as_well() -> None:
    (run,) = recorded_runs(Run(sketch_of(SLOW).profile()).of_rank())
    part = beginning_of(run, 20)
    assert len(part) == 20
    assert part.work_ns.shape == (20, len(run.stages))
    assert abs(replay_error(part)) < 0.1
    assert beginning_of(run, 100) is run


def test_what_was_measured_in_much_noise_is_said_to_be_so() -> None:
    generator = np.random.default_rng(2)
    noisy = [(600.0 if generator.random() < 0.12 else 5.0, 1.0, 1.0) for _ in range(60)]
    other = way(noisy, step=5.0, format="tfrecord", framework="native")
    advice = advised(way(SLOW, step=5.0), other)
    lost = next(each for each in advice.ruled_out if each.reason is Reason.WITHIN_NOISE)
    assert "measure more batches" in lost.sentence
