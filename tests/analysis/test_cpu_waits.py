"""Time on the run queue is a part of its own: of workers and of the loop, exact."""

import numpy as np
import pytest
from msgspec.structs import replace
from schedules import exposed, pool

from iobench.analysis.counters import cpu_cost_of
from iobench.analysis.diagnosis import diagnose
from iobench.analysis.exposure_figures import CpuCost
from iobench.analysis.replay.changes import Change, changed
from iobench.analysis.replay.runs import reported_loaders
from iobench.analysis.run import Run
from iobench.findings.advice.advising import advice_of
from iobench.findings.advice.loading import loading_of
from iobench.findings.advice.next_steps import NextSteps
from iobench.findings.advice.proposals import AdviceOutcome
from iobench.findings.faster_stages import faster_stages, replay_section
from iobench.recording.facts import ProcessFacts
from iobench.recording.kinds import Kind
from iobench.recording.machine_head import MachineHead
from iobench.recording.span_file import Flag
from iobench.report.sentences import verdict_sentence
from iobench.runs.machine_samples import MachineSamples
from tests.support.sketched_runs import CONSUMER, SketchedRun

WORKER = ("worker", 0)


def looked(sketch, lane, start_ns, end_ns, queued_ns, batch, **more):
    of = {"cpu_ns": queued_ns, "batch": batch, "flags": Flag.IO, **more}
    sketch.add(lane, Kind.CPU_WAIT, start_ns, end_ns, **of)


def one_batch(*, queued_ns, in_loop_ns=0, blocked=False):
    """Submitted at 0, begun at 20, made at 100, unpickled from 110 to 150, held at 160."""
    sketch = SketchedRun({"workers": 1, "prefetch": 2})
    sketch.submit(0, 0, 0, 20)
    sketch.add(WORKER, Kind.READ, 20, 40, batch=0)
    sketch.add(WORKER, Kind.DECODE, 40, 100, batch=0)
    sketch.add(CONSUMER, Kind.UNPICKLE, 110, 150, batch=0, cpu_ns=10)
    sketch.wait(0, 0, 160, "worker-0")
    looked(sketch, WORKER, 0, 200 if blocked else 100, queued_ns, 0)
    looked(sketch, CONSUMER, 0, 160, in_loop_ns, 0)
    return sketch


@pytest.mark.parametrize(
    ("queued_ns", "in_loop_ns", "expected"),
    [
        (0, 0, {"decode": 60, "unpickle": 40, "read": 20, "startup": 20, "handover": 20}),
        # First what nobody worked in, before the first stage;
        (20, 0, {"decode": 60, "unpickle": 40, "read": 20, "cpu_wait": 20, "handover": 20}),
        # then the stages in proportion.
        (60, 0, {"decode": 30, "unpickle": 40, "read": 10, "cpu_wait": 60, "handover": 20}),
        # In the loop unpickling but for its CPU time, then the hand-over from its end.
        (0, 25, {"decode": 60, "unpickle": 15, "read": 20, "startup": 20, "handover": 20,
                 "cpu_wait": 25}),
        (0, 45, {"decode": 60, "unpickle": 10, "read": 20, "startup": 20, "handover": 5,
                 "cpu_wait": 45}),
    ],
)  # fmt: skip
def test_waiting_for_a_cpu_is_taken_first_from_what_nobody_works_in(
    queued_ns, in_loop_ns, expected
):
    sketch = one_batch(queued_ns=queued_ns, in_loop_ns=in_loop_ns)
    figures = Run(sketch.data()).of_rank().exposure.whole
    assert figures.exposed_ns == expected
    assert sum(figures.exposed_ns.values()) == figures.wait_ns == 160
    for row in figures.stages:
        assert row.busy_ns == row.hidden_ns + row.exposed_ns >= row.exposed_ns


