"""What is advised on recorded runs of which one knows what helps."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from drawn_runs import shapes_of_epochs
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple, replace
from schedules import STAGES, Script, epochs_of, pool, threads

from iobench.analysis.exposure_figures import DecodedChunkFigures
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run, exposure
from iobench.findings.advice.advising import advice_of
from iobench.findings.advice.loading import Loading, loading_of
from iobench.findings.advice.proposals import AdviceOutcome, Evidence, Lever, Reason
from iobench.findings.faster_stages import predicted
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from tests.support.sketched_runs import CONSUMER, SketchedRun

if TYPE_CHECKING:
    from iobench.findings.advice.proposals import Advice, AdvisedChange
    from iobench.runs.contents import RunData

MS, MB, GB = 1_000_000, 10**6, 10**9
BATCH = 4
"""Samples of a batch of a sketch."""
SLOW = [(60.0, 30.0, 10.0)] * 60
READING = [(95.0, 0.0, 5.0)] * 60
STORED = [(30.0, 0.0, 10.0)] * 60
TAIL = [(220.0 if number % 8 == 3 else 20.0, 5.0, 5.0) for number in range(96)]
OF_THREADS = [round(sum(each) * MS) for each in TAIL]
OURS = {"n_threads": 2, "ahead": 3, "step_ns": 30 * MS}
TORCH = {"versions": {"torch": "2.6.0+cpu"}}
MACHINE = {"cpus": 2, "memory_nbytes": 16 * GB}
FOUR_CPUS = {**MACHINE, "cpus": 4}
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
OF_SKETCHES = {"workers", "prefetch", "handover_ns", "in_order", "drain_ns"}


def measured(data: RunData, **config: Any) -> Loading:
    """Return the training process of a run that says this of itself."""
    path = Path("-".join(str(config.get(name)) for name in ("format", "framework")))
    rank = Run(replace(data, path=path, config={**data.config, **config})).of_rank()
    return loading_of(rank, recorded_runs(rank))


def way(
    durations: Any,
    *,
    step: float = 15.0,
    cpu: float | dict[Kind, float] | None = None,
    change: Any = lambda sketch: None,
    nbytes: int | None = None,
    **more: Any,
) -> Loading:
    """Return a way of loading, by ms of reading, decoding and collating for each batch.

    ``cpu`` is the share of its work that is on a CPU. What is no name of a schedule's is what its
    run says; ``change`` is made to the sketch.
    """
    schedule = {name: more.pop(name) for name in [*more] if name in OF_SKETCHES}
    whole_ns = [[round(each * MS) for each in stages] for stages in durations]
    sketch = pool(whole_ns, step_ns=round(step * MS), **{"workers": 2, **schedule})
    for span in sketch.spans:
        if cpu is not None and span["kind"] in STAGES:
            share = cpu if isinstance(cpu, float) else cpu.get(span["kind"], 1.0)
            span["cpu_ns"] = round(share * (span["end_ns"] - span["start_ns"]))
        if nbytes is not None and span["kind"] == Kind.READ:
            span["nbytes"] = nbytes
    change(sketch)
    return measured(sketch.data(), **{**KNOWN, **more})


def advised(*ways: Loading) -> Advice:
    advice = advice_of(ways)
    assert advice is not None
    return advice


def every(advice: Advice) -> list[AdvisedChange]:
    return [*advice.changes, *advice.to_measure]


def only(advice: Advice, *levers: Lever) -> AdvisedChange:
    return next(each for each in every(advice) if each.levers == levers)


def locked(sketch: SketchedRun) -> None:
    """Half of each decoding is for a lock of the library."""
    for span in [each for each in sketch.spans if each["kind"] == Kind.DECODE]:
        until = span["start_ns"] + (span["end_ns"] - span["start_ns"]) // 2
        sketch.spans.append({**span, "kind": Kind.LOCK, "end_ns": until})
        span["start_ns"] = until


def retaining(sketch: SketchedRun) -> None:
    """The worker's dataset kept something of what it read."""
    sketch.add(("worker", 0), Kind.OTHER, 1, 1, label="retains", flags=Flag.DETAIL)


