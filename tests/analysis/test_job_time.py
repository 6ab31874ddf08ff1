"""Where all the time of a job goes: parts of hand-made scripts, exact to the nanosecond."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from schedules import Script

from iobench.analysis.exposure_figures import PARTS, job_of_ranks
from iobench.analysis.run import Run
from iobench.findings.staging import staging_of, staging_of_job
from iobench.recording.facts import ProcessFacts
from iobench.recording.kinds import Kind
from iobench.recording.span_reader import Anchor
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document
from tests.support.sketched_runs import CONSUMER

LAUNCHER = ProcessFacts(pid=1, ppid=0, host="here", role="launcher", ended="exit 0")


def job_of(script, *, closed_ns=None, exit_ns=None, imports_ns=((0, 0),)):
    """Return the time of a script that began at 0, and the profile that it is of."""
    data = script.data()
    closed_ns = script.now if closed_ns is None else closed_ns
    anchors = (Anchor(0, 0), Anchor(closed_ns, closed_ns))
    processes = tuple(replace(each, anchors=anchors) for each in data.processes)
    imports = [tuple(each) for each in imports_ns]
    facts = [msgspec.structs.replace(data.facts[0], started_ns=0, imports_ns=imports)]
    if exit_ns is not None:
        facts.append(msgspec.structs.replace(LAUNCHER, ended_ns=exit_ns))
    data = replace(data, processes=processes, facts=tuple(facts))
    return Run(data).of_rank().exposure.job, data


def times(job):
    assert sum(each.ns for each in job.parts) == job.wall_ns
    assert tuple(each.part for each in job.parts) == PARTS
    return {each.part: each.ns for each in job.parts if each.ns}


def read(script, n, spent_ns, idle_ns=0, **fields):
    """Read so often, and do something else after each time."""
    for _ in range(n):
        script.spend(Kind.READ, spent_ns, **{"nbytes": 1_000, "detail": "a.npy", **fields})
        script.compute(idle_ns)


def whole_job():
    """A script that does everything: 5 batches of training, 3 of validation, a checkpoint."""
    script = Script()
    script.now = 1_000  # 700 of which imports
    read(script, 3, 100, 300)
    script.spend(Kind.STAGE_IN, 50, nbytes=7)
    train = script.loader(stages=(1, 1, 1), gradients=True)
    validation = script.loader(stages=(30, 20, 10), gradients=False)
    script.train(train, 5)
    script.train(validation, 3, 2)
    script.spend(Kind.CHECKPOINT, 40, nbytes=80)
    script.compute(9)
    return script


def test_each_part_has_its_time_and_they_add_up():
    job, _ = job_of(whole_job(), exit_ns=2_900, imports_ns=[(20, 30), (300, 970)])
    assert times(job) == {
        "imports": 30 + 670,
        "initial_load": 3 * 100,
        "stage_in": 50,
        "train_compute": 5 * 10,
        "train_wait": 5 * 3 + 3,
        "validation_compute": 3 * 2,
        "validation_wait": 3 * 60 + 3,
        "checkpoint": 40,
        "between": 270 + 30 + 3 * 300 + 9,
        "shutdown": 2_900 - 2_556,
    }
    assert (job.wall_ns, job.bound_by) == (2_900, "between")
    nbytes = [job.part(each).nbytes for each in ("initial_load", "checkpoint", "stage_in")]
    assert nbytes == [3_000, 80, 7]
    assert job.unknown == ("what some passes over loaders are for; they count as training",)


def test_what_collective_operations_hold_of_computing_is_known():
    script, held_ns = Script(), 9
    loader = script.loader(stages=(1, 0, 0))
    script.spend(Kind.COMM, 5, label="barrier")  # before the loop: none of it
    for _ in range(4):
        loader.next()
        for since, label in ((0, "all_reduce"), (1, "wait")):
            at = script.now
            script.add(CONSUMER, Kind.COMM, at + since, at + held_ns, label=label)
        script.compute(10)
    loader.end()
    job, _ = job_of(script)
    assert job.comm_ns == 4 * held_ns
    assert job.part("train_compute").ns == 40


def test_what_is_read_of_installed_packages_is_no_initial_load():
    script = Script()
    # Their versions, as a training's provenance has them.
    file = "/env/lib/python3.11/site-packages/some-1.0.dist-info/METADATA"
    read(script, 4, 50, nbytes=1_000_000, detail=file)
    read(script, 1, 10, nbytes=2_000)
    script.train(script.loader(), 4)
    job, _ = job_of(script)
    assert (times(job)["initial_load"], job.part("initial_load").nbytes) == (10, 2_000)


def test_data_read_anew_between_passes_is_told():
    script = Script()
    for _ in range(3):
        read(script, 4, 100, 50)
        script.train(script.loader(), 4)
        script.compute(5)
    job, _ = job_of(script)
    parts = times(job)
    assert (parts["initial_load"], job.reload_ns) == (4 * 100, 2 * 4 * 100)
    assert job.part("between").nbytes == 2 * 4_000
    assert parts["between"] == job.reload_ns + 3 * (4 * 50 + 5)
    assert job.load_ns == parts["initial_load"] + parts["train_wait"] + job.reload_ns


def test_what_imports_read_is_none():
    script = Script()
    read(script, 1, 50, 10)
    script.train(script.loader(), 4)
    parts = times(job_of(script, imports_ns=[(0, 60)])[0])
    assert ("initial_load" in parts, parts["imports"]) == (False, 60)


@pytest.mark.parametrize("ended", ["SIGKILL", None])
def test_a_script_that_is_killed_in_its_initial_load(ended):
    script = Script(closed=False, ended=None)
    read(script, 4, 100, 900)
    job, data = job_of(script, closed_ns=0)
    assert times(job)["initial_load"] == job.wall_ns - times(job).get("between", 0)
    assert any("when the process ended" in text for text in job.unknown)
    facts = (data.facts[0], msgspec.structs.replace(LAUNCHER, ended_ns=9_000, ended=ended))
    job = Run(replace(data, facts=facts)).of_rank().exposure.job
    assert (job.wall_ns, job.bound_by) == (9_000, None)
    assert "shutdown" not in times(job)
    (text,) = job.unknown
    assert (ended or "unknown end") in text


def test_iterators_that_are_kept_train_no_longer_than_they_did():
    script = Script()
    script.now = 100
    first, loader = script.loader(), script.loader()
    first.next()  # a batch looked at, and the iterator kept while it sets up
    script.compute(1_000)
    script.train(loader, 4)
    script.compute(5_000)
    parts = times(job_of(script)[0])
    assert (parts["train_compute"], parts["between"]) == (5 * 10, 100 + 990 + 5_000)
    script = Script()
    script.train(script.loader(), 5, end=False)
    script.compute(5_000)  # what else the script does, with the iterator still there
    parts = times(job_of(script)[0])
    assert (parts["train_compute"], parts["between"]) == (5 * 10, 5_000)


def test_a_validation_inside_of_a_training_pass():
    script = Script()
    loader, validation = script.loader(gradients=True), script.loader(gradients=False)
    script.train(loader, 3, end=False)
    script.train(validation, 3, 7)
    script.compute(40)  # the rest of that step
    script.train(loader, 3)
    parts = times(job_of(script)[0])
    assert (parts["train_compute"], parts["validation_compute"]) == (6 * 10 + 40, 3 * 7)
    assert "between" not in parts


def test_the_job_of_several_ranks_is_that_of_the_longest():
    one, _ = job_of(whole_job(), exit_ns=2_900)
    parts = (replace(each, ns=each.ns + 5 * (each.part == "shutdown")) for each in one.parts)
    two = replace(one, wall_ns=one.wall_ns + 5, rank=1, parts=tuple(parts))
    job = job_of_ranks([one, two])
    assert (job.rank, job.n_ranks, job.wall_ns) == (1, 2, 2_905)
    assert sum(times(job).values()) == job.wall_ns
    assert job.part("initial_load").nbytes == 6_000


spans = st.lists(
    st.tuples(
        st.sampled_from([Kind.READ, Kind.CHECKPOINT, Kind.STAGE_IN, Kind.EVALUATE, Kind.FUSED]),
        st.integers(0, 3_000), st.integers(0, 900),
    ),
    max_size=12,
)  # fmt: skip


@given(spans, st.lists(st.integers(0, 3_000), max_size=8), st.integers(-500, 4_000))
def test_whatever_overlaps_the_parts_add_up(drawn, imports, exits):
    script = whole_job()
    for kind, start, spent in drawn:
        script.add(CONSUMER, kind, start, start + spent, nbytes=spent)
    edges = np.sort(np.array(imports[: len(imports) // 2 * 2], dtype=np.int64))
    job, _ = job_of(script, exit_ns=exits, imports_ns=edges.reshape(-1, 2).tolist())
    assert min(times(job).values(), default=0) > 0


# Staging, beside the epochs after it.

COPIER = 2
"""A thread beside the loop."""
EPOCH_NS = 5 * 70 + 3
"""Five batches of 60 ns and 10 ns of compute, and the end of the epoch."""


def staged(*copies, epochs, begins=0):
    """Return a script that copies (thread, start, end), and trains on batches of 70 ns."""
    script = Script()
    for thread, start, end in copies:
        script.add(CONSUMER, Kind.STAGE_IN, start, end, nbytes=1_000, thread=thread)
    script.now = begins
    loader = script.loader(gradients=True)
    for _ in range(epochs):
        script.train(loader, 5)
    return script


@pytest.mark.parametrize(
    ("copies", "epochs", "staged_ns", "epoch_ns"),
    [
        (((0, 100, 400), (COPIER, 200, 600)), 3, 500, EPOCH_NS),
        (((COPIER, 690, 775),), 2, 85, EPOCH_NS),  # beside the first epoch
        (((COPIER, 690, 775),), 1, 85, None),
    ],
)
def test_staging_stands_beside_the_epochs_after_it(copies, epochs, staged_ns, epoch_ns):
    of = staging_of(staged(*copies, epochs=epochs, begins=700).open().of_rank())
    assert (of.staged_ns, of.nbytes) == (staged_ns, 1_000 * len(copies))
    assert (of.epoch_ns, of.staging_to_epoch) == (epoch_ns, epoch_ns and staged_ns / epoch_ns)


def test_what_is_not_known_of_staging_is_not_said():
    script = staged((0, 0, 10), epochs=1, begins=15)
    script.add(CONSUMER, Kind.STAGE_IN, 5, 20, nbytes=-1)
    run = script.open()
    of = staging_of(run.of_rank())
    assert (of.nbytes, of.epoch_ns) == (None, None)
    assert "T_staging / T_epoch is unknown" in TerminalRenderer().render(report_document([run]))
    assert staging_of(staged(epochs=1).open().of_rank()) is None


def test_a_job_has_the_longest_staging_and_the_bytes_of_all():
    ranks = [staged((0, 0, ns), epochs=1, begins=400).open().of_rank() for ns in (100, 300)]
    job = staging_of_job([staging_of(each) for each in ranks])
    assert (job.staged_ns, job.nbytes) == (300, 2_000)
