"""What is concluded: the verdict as data, what an epoch takes, what loading costs of CPUs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace
from schedules import phases, pool

from iobench.analysis.counters import cpu_cost_of
from iobench.analysis.diagnosis import Verdict, diagnose, diagnosis_of
from iobench.analysis.epochs import BreakEven, epoch_cost
from iobench.analysis.exposure_figures import CpuCost
from iobench.analysis.replay.loader_run import Change, changed
from iobench.analysis.replay.runs import reported_loaders
from iobench.analysis.run import Run, exposure
from iobench.findings.advice.advising import advice_of
from iobench.findings.advice.loading import loading_of
from iobench.findings.advice.next_steps import NextSteps
from iobench.findings.advice.proposals import AdviceOutcome
from iobench.findings.faster_stages import faster_stages, replay_section
from iobench.recording.epoch_reads import EpochReads, LoadRates
from iobench.recording.facts import ProcessFacts
from iobench.recording.kinds import Kind
from iobench.recording.machine_head import MachineHead
from iobench.recording.span_file import Flag
from iobench.report.sentences import verdict_sentence
from iobench.runs.machine_samples import MachineSamples
from tests.support.sketched_runs import CONSUMER, SketchedRun

MS = 1_000_000
GB = 10**9
WORKER = ("worker", 0)


@pytest.mark.parametrize(
    ("how", "has_compute", "expected"),
    [
        ({"step_ns": 15}, True, {"verdict": Verdict.IO_BOUND, "window": "steady"}),
        ({"step_ns": 15}, True, {"top_stage": "read", "top_fraction": pytest.approx(0.6, 0.01)}),
        ({"step_ns": 80}, True, {"verdict": Verdict.HIDDEN, "hidden_fraction": 1.0}),
        ({"step_ns": 45}, True, {"verdict": Verdict.PARTLY_HIDDEN}),
        ({"step_ns": 80, "n": 5}, True, {"start_fraction": 100 / 500}),
        ({"step_ns": 80, "n": 3}, True, {"window": "whole", "start_fraction": 0.0}),
        ({"step_ns": 0}, False, {"verdict": Verdict.NO_COMPUTE}),
        ({"step_ns": 15, "workers": 0}, True, {"hidden_fraction": 0.0}),
    ],
)  # fmt: skip
def test_verdicts_of_pools(how, has_compute, expected):
    how = {"workers": 2, "n": 50, **how}
    figures = exposure(pool([[60, 30, 10]] * how.pop("n"), **how).data())
    verdict = diagnose(replace(figures, has_compute=has_compute))
    assert {name: getattr(verdict, name) for name in expected} == expected


def test_of_an_opaque_pipeline_what_was_traced_of_it_is_said():
    seen = diagnose(exposure(pool([[60, 30, 10]] * 50, workers=2, step_ns=15).data()))
    texts = map(verdict_sentence, (seen, replace(seen, top_stage="opaque:tf.data")))
    assert ["traced, it waits most of all for read" in text for text in texts] == [False, True]


def test_what_is_unknown_is_said_and_without_a_batch_there_is_no_verdict():
    verdict = diagnose(exposure(SketchedRun(workers=2).data()))
    known = verdict.verdict, verdict.wait_fraction, verdict.top_stage
    assert known == (Verdict.NO_BATCH, None, None)
    lost = pool([[60, 30, 10]] * 40, workers=2, step_ns=15).without(WORKER)
    assert diagnose(exposure(lost.data())).unknown_fraction == 1.0


def cold_then_warm(n_epochs, **config):
    """Return a run of epochs of 10 batches, the first read for 200, the others for 20."""
    durations = [[200 if batch < 10 else 20, 5, 5] for batch in range(10 * n_epochs)]
    sketch = pool(durations, workers=2, step_ns=50)
    sketch.config |= {"n_samples": 40, **config}
    for span in sketch.spans:
        if span["kind"] == Kind.WAIT and "batch" in span:
            span["epoch"] = span["batch"] // 10
    return sketch.open().of_rank()


def test_the_first_of_several_whole_epochs_is_apart():
    run = cold_then_warm(4)
    assert phases(run) == [1, 3, 6, 30, 1]
    assert diagnose(run.exposure).verdict == Verdict.HIDDEN
    assert phases(cold_then_warm(1))[3] == 6
    assert phases(cold_then_warm(4, n_samples=1000))[3] == 36


# What an epoch over all samples takes, by what it reads, and when a change has paid.

RATES = LoadRates(first_s=10 / GB, again_s=5 / GB, sample_s=0.001)
KEPT = EpochReads(1000, GB, 0, chunks_nbytes=2 * GB, cache_nbytes=3 * GB, samples_per_chunk=100.0)
AGAIN = EpochReads(1000, 2 * GB, 2 * GB, chunks_nbytes=2 * GB, cache_nbytes=GB, samples_per_chunk=1)


@pytest.mark.parametrize(
    ("reads", "step_s", "expected"),
    [
        (KEPT, 0.0, (11.0, 1.0)),
        (KEPT, 0.1, (10.0 + 96.5, 100.0)),  # chunks are read first: no step hides that
        (AGAIN, 0.0, (21.0, 11.0)),
        (replace(AGAIN, samples_per_chunk=100.0), 0.1, (100.0, 100.0)),  # read all the while
        (EpochReads(10, 0, 0), 0.0, (0.01, 0.01)),
    ],
)
def test_an_epoch_takes_what_it_reads_and_does_not_hide(reads, step_s, expected):
    assert reads.epochs_s(RATES, step_s) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("spent_s", "saved_s", "first_saved_s", "expected"),
    [
        (6.0, 1.0, None, (6.0, False)),
        (6.0, 1.0, 12.0, (0.5, False)),
        (6.0, 0.0, 12.0, (0.5, False)),  # the first epoch alone pays
        (6.0, 0.5, 4.0, (5.0, False)),
        (6.0, 0.0, 4.0, (None, True)),
    ],
)
def test_a_conversion_pays_in_the_first_epoch_or_later(spent_s, saved_s, first_saved_s, expected):
    pays = BreakEven.of(spent_s, None, saved_s, first_saved_s)
    assert (pays.epochs, pays.never) == expected


@given(*[st.floats(1e-3, 1e9)] * 3)
def test_at_break_even_both_trainings_have_taken_equally_long(spent_s, after_s, saved_s):
    epochs = BreakEven.of(spent_s, after_s + saved_s, saved_s).epochs
    both = pytest.approx(epochs * (after_s + saved_s), rel=1e-6)
    assert spent_s + epochs * after_s == both
    assert BreakEven.of(spent_s, after_s, -saved_s).never


READS = EpochReads(10, 20, 0, chunks_nbytes=1000, cache_nbytes=4000, samples_per_chunk=5.0)
TWO_EPOCHS = [10, 0, 0, 10, *[0] * 16]


def reading(reads_nbytes, reads=READS, **config):
    """Return a serial run whose steps take 5 ms: reading 10 bytes 20 ms, making a sample 2."""
    sketch, clock = SketchedRun(
        n_samples=10, n_samples_all=10, batch_size=1, workers=0, prefetch=0, format="source",
        epoch=to_builtins(reads), **config,
    ), 0  # fmt: skip
    for batch, nbytes in enumerate(reads_nbytes):
        stages = {Kind.READ: nbytes * 2 * MS, Kind.PREPROCESS: 2 * MS}
        end = sketch.work(CONSUMER, clock, stages, batch=batch, nbytes=nbytes)
        sketch.wait(batch, clock, end, "consumer", epoch=batch // 10)
        clock = end + 5 * MS
    sketch.shutdown(clock, clock)
    sketch.round(0, clock)
    return sketch.open().of_rank()


def test_epochs_that_were_measured_are_what_they_took_others_are_expected():
    cost = epoch_cost(reading(TWO_EPOCHS))
    assert (cost.n_samples, cost.step_s) == (10, 0.005)
    assert cost.first_s == (2 * 20 + 10 * 2 + 10 * 5) / 1000
    assert cost.later_s == (10 * 2 + 10 * 5) / 1000
    rates = (cost.rates.first_s, cost.rates.again_s, cost.rates.sample_s)
    assert rates == pytest.approx((0.002, 0.002, 0.002))
    cost = epoch_cost(reading([10, 0, 10, 0]))
    assert (cost.first_s, cost.later_s) == pytest.approx((0.11, 0.07))  # the loop loads itself
    cost = epoch_cost(reading([10, 0, 10, 0], threads=1))
    assert (cost.first_s, cost.later_s) == pytest.approx((0.075, 0.05), rel=0.01)


def test_the_verdict_begins_with_a_first_epoch_that_is_much_of_the_run():
    diagnosis = diagnosis_of(reading(TWO_EPOCHS))
    assert diagnosis.first_wait_ns == 2 * 20 * MS  # a batch of the second epoch waits 2 ms
    text = verdict_sentence(diagnosis)
    assert text.startswith("The first epoch waits 40.0 ms longer for data than in steady state")
    assert "later epochs have them in memory" in text
    again = verdict_sentence(diagnosis_of(reading(TWO_EPOCHS, replace(READS, cache_nbytes=500))))
    assert "later epochs decode again what does not fit" in again
    assert not verdict_sentence(diagnosis_of(reading([0] * 20))).startswith("The first")


# What loading takes of CPUs, and what that costs.


def looked(sketch, lane, start_ns, end_ns, queued_ns, **more):
    of = {"cpu_ns": queued_ns, "batch": 0, "flags": Flag.IO, **more}
    sketch.add(lane, Kind.CPU_WAIT, start_ns, end_ns, **of)


def test_a_faster_stage_waits_less_for_a_cpu():
    sketch = pool([[10, 60, 10]] * 12, workers=2, step_ns=5)
    for number in range(2):
        for turn in range(6):
            looked(sketch, ("worker", number), 80 * turn, 80 * turn + 80, 40)
    (run,) = sketch.open().of_rank().cached(reported_loaders)
    at = {name: place for place, name in enumerate(run.stages)}
    assert run.work_ns[6].tolist() == [5, 40, 30, 5]  # collate, cpu_wait, decode, read
    faster = changed(run, Change(stage_factors={"decode": 0.5}))
    assert faster.work_ns[6, at["decode"]] == 15
    assert faster.work_ns[6, at["cpu_wait"]] == 25  # 40 * 25 / 40


@pytest.mark.parametrize(
    ("cost", "slows"),
    [
        (CpuCost(9_100_000_000, 24_000_000_000, 0.9, 0.04), True),
        (CpuCost(9_100_000_000, 24_000_000_000, 0.8, 0.04), False),
        (CpuCost(1_200_000_000, 24_000_000_000, 0.9, 0.04), False),
        # It hardly runs: others keep the CPUs busy.
        (CpuCost(35_000_000, 53_000_000, 0.9, 0.97), False),
        # The step sleeps, as of a device's: nothing of it waits for a CPU.
        (CpuCost(13_500_000_000, 13_700_000_000, 0.9, 0.04), False),
    ],
)
def test_hidden_loading_on_saturated_cpus_is_not_free(cost, slows):
    run = pool([[10, 60, 10]] * 12, workers=2, step_ns=1000).open().of_rank()
    figures = replace(run.exposure, cpus=cost)
    text = verdict_sentence(diagnose(figures))
    assert text.startswith("Hidden")
    words = "Loading takes 9.10 s of 24.0 s of CPU time, on CPUs that are 90 % busy; steps"
    assert (words in text) is slows
    loading = replace(loading_of(run, run.cached(reported_loaders)), exposure=figures)
    advice, steps = advice_of([loading]), NextSteps.after([loading])
    assert (advice.outcome is AdviceOutcome.NOTHING_TO_GAIN) is not slows
    assert any("nothing to gain" in step.reason for step in steps) is not slows
    assert steps[0].reason.startswith("loading that needs less CPU") is slows
    assert not (slows and any("at most" in step.reason for step in steps))


@pytest.mark.parametrize(
    ("quota", "ranks", "busy", "others"),
    [
        (None, 1, 0.9, 1 - 340 / 720),
        (None, 2, 0.9, 1 - 680 / 720),  # the other rank is of this job
        (1.0, 1, 0.95, 1 - 340 / 380),  # the tighter one
    ],
)
def test_cpu_time_of_loading_is_of_workers_and_reader_threads(quota, ranks, busy, others):
    sketch = SketchedRun(workers=1)
    for batch in range(4):
        since = 100 * batch
        sketch.wait(batch, since, since + 50, "worker-0")
        looked(sketch, WORKER, since, since + 40, 0, nbytes=35)
        for thread in (0, 1):  # each thread that looks counts all of its process
            looked(sketch, CONSUMER, since, since + 50, 0, nbytes=50, thread=thread)
        of = {"batch": batch, "thread": 1}
        sketch.add(CONSUMER, Kind.READ, since, since + 20, cpu_ns=9, **of)
        sketch.add(CONSUMER, Kind.DECODE, since + 5, since + 9, cpu_ns=4, **of)
    sketch.round(0, 400)
    head = MachineHead("here", "boot", (0, 1), 10**9, quota, columns=("cgroup.cpu_us",))
    ticks = np.array([[0, 0], [200, 160], [400, 320]])
    used = {"cgroup.cpu_us": np.array([0.0, 0.19, 0.38])}
    machine = MachineSamples(head, np.array([0, 200, 400]), ticks, used)
    facts = tuple(
        ProcessFacts(host="here", pid=n, ppid=1, role="consumer", rank=n) for n in range(ranks)
    )
    run = Run(replace(sketch.data(), machines=(machine,), facts=facts)).of_rank(0)
    every = np.ones(len(run.deliveries), dtype=bool)
    cost = cpu_cost_of(run, run.loop, run.deliveries, every)
    assert (cost.loading_ns, cost.total_ns) == (4 * (35 + 9), 4 * (35 + 50))
    assert (cost.busy_fraction, cost.others_fraction) == pytest.approx((busy, others))
    assert cost.slows_steps


def test_halved_stages_have_no_upper_bound_on_saturated_cpus():
    sketch = pool([[10, 60, 10]] * 48, workers=2, step_ns=5)
    for wait in [each for each in sketch.spans if each["kind"] == Kind.WAIT]:
        looked(sketch, CONSUMER, wait["start_ns"], wait["end_ns"], 0, nbytes=5)
    for turn in range(24):
        looked(sketch, WORKER, 80 * turn, 80 * turn + 80, 0, nbytes=80)
    until = max(each["end_ns"] for each in sketch.spans)
    head = MachineHead("here", "boot", (0, 1), 10**9)
    machine = MachineSamples(head, np.array([0, until]), np.array([[0, 0], [until, until]]), {})
    predicted = faster_stages(Run(replace(sketch.data(), machines=(machine,))).of_rank())
    assert predicted.no_upper_bound
    assert predicted.gains["decode"].saved_fraction > 0.3
    assert {each.high_fraction for each in predicted.gains.values()} == {None}
    (sentence,) = replay_section(predicted).blocks
    assert sentence.text.startswith("To be tried, as steps may become shorter too")