def with_sampler() -> Loading:
    """30 ms of choosing, 10 of making, 10 of computing."""
    sketch, clock = SketchedRun(workers=0, batch_size=BATCH), 0
    for batch in range(60):
        stages = {Kind.SAMPLER: 30 * MS, Kind.DECODE: 8 * MS, Kind.COLLATE: 2 * MS}
        end = sketch.work(CONSUMER, clock, stages, batch=batch)
        sketch.wait(batch, clock, end, "consumer")
        clock = end + 10 * MS
    sketch.shutdown(clock, clock)
    sketch.round(0, clock)
    return measured(sketch.data(), **{**KNOWN, "machine": {"cpus": 1}})


def with_sampler_of_passes() -> Loading:
    """300 ms of choosing as each pass begins, 20 times 10 of making and 10 of computing."""
    script = Script()
    for _ in range(3):
        loader = script.loader(0, 0, (0, 10 * MS, 0), 300 * MS, name="Samples")
        loader.iter()
        script.add(CONSUMER, Kind.SAMPLER, script.now - 300 * MS, script.now)
        script.train(loader, 20, 10 * MS, end=False)
        loader.leave()
    return measured(script.data(), **{**KNOWN, "kind": "script"})


def chunked_script(per_used: int, *, shuffles: bool = False) -> Loading:
    """40 batches: 64 ms of reading and decoding, 10 of other work, a step of 5.

    Chunks that were decoded hold ``per_used`` times the 1000 bytes that each batch uses.
    """
    script = Script()
    script.config["command"] = "python train.py --epochs 1"
    script.loader(name="Fields")
    script.loaders[0] = replace(script.loaders[0], shuffles=shuffles)
    script.round(0, 40 * 79 * MS)
    looks = {"label": "time", "detail": "a b.nc:/t2m", "flags": Flag.IO | Flag.DECODED}
    for batch in range(40):
        begin, of = script.now, {"batch": batch, "nbytes": 1000}
        script.spend(Kind.FUSED, 64 * MS, label="read+decode", cpu_ns=64 * MS, **of)
        script.spend(Kind.PREPROCESS, 6 * MS, cpu_ns=6 * MS, **of)
        script.spend(Kind.COLLATE, 4 * MS, cpu_ns=4 * MS, **of)
        script.spend(Kind.DECODE, 0, batch=batch, nbytes=1000 * per_used, cpu_ns=1000, **looks)
        script.wait(batch, begin, script.now, "consumer")
        script.compute(5 * MS)
    script.shutdown(script.now, script.now)
    return measured(script.data(), machine=MACHINE)


DISK = {
    "path": "/local/job", "mount": "/local", "file_system": "xfs", "in_memory": False,
    "free_nbytes": 100 * GB,
}  # fmt: skip
SHM = {**DISK, "path": "/dev/shm", "mount": "/dev/shm", "in_memory": True, "free_nbytes": 8 * GB}
NEAR = {"places": [DISK, SHM], "shared": {"/scratch": "lustre"}, "folder": "/scratch/data"}


def far(**more: Any) -> Loading:
    """Two readers wait 98 of the 105 ms of a batch for storage that others share."""
    return way(
        [(100.0, 4.0, 1.0)] * 60, step=5.0, cpu={Kind.READ: 0.02}, nbytes=8 * MB,
        **{
            "command": "iobench profile /scratch/data/a.nc --batches 60",
            "machine": {"cpus": 16, "memory_nbytes": 64 * GB},
            "cache": {"resident_fraction_before": 0.0}, "near": NEAR, **more,
        },
    )  # fmt: skip


def recurring(**how: Any) -> Loading:
    """A script's torch loader over several epochs, which loads from memory."""
    rank = Run(epochs_of(**how)).of_rank()
    loading = loading_of(rank, recorded_runs(rank))
    known = {"framework": "torch", "is_cached": True, "cpus": 2, "machine": None}
    return replace(loading, facts=replace(loading.facts, kind="script"), **known)