def test_unpickling_waits_for_its_worker_that_waits_for_a_cpu():
    # Until 200 the worker makes another batch, half of the time on the run queue.
    sketch = one_batch(queued_ns=90, blocked=True)
    sketch.submit(0, 1, 100, 100)
    sketch.add(WORKER, Kind.DECODE, 100, 200, batch=1)
    # 180 ns of work after 20 of idle: 20 of the 90 were these; of 30 ns off the CPU 30 * 90 / 200.
    found = exposed(sketch.data())
    assert found["unpickle"] == 40 - 30 * (40 * 90 // 200) // 40
    assert sum(found.values()) == 160


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_any_looks_leave_both_partitions_exact(workers):
    random = np.random.default_rng(workers)
    sketch = pool(random.integers(1, 50, (12, 3)).tolist(), workers=workers, step_ns=7)
    plain = Run(sketch.data()).of_rank().exposure.whole
    lanes = [("worker", number) for number in range(workers)]
    for lane in lanes:
        ends = sorted(s["end_ns"] for s in sketch.spans if s["lane"] == lane and s["kind"] == 7)
        for since, until in zip([0, *ends], ends, strict=False):
            looked(sketch, lane, since, until, int(random.integers(0, until - since + 1)), 0)
    for wait in [s for s in sketch.spans if s["kind"] == Kind.WAIT and s.get("batch", -1) >= 0]:
        length = wait["end_ns"] - wait["start_ns"]
        looked(sketch, CONSUMER, wait["start_ns"], wait["end_ns"], length // 3, wait["batch"])
    whole = Run(sketch.data()).of_rank().exposure.whole
    assert sum(whole.exposed_ns.values()) == whole.wait_ns == plain.wait_ns
    busy = {row.stage: row.busy_ns for row in whole.stages}
    before = {row.stage: row.busy_ns for row in plain.stages}
    for stage in ("read", "decode", "collate"):
        assert busy.get(stage, 0) <= before[stage]
    assert busy["cpu_wait"] > 0
    for row in whole.stages:
        assert 0 <= row.exposed_ns <= row.busy_ns


def test_a_faster_stage_waits_less_for_a_cpu():
    sketch = pool([[10, 60, 10]] * 12, workers=2, step_ns=5)
    for number in range(2):
        for turn in range(6):
            looked(sketch, ("worker", number), 80 * turn, 80 * turn + 80, 40, 0)
    (run,) = Run(sketch.data()).of_rank().cached(reported_loaders)
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
    run = Run(pool([[10, 60, 10]] * 12, workers=2, step_ns=1000).data()).of_rank()
    told = replace(run.exposure, cpus=cost)
    text = verdict_sentence(diagnose(told))
    words = "Loading takes 9.10 s of 24.0 s of CPU time, on CPUs that are 90 % busy; steps"
    assert (words in text) is slows
    assert text.startswith("Hidden")
    way = replace(loading_of(run, run.cached(reported_loaders)), exposure=told)
    advice, steps = advice_of([way]), NextSteps.after([way])
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
        looked(sketch, WORKER, since, since + 40, 0, batch, nbytes=35)
        looked(sketch, CONSUMER, since, since + 50, 0, batch, nbytes=50)
        # Each thread that looks counts all of its process.
        looked(sketch, CONSUMER, since, since + 50, 0, batch, nbytes=50, thread=1)
        sketch.add(CONSUMER, Kind.READ, since, since + 20, batch=batch, cpu_ns=9, thread=1)
        sketch.add(CONSUMER, Kind.DECODE, since + 5, since + 9, batch=batch, cpu_ns=4, thread=1)
    sketch.round(0, 400)
    head = MachineHead("here", "boot", (0, 1), 10**9, quota, columns=("cgroup.cpu_us",))
    ticks = np.array([[0, 0], [200, 160], [400, 320]])
    used = {"cgroup.cpu_us": np.array([0.0, 0.19, 0.38])}
    machine = MachineSamples(head, np.array([0, 200, 400]), ticks, used)
    data = replace(sketch.data(), machines=(machine,), facts=())
    facts = tuple(
        ProcessFacts(host="here", pid=n, ppid=1, role="consumer", rank=n) for n in range(ranks)
    )
    run = Run(replace(data, facts=facts)).of_rank(0)
    every = np.ones(len(run.deliveries), dtype=bool)
    cost = cpu_cost_of(run, run.loop, run.deliveries, every)
    assert (cost.loading_ns, cost.total_ns) == (4 * (35 + 9), 4 * (35 + 50))
    assert (cost.busy_fraction, cost.others_fraction) == pytest.approx((busy, others))
    assert cost.slows_steps


def test_halved_stages_have_no_upper_bound_on_saturated_cpus():
    sketch = pool([[10, 60, 10]] * 48, workers=2, step_ns=5)
    for wait in [each for each in sketch.spans if each["kind"] == Kind.WAIT]:
        looked(sketch, CONSUMER, wait["start_ns"], wait["end_ns"], 0, 0, nbytes=5)
    for turn in range(24):
        looked(sketch, WORKER, 80 * turn, 80 * turn + 80, 0, 0, nbytes=80)
    until = max(each["end_ns"] for each in sketch.spans)
    head = MachineHead("here", "boot", (0, 1), 10**9)
    machine = MachineSamples(head, np.array([0, until]), np.array([[0, 0], [until, until]]), {})
    predicted = faster_stages(Run(replace(sketch.data(), machines=(machine,))).of_rank())
    assert predicted.no_upper_bound
    assert predicted.gains["decode"].saved_fraction > 0.3
    assert {each.high_fraction for each in predicted.gains.values()} == {None}
    (sentence,) = replay_section(predicted).blocks
    assert sentence.text.startswith("To be tried, as steps may become shorter too")
