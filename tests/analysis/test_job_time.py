"""Where all the time of a job goes: parts of hand-made scripts, exact to the nanosecond."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from scripts import LOOP, Script

from iobench.analysis.exposure_figures import PARTS, job_of_ranks
from iobench.analysis.run import Run
from iobench.recording.facts import ProcessFacts
from iobench.recording.kinds import Kind
from iobench.recording.span_reader import Anchor

LAUNCHER = ProcessFacts(pid=1, ppid=0, host="here", role="launcher", ended="exit 0")


def job_of(script, *, closed_ns=None, exit_ns=None, **told):
    """Return the time of a script that began at 0, and the profile it was told from."""
    script.close()
    found = script.sketch.data()
    closed_ns = script.now if closed_ns is None else closed_ns
    anchors = (Anchor(0, 0), Anchor(closed_ns, closed_ns))
    processes = tuple(replace(each, anchors=anchors) for each in found.processes)
    facts = [msgspec.structs.replace(found.facts[0], started_ns=0, **told)]
    if exit_ns is not None:
        facts.append(msgspec.structs.replace(LAUNCHER, ended_ns=exit_ns))
    found = replace(found, processes=processes, facts=tuple(facts))
    return Run(found).of_rank().exposure.job, found


def times(job):
    assert sum(each.ns for each in job.parts) == job.wall_ns
    assert tuple(each.part for each in job.parts) == PARTS
    return {each.part: each.ns for each in job.parts if each.ns}


def read(script, lasts_ns, *, nbytes=1_000, file="a.npy", kind=Kind.READ):
    script.sketch.add(
        LOOP, kind, script.now, script.now + lasts_ns, nbytes=nbytes, detail=file
    )  # fmt: skip
    script.now += lasts_ns


def train(script, loader, *, n_batches=4, computes_ns=10):
    loader.iter()
    for _ in range(n_batches):
        loader.next()
        script.compute(computes_ns)
    loader.end()


def whole_job():
    """A script that does everything: 5 batches of training, 3 of validation, a checkpoint."""
    script = Script()
    script.now = 1_000  # 700 of which imports
    for k in range(3):
        read(script, 100, file=f"{k}.npy")
        script.now += 300
    script.sketch.add(LOOP, Kind.STAGE_IN, script.now, script.now + 50, nbytes=7)
    script.now += 50
    loader, check = script.loader(stages=(1, 1, 1)), script.loader(stages=(30, 20, 10))
    script.sketch.loaders[0].gradients, script.sketch.loaders[1].gradients = True, False
    train(script, loader, n_batches=5)
    train(script, check, n_batches=3, computes_ns=2)
    script.sketch.add(LOOP, Kind.CHECKPOINT, script.now, script.now + 40, nbytes=80)
    script.now += 40 + 9
    return script


def test_each_part_has_its_time_and_they_add_up():
    job, _ = job_of(
        whole_job(), exit_ns=2_900, imports_ns=[(20, 30), (300, 970)],
    )  # fmt: skip
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
    assert job.wall_ns == 2_900
    assert job.bound_by == "between"
    assert job.part("initial_load").nbytes == 3_000
    assert (job.part("checkpoint").nbytes, job.part("stage_in").nbytes) == (80, 7)
    assert job.unknown == ("what some passes over loaders are for; they count as training",)


def test_what_collective_operations_hold_of_computing_is_known():
    script, held = Script(), 9
    loader = script.loader(stages=(1, 0, 0))
    add = script.sketch.add
    add(LOOP, Kind.COMM, script.now, script.now + 5, label="barrier")  # before the loop: none of it
    script.now += 5
    loader.iter()
    for _ in range(4):
        loader.next()
        add(LOOP, Kind.COMM, script.now, script.now + held, label="all_reduce")
        add(LOOP, Kind.COMM, script.now + 1, script.now + held, label="wait")
        script.compute(10)
    loader.end()
    job, _ = job_of(script, imports_ns=[(0, 1)])
    assert job.comm_ns == 4 * held
    assert job.part("train_compute").ns == 40


def test_what_is_read_of_installed_packages_is_no_initial_load():
    script = Script()
    for _ in range(4):  # their versions, as a training's provenance has them
        file = "/env/lib/python3.11/site-packages/some-1.0.dist-info/METADATA"
        read(script, 50, nbytes=1_000_000, file=file)
    read(script, 10, nbytes=2_000)
    train(script, script.loader())
    job, _ = job_of(script, imports_ns=[(0, 0)])
    assert times(job)["initial_load"] == 10
    assert job.part("initial_load").nbytes == 2_000


def test_data_read_anew_between_passes_is_told():
    script = Script()
    for _ in range(3):
        for _ in range(4):
            read(script, 100, nbytes=1_000)
            script.now += 50
        train(script, script.loader())
        script.now += 5
    job, _ = job_of(script, imports_ns=[(0, 0)])
    assert times(job)["initial_load"] == 4 * 100
    assert job.reload_ns == 2 * 4 * 100
    assert job.part("between").nbytes == 2 * 4_000
    assert times(job)["between"] == job.reload_ns + 3 * (4 * 50 + 5)
    assert (
        job.load_ns
        == sum(each.ns for each in job.parts if each.part in ("initial_load", "train_wait"))
        + job.reload_ns
    )


def test_what_imports_read_is_none():
    script = Script()
    read(script, 50)
    script.now += 10
    train(script, script.loader())
    job, _ = job_of(script, imports_ns=[(0, 60)])
    assert "initial_load" not in times(job)
    assert times(job)["imports"] == 60


@pytest.mark.parametrize("ended", ["SIGKILL", None])
def test_a_script_that_is_killed_in_its_initial_load(ended):
    script = Script(closed=False, ended=None)
    for _ in range(4):
        read(script, 100)
        script.now += 900
    job, profile = job_of(script, closed_ns=0, imports_ns=[(0, 0)])
    assert times(job)["initial_load"] == job.wall_ns - times(job).get("between", 0)
    assert any("when the process ended" in text for text in job.unknown)
    facts = (profile.facts[0], msgspec.structs.replace(LAUNCHER, ended_ns=9_000, ended=ended))
    job = Run(replace(profile, facts=facts)).of_rank().exposure.job
    assert (job.wall_ns, job.bound_by) == (9_000, None)
    assert "shutdown" not in times(job)
    (text,) = job.unknown
    assert (ended or "unknown end") in text


def test_an_iterator_that_is_kept_trains_no_longer_than_it_did():
    script = Script()
    loader = script.loader()
    loader.iter()
    for _ in range(5):
        loader.next()
        script.compute(10)
    script.now += 5_000  # what else the script does, with the iterator still there
    job, _ = job_of(script, imports_ns=[(0, 0)])
    assert times(job)["train_compute"] == 5 * 10
    assert times(job)["between"] == 5_000


def test_a_batch_looked_at_first_from_an_iterator_that_is_kept_is_no_training():
    script = Script()
    script.now = 100
    first, loader = script.loader(), script.loader()
    first.iter()
    first.next()
    script.now += 1_000  # sets up, with the iterator still there
    train(script, loader)
    script.now += 5_000
    job, _ = job_of(script, imports_ns=[(0, 0)])
    assert times(job)["train_compute"] == 5 * 10
    assert times(job)["between"] == 100 + 990 + 5_000


def test_a_validation_inside_of_a_training_pass():
    script = Script()
    loader, check = script.loader(), script.loader()
    script.sketch.loaders[1].gradients = False
    script.sketch.loaders[0].gradients = True
    loader.iter()
    for k in range(6):
        loader.next()
        script.compute(10)
        if k == 2:
            train(script, check, n_batches=3, computes_ns=7)
            script.now += 40  # the rest of that step
    loader.end()
    job, _ = job_of(script, imports_ns=[(0, 0)])
    assert times(job)["train_compute"] == 6 * 10 + 40
    assert times(job)["validation_compute"] == 3 * 7
    assert "between" not in times(job)


def test_the_job_of_several_ranks_is_that_of_the_longest():
    one, _ = job_of(whole_job(), exit_ns=2_900)
    two = replace(one, wall_ns=one.wall_ns + 5, rank=1)
    two = replace(two, parts=tuple(
        replace(each, ns=each.ns + 5 * (each.part == "shutdown")) for each in two.parts
    ))  # fmt: skip
    job = job_of_ranks([one, two])
    assert (job.rank, job.n_ranks, job.wall_ns) == (1, 2, 2_905)
    assert sum(each.ns for each in job.parts) == job.wall_ns
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
    for kind, start, lasts in drawn:
        script.sketch.add(LOOP, kind, start, start + lasts, nbytes=lasts)
    edges = np.sort(np.array(imports[: len(imports) // 2 * 2], dtype=np.int64))
    pairs = [tuple(each) for each in edges.reshape(-1, 2).tolist()]
    job, _ = job_of(script, exit_ns=exits, imports_ns=pairs)
    assert min(times(job).values(), default=0) > 0