def close(value: float, within: float = 0.02) -> Any:
    return pytest.approx(value, abs=within)


REPLAYED, BOUND, UNKNOWN = Evidence.REPLAYED, Evidence.BOUND, Evidence.UNKNOWN
PROPOSED = {
    # A batch in 25 ms instead of 100.
    "more workers": (
        lambda: way(SLOW, workers=1, machine=FOUR_CPUS), Lever.WORKERS, REPLAYED, close(0.75),
        {"settings": {"workers": 4}, "break_even": None},
    ),
    # What decodes and is on no CPU may hold a lock: what more workers do to it is not known.
    "workers that decode on no CPU": (
        lambda: way(SLOW, workers=1, cpu=0.25), Lever.WORKERS, UNKNOWN, None,
        {"settings": {"workers": 2}},
    ),
    "workers that compute": (
        lambda: way(SLOW, workers=1, cpu=0.9), Lever.WORKERS, REPLAYED, close(0.5, 0.1),
        {"settings": {"workers": 2}},
    ),
    # Off the CPU they wait for another one where all was in memory.
    "workers that read from memory": (
        lambda: way(READING, workers=1, cpu=0.25), Lever.WORKERS, REPLAYED, close(0.5, 0.1),
        {"settings": {"workers": 2}},
    ),
    "workers on locks of a library": (
        lambda: way(SLOW, workers=1, change=locked, machine=FOUR_CPUS), Lever.WORKERS, UNKNOWN,
        None, {"settings": {"workers": 4}},
    ),
    "workers that keep what they read": (
        lambda: way(SLOW, workers=1, change=retaining, machine=FOUR_CPUS), Lever.WORKERS, UNKNOWN,
        None, {"settings": {"workers": 4}},
    ),
    # Reading 60 of 100 ms by two workers at a step of 15: 50 ms a batch become 20.
    "the page cache": (lambda: way(SLOW, **COLD), Lever.CACHE, BOUND, close(0.6), {}),
    # Nobody knows that making computes: threads may be as many as wait, and 15 of 50 ms are left.
    "the fast loader": (
        lambda: way(SLOW, handover_ns=5 * MS), Lever.LOADER, BOUND, close(0.7), {},
    ),
    # Of 50 ms a batch at two workers collating takes 5; handing over is not in that.
    "the fast loader, of what computes": (
        lambda: way(SLOW, handover_ns=5 * MS, cpu=1.0), Lever.LOADER, BOUND, close(0.1), {},
    ),
    # In order a step waits for a batch of 230 ms; else the other worker makes what it takes.
    "batches of what is ready": (
        lambda: way(TAIL, step=30.0, **TORCH), Lever.ORDER, BOUND, close(0.2, 0.1),
        {"commands": ("DataLoader(..., in_order=False)",)},
    ),
    # Two threads make a batch in 27.5 ms together, each alone in 30 or 230, and a step takes 30.
    "batches that all threads fill together": (
        lambda: measured(threads(OF_THREADS, **OURS).data(), framework="native"), Lever.ORDER,
        BOUND, close(0.36),
        {"commands": ("iobench.loader(..., in_order=False)",)},
    ),
    "a sampler": (with_sampler, Lever.SAMPLER, BOUND, close(0.6, 1e-9), {}),
    "finished samples beside a sampler": (with_sampler, Lever.FORMAT, BOUND, close(0.16, 1e-9), {}),
    "a sampler of passes": (
        with_sampler_of_passes, Lever.SAMPLER, BOUND, close(300 / 700, 1e-9), {},
    ),
    # Of 79 ms a batch 64 become 1.
    "chunks of many samples": (
        lambda: chunked_script(64), Lever.CHUNKS, REPLAYED, close(63 / 79, 1e-6),
        {"commands": (
            "iobench convert 'a b.nc' 'a b.nc.zarr' --to zarr --sample-dim time --variables t2m",
            'iobench.loader("a b.nc.zarr", 4, framework="torch")',
        )},
    ),
    # A step takes 5 of the 52.5 of the loop.
    "staging": (
        far, Lever.CACHE, BOUND, close(0.9, 0.03),
        {"settings": {"stage": "/local/job", "of": "/scratch/data"}},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("make", "lever", "evidence", "gain", "more"), PROPOSED.values(), ids=PROPOSED
)
def test_what_is_proposed(make, lever, evidence, gain, more) -> None:
    advice = advised(make())
    change = only(advice, lever)
    assert change.evidence is evidence
    assert {name: getattr(change, name) for name in more} == more
    if evidence is UNKNOWN:
        assert (change.saved_fraction, change.low_fraction, change.high_fraction) == (None,) * 3
        assert advice.sentence.startswith(f"To be tried first: {change.title}")
        assert advice.outcome is AdviceOutcome.ADVICE
    elif evidence is BOUND:
        assert (change.saved_fraction, change.high_fraction) == (None, gain)
    else:
        assert change.saved_fraction == gain


@pytest.mark.parametrize("step", [20.0, 30.0, 40.0])
def test_batches_of_what_is_ready_gain_no_more_than_is_said(step) -> None:
    before, after = (way(TAIL, step=step, in_order=each, **TORCH) for each in (True, False))
    obtained = 1 - (after.sample_ns or 0.0) / (before.sample_ns or 1.0)
    assert 0.05 < obtained <= only(advised(before), Lever.ORDER).high_fraction + 1e-6
    for others in (way(TAIL, step=step, versions={"torch": "2.5.1"}), way(SLOW, **TORCH)):
        assert not any(Lever.ORDER in each.levers for each in every(advised(others)))


@pytest.mark.parametrize(("step", "drain_ns"), [(10.0, 5 * MS), (25.0, 0)])
def test_no_bound_exceeds_the_wait(step, drain_ns) -> None:
    how = {"workers": 1, "step": step, "drain_ns": drain_ns, **COLD}
    advice = advised(way([(20.0, 10.0, 5.0)] * 60, **how))
    bounds = [each.high_fraction for each in every(advice) if each.evidence is BOUND]
    assert 0 < max(bounds) <= advice.baseline.wait_fraction


def test_a_command_does_not_name_a_class_of_the_script_that_may_need_arguments() -> None:
    script = chunked_script(1)
    store = only(advised(script), Lever.FORMAT)
    command, _, comment = store.commands[0].partition("  # ")
    assert command == "iobench convert train:DATASET Fields.numpy --to numpy"
    assert comment == f"DATASET: a function that returns its {script.facts.dataset}"


def test_a_cause_is_proposed_first() -> None:
    bounds = [each for each in every(advised(with_sampler())) if each.evidence is BOUND]
    assert bounds[0].levers == (Lever.SAMPLER,)
    assert every(advised(chunked_script(64)))[0].levers == (Lever.CHUNKS,)


RULED_OUT = {
    "read from memory": (lambda: way(SLOW), Lever.CACHE, Reason.CACHED_ALREADY),
    "a worker for each CPU": (lambda: way(SLOW), Lever.WORKERS, Reason.NO_MORE_CPUS),
    "files too large for memory": (
        lambda: way(SLOW, **COLD, files_nbytes=100 * GB), Lever.CACHE, Reason.TOO_LARGE,
    ),
    "an order of its own": (lambda: way(SLOW, own_order=True), Lever.WORKERS, Reason.OWN_ORDER),
    "hidden": (lambda: way(SLOW, step=200.0, **COLD), Lever.FORMAT, Reason.NOT_WAITED_FOR),
    "chunks that fit": (lambda: chunked_script(1), Lever.CHUNKS, Reason.CHUNKS_FIT),
    "staged, but in memory": (
        lambda: far(cache={"resident_fraction_before": 1.0}), Lever.CACHE, Reason.CACHED_ALREADY,
    ),
    "staged, but too large": (
        lambda: far(files_nbytes=200 * GB), Lever.CACHE, Reason.TOO_LARGE,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "lever", "reason"), RULED_OUT.values(), ids=RULED_OUT)
def test_what_is_ruled_out(make, lever, reason) -> None:
    advice = advised(make())
    assert reason in {each.reason for each in advice.ruled_out if lever in each.levers}
    assert not any(lever in each.levers for each in every(advice))


@pytest.mark.parametrize(
    "config",
    [
        {"near": {**NEAR, "folder": "/local/data"}},
        {"near": {**NEAR, "places": []}},
        {"near": {**NEAR, "places": [{**DISK, "free_nbytes": GB}]}},
        {"files_nbytes": None},
        {"near": {**NEAR, "folder": None}},
        {"near": None},
    ],
)
def test_staging_is_not_proposed_without_a_near_place_for_files_that_lie_far(config) -> None:
    advice = advised(far(**config))
    assert not any("stage" in each.settings for each in every(advice))


def test_a_measured_format_is_priced_and_ranked_first() -> None:
    def stored(convert_s: float | None) -> Loading:
        store = {"path": "a", "probe": True, "nbytes": GB, "n_samples": 100, "n_samples_all": 1000}
        return way(STORED, format="tfrecord", store={**store, "convert_s": convert_s})

    advice = advised(way(SLOW), stored(5.0))
    best = advice.changes[0]
    assert (best.levers, best.settings) == ((Lever.FORMAT,), {"format": "tfrecord"})
    assert best.evidence is Evidence.MEASURED
    # Two workers, and four samples a batch: 12.5 ms a sample become 5.
    assert best.saved_fraction == close(0.6, 0.001)
    assert best.low_fraction <= best.saved_fraction <= best.high_fraction
    assert (best.cost.spent_s, best.cost.disk_nbytes) == (50.0, 10 * GB)
    assert advice.baseline.epoch_s == close(12.5, 0.01)
    assert best.saved_s == pytest.approx(best.saved_fraction * advice.baseline.epoch_s)
    assert best.break_even.epochs == pytest.approx(50.0 / best.saved_s)
    assert best.break_even.staging_to_epoch == pytest.approx(50.0 / 5.0, rel=0.01)
    gains = [each.expected for each in advice.changes]
    assert gains == sorted(gains, reverse=True)
    # Of a store that was there already nobody knows what converting takes.
    assert advised(way(SLOW), stored(None)).changes[0].cost.spent_s is None
    for step in (1, 85, 104, 200):  # nothing to gain never stands above a proposal
        for ways in ([way(SLOW, step=step)], [way(SLOW, step=step), stored(5.0)]):
            advice = advised(*ways)
            proposed = bool(every(advice))
            assert (advice.outcome is AdviceOutcome.ADVICE) is proposed
            hidden = advice.baseline.wait_fraction < 0.05
            assert not (hidden and advice.to_measure)
            assert proposed or hidden


def test_costs_of_memory_and_of_staging_which_reads_all_files_once() -> None:
    workers = only(advised(way(SLOW, workers=1, machine=FOUR_CPUS)), Lever.WORKERS)
    assert workers.cost.memory_nbytes == 3 * 2 * BATCH * 24_000_000
    assert only(advised(way(SLOW, **COLD)), Lever.CACHE).cost.memory_nbytes == 2 * GB
    staging = only(advised(far()), Lever.CACHE)
    # 8 MB in 0.1 s of each of two readers.
    assert (staging.cost.spent_s, staging.cost.disk_nbytes) == (pytest.approx(12.5), 2 * GB)
    assert staging.commands[0] == "iobench stage /scratch/data --to /local/job"
    assert staging.break_even.epochs == pytest.approx(staging.cost.spent_s / staging.saved_s)


def test_what_rests_on_a_replay_that_is_wrong_is_withheld_and_what_was_measured_is_not() -> None:
    # One says that batches were less far ahead than they were, which would have taken longer.
    bursts = ([(1.0, 1.0, 1.0)] * 8 + [(80.0, 20.0, 20.0)] * 4) * 10

    def nearer(sketch: SketchedRun) -> None:
        sketch.config["prefetch"] = 1

    wrong = way(bursts, prefetch=8, change=nearer)
    assert advised(way(bursts, prefetch=8)).outcome is AdviceOutcome.ADVICE
    alone = advised(wrong)
    assert alone.outcome is AdviceOutcome.WITHHELD
    assert alone.replay_error_fraction > 0.1
    assert every(alone) == []
    other = advised(wrong, way([(1.0, 1.0, 1.0)] * 120, format="numpy"))
    assert other.outcome is AdviceOutcome.ADVICE
    assert {each.evidence for each in every(other)} == {Evidence.MEASURED}
    lost = pool([[60 * MS, 30 * MS, 10 * MS]] * 60, workers=2, step_ns=15 * MS)
    opaque = advised(measured(lost.without(("worker", 1)).data(), **KNOWN))
    assert (opaque.outcome, opaque.replay_error_fraction) == (AdviceOutcome.WITHHELD, None)


def test_a_run_that_took_no_time_gets_no_advice() -> None:
    assert advice_of([way([(0.0, 0.0, 0.0)] * 10, step=0.0)]) is None
    assert advice_of([]) is None


def test_more_workers_than_cpus_are_proposed_only_where_they_wait_for_storage() -> None:
    loading = way(READING, workers=1, cpu=0.25, **COLD)
    limit = replace(loading.machine, read_nbytes_per_s=1e12)
    change = only(advised(replace(loading, machine=limit)), Lever.WORKERS)
    assert (change.settings["workers"] in range(3, 9), change.evidence) == (True, REPLAYED)
    # Of storage without a known limit nobody knows what they wait for.
    known = {
        (each.settings["workers"] > 2, each.evidence is UNKNOWN)
        for each in every(advised(loading))
        if Lever.WORKERS in each.levers
    }
    assert (True, True) in known
    assert (True, False) not in known


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
    advice = advice_of([way(durations, workers=workers, step=step, drain_ns=5)])
    if advice is None:
        assert step < 1
        return
    for each in advice.changes:
        assert each.is_proven
        assert 0.01 <= each.saved_fraction <= 1
        assert each.low_fraction <= each.saved_fraction <= each.high_fraction <= 1
    for each in advice.to_measure:
        assert not each.is_proven
        assert each.evidence is UNKNOWN or 0.01 <= each.expected <= 1
        bound = each.high_fraction if each.evidence is BOUND else 0.0
        assert bound <= advice.baseline.wait_fraction


def test_a_prediction_distinguishes_what_these_batches_gain_and_what_others_will() -> None:
    before = 100 + np.random.default_rng(3).normal(0, 10, 400)
    gain, helps = predicted(before, 0.8 * before, error=0.05)
    assert (gain.saved_fraction, helps) == (pytest.approx(0.2), True)
    # Both replays are of the same batches, and gain the same; another run has other batches.
    assert gain.low_fraction < 1 - 0.8 * 1.05 < 1 - 0.8 * 0.95 < gain.high_fraction
    assert gain.low_fraction == close(1 - 0.8 * 1.05, 0.03)
    assert predicted(before, 0.97 * before, error=0.05)[1] is False
    few = predicted(np.full(47, 100.0), np.full(47, 50.0))
    assert (*astuple(few[0]), few[1]) == (0.5, None, None, None)


def test_decoded_chunks_are_counted_and_what_is_not_known_is_not_0() -> None:
    part = chunked_script(64).judged
    assert part.decoded == DecodedChunkFigures(part.n_batches * 64_000, part.n_batches * 1000)
    ruled_out = advised(chunked_script(1)).ruled_out
    sentence = next(each.sentence for each in ruled_out if each.levers == (Lever.CHUNKS,))
    assert sentence == "unknown bytes read and 1.00 decoded for each byte used."


@pytest.mark.parametrize(("shuffles", "more"), [(False, ""), (True, ", shuffle=True")])
def test_a_script_is_advised_the_order_that_it_has(shuffles, more) -> None:
    loading = chunked_script(1, shuffles=shuffles)
    lines = only(advised(loading), Lever.LOADER).commands
    assert lines == (f"iobench.open_dataset(dataset).loader(4{more})",)


# Workers that are started in each epoch, or for each evaluation.


def saved(before: RunData, after: RunData) -> float:
    parts = [exposure(each).recurring for each in (before, after)]
    first, second = (each.wall_ns / each.n_batches for each in parts)
    return 1 - second / first


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    "shape",
    [
        {"epochs": 6, "batches": 20, "start_ns": 900},
        {"epochs": 5, "batches": 8, "start_ns": 900},  # few batches, but epochs enough
        {"epochs": 4, "batches": 400, "start_ns": 9000},  # of each, a part is replayed
    ],
)
def test_kept_workers_are_advised_with_what_they_gain(shape) -> None:
    shape |= {"end_ns": 100}
    gain = only(advised(recurring(**shape)), Lever.KEEP_WORKERS)
    assert gain.evidence is REPLAYED
    obtained = saved(epochs_of(**shape), epochs_of(**shape, kept=True))
    assert gain.low_fraction <= obtained <= gain.high_fraction
    assert gain.saved_fraction == close(obtained)
    # Epochs are alike, but that the last one has the end of the workers in both.
    assert gain.high_fraction - gain.low_fraction < 0.2
    assert gain.is_proven


@pytest.mark.parametrize("anew", [False, True])
def test_a_loader_is_advised_to_keep_its_workers_or_to_be_made_once(anew) -> None:
    shape = {"epochs": 6, "batches": 20, "anew": anew}
    change = advised(recurring(**shape, start_ns=900)).changes[0]
    assert change.levers == (Lever.KEEP_WORKERS,)
    (line,) = change.commands
    assert line.startswith("DataLoader(..., persistent_workers=True)  # made once")
    change = advised(recurring(**shape, start_ns=0, workers=0)).changes[0]
    assert change.levers == (Lever.WORKERS, Lever.KEEP_WORKERS)
    (line,) = change.commands
    assert line.startswith("DataLoader(..., num_workers=2, persistent_workers=True)")
    # Starts, however dear, are in the first epoch alone.
    before = epochs_of(epochs=6, batches=20, start_ns=0, workers=0)
    after = epochs_of(epochs=6, batches=20, start_ns=5000, workers=2, kept=True)
    assert change.low_fraction <= saved(before, after) <= change.high_fraction


@pytest.mark.long
@given(shapes_of_epochs, st.tuples(*[st.integers(0, 100)] * 2))
@settings(max_examples=15, deadline=None)
def test_no_bound_is_exceeded_where_workers_restart(shape, left) -> None:
    before, gains = epochs_of(**shape), defaultdict(float)
    for each in every(advised(recurring(**shape))):
        for lever in each.levers:
            gains[lever] = max(gains[lever], each.high_fraction or 1.0)
    # Finished samples: nothing to open, nothing to decode, little to read, the same to collate.
    stages = (*(share // 100 for share in left), shape["stages"][2])
    fast = {**shape, "open_ns": 0, "stages": stages}
    for lever, after in (
        (Lever.FORMAT, epochs_of(**fast)),
        (Lever.FORMAT, epochs_of(**fast, kept=True)),
        (Lever.LOADER, epochs_of(**fast, kept=True)),
        (Lever.LOADER, epochs_of(**{**shape, "workers": 4}, kept=True)),
        (Lever.KEEP_WORKERS, epochs_of(**shape, kept=True)),
    ):
        gain = saved(before, after)
        assert gain <= max(gains[lever], 0.01) + 1e-9, lever


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
    walls = [exposure(each).whole.wall_ns for each in (before, after)]
    best = advised(measured(before, framework="torch", machine=MACHINE)).changes[0]
    assert best.levers == (Lever.KEEP_WORKERS,)
    assert best.settings["passes"] == "validation"
    assert best.saved_fraction == close(1 - walls[1] / walls[0], 0.005)
    assert best.low_fraction <= best.saved_fraction <= best.high_fraction
    (line,) = best.commands
    assert line.endswith("persistent_workers=True)  # made once, before the first validation")
