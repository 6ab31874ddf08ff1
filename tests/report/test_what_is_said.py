"""What reports say of runs sketched span by span: scripts, jobs, stages, and jobs that hung."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from page_runs import JOB, rank_sketch

from iobench import exposure
from iobench.analysis.diagnosis import Verdict, diagnose
from iobench.analysis.run import Run, open_runs
from iobench.analysis.storage_reads import StageStorage
from iobench.findings.storage import ByteRow, StorageFigures, storage_of, storage_section
from iobench.recording import span_file
from iobench.recording.facts import LoaderFacts
from iobench.recording.kinds import RECEIVED, Kind
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import Anchor
from iobench.report.document import NOT_APPLICABLE, KeyFigures, Sentence, Table
from iobench.report.one_screen import one_screen
from iobench.report.renderers.quantities import spelled
from iobench.report.report_document import report_document
from iobench.report.run_report import make_reports
from iobench.runs.reading import open_profile
from iobench.storage.storage_trace import StorageTrace
from tests.support.run_json import to_json
from tests.support.sketched_runs import CONSUMER, SketchedRun

MS = 1_000_000
SCRIPT = {"kind": "script", "command": "python train.py"}
STORE = {"dataset": "own", "format": "numpy", "workers": 0, "batch_size": 2}
SOURCE = STORE | {"format": "source"}


def figures_of(run):
    """Return what JSON has of the only training process of a run."""
    (found,) = report_document([run]).figures()["runs"]
    return found


def serial(config, read_ms=4, step_ms=6, n_batches=40, kind=Kind.READ, nbytes=10**6, **more):
    """Return a run whose batches of two samples are read in the loop."""
    run = SketchedRun(config)
    for batch in range(n_batches):
        now = batch * (read_ms + step_ms) * MS
        end = now + read_ms * MS
        label = "read+decode" if kind == Kind.FUSED else ""
        run.add(CONSUMER, kind, now, end, batch=batch, nbytes=nbytes, label=label)
        for each in more.values():
            run.add(CONSUMER, each, end, end + MS, batch=batch)
        run.wait(batch, now, end, "consumer", sample=batch // 20)
    run.shutdown(end + step_ms * MS, end + step_ms * MS)
    return run


def table(document):
    (section,) = (each for each in document.sections if each.key == "stages")
    (found,) = (each for each in section.blocks if isinstance(each, Table))
    return {str(row[0]): row[1:] for row in found.rows}


# -- verdicts and stages ------------------------------------------------------------------


@pytest.mark.parametrize("why", ["no Python that keeps $PYTHONPATH", "OSError: a: b.py: gone", ""])
def test_a_command_that_was_not_recorded_has_no_other_verdict(why):
    run = SketchedRun(SCRIPT)
    run.facts = {"unseen": ["python t.py: reads of h5py: another release"]}
    if why:
        run.facts = {"role": "launcher", "unseen": [f"python a: b.py: {why}"], "unrecorded": why}
    found = figures_of(run.open())
    assert found["diagnosis"]["verdict"] == ("not recorded" if why else "no consumer")
    assert why in found["verdict"]


def test_data_that_were_loaded_as_usual_are_not_said_to_be_free():
    reads = SketchedRun(SCRIPT)  # without a loader
    for step in range(4):
        reads.work(CONSUMER, 20 * step, {Kind.READ: 9, Kind.STEP: 9})
    for run, unseen, is_known in (
        (serial(SCRIPT), [], True),
        (serial(SCRIPT), ["free data: Stream has no length"], False),
        (reads, [], False),
    ):
        run.config["free_data"] = True
        run.facts = {"unseen": unseen}
        document = report_document([run.open()])
        (found,) = document.figures()["runs"]
        assert (found["replay"]["free_data"]["obtained_steps_per_s"] is not None) == is_known
        assert ("Data were free" in one_screen(document, "")) == is_known


@pytest.mark.parametrize(
    ("run", "absent"),
    [
        (serial(STORE), ["decode (done at conversion)", "preprocess (done at conversion)",
                         "copies to device (no accelerator)"]),
        (serial(SOURCE), ["decode (none recorded)", "preprocess (none recorded)",
                          "copies to device (no accelerator)"]),
        (serial(SCRIPT, copy=Kind.H2D), ["decode (none recorded)", "preprocess (none recorded)",
                                         "copies to device (in the loop's computing)"]),
        (serial(SOURCE, kind=Kind.FUSED), ["making samples (read+decode)",
                                           "read (not separable from making samples)",
                                           "decode (not separable from making samples)",
                                           "preprocess (none recorded)",
                                           "copies to device (no accelerator)"]),
    ],
)  # fmt: skip
def test_stages_of_every_pipeline_are_there_and_say_why_they_take_no_time(run, absent):
    document = report_document([run.open()])
    assert [name for name in table(document) if " (" in name] == absent
    (figures,) = (each for each in document.sections[0].blocks if isinstance(each, KeyFigures))
    has_copies = "in the loop" in absent[-1]
    name = "Accelerator utilisation" if has_copies else "Training loop busy"
    assert name in [each.name for each in figures.figures]


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["OpenedStore", "OpenedStore"], "done at conversion"),
        (["OpenedStore", "Fields"], "none recorded"),
    ],
)
def test_loaders_of_stores_alone_decode_nothing(names, why):
    run = serial(SCRIPT)
    run.loaders = [LoaderFacts(n, "torch", "DataLoader", name) for n, name in enumerate(names)]
    for n in (0, 1):
        span = {"label": "round", "sample": n, "detail": f"loader-{n}"}
        run.add(CONSUMER, Kind.OTHER, n * 200 * MS, (n + 1) * 200 * MS, **span)
    document = report_document([run.open()])
    assert f"decode ({why})" in table(document)
    (steps,) = (section.blocks for section in document.sections if section.key == "next")
    is_offered = any("finished samples" in step.reason for step in steps)
    assert is_offered is ("Fields" in names)  # to be made once, what is not yet


@pytest.mark.parametrize(
    ("kind", "nbytes", "is_rate"),
    [
        (Kind.READ, 4 * 10**9, True),
        (Kind.READ, 4 * 10**9 + 1, False),  # less than a microsecond per megabyte: what is there
        (Kind.LOCK, 4000, False),
    ],
)
def test_a_rate_is_said_of_what_is_worked_on_alone(kind, nbytes, is_rate):
    rows = table(report_document([serial(STORE, kind=kind, nbytes=nbytes).open()]))
    name = "read" if kind == Kind.READ else "library lock"
    assert (rows[name][-1] != NOT_APPLICABLE) is is_rate
    assert (rows[name][-2] == NOT_APPLICABLE) is (kind == Kind.LOCK)


def test_without_a_step_the_rate_of_loading_is_said_first():
    none = {"compute": {"forward_ns": 0, "backward_ns": 0}}
    found = figures_of(serial(STORE | none, read_ms=10, step_ms=0).open())
    assert found["verdict"].startswith(
        "Loads 200 samples/s, 5.00 ms each. The largest stage is read (100 % of the work of "
    )


def test_without_a_consumer_exposure_is_not_defined(tmp_path):
    run = SketchedRun(JOB)
    run.work(CONSUMER, 0, {Kind.READ: 30 * MS, Kind.DECODE: 10 * MS}, nbytes=5_000_000)
    found = figures_of(run.write(tmp_path / "run"))
    assert {found[key] for key in ("wait_ns", "wall_ns", "exposed_ns")} == {None}
    assert found["diagnosis"]["verdict"] == "no consumer"
    ((process,),) = (each.processes for each in make_reports([Run(tmp_path / "run")]))
    rows = [(row.stage, row.busy_ns) for row in process.stages]
    assert rows == [("read", 30 * MS), ("decode", 10 * MS)]


@pytest.mark.parametrize(("device", "expected"), [(0, None), (2_000_000, 0.25)])
def test_a_script_that_read_nothing_from_a_device_may_not_have_been_counted(device, expected):
    run = rank_sketch([10])
    counter = {"nbytes": 8_000_000, "cpu_ns": device, "batch": 0, "flags": Flag.IO}
    run.add(("worker", 0), Kind.OTHER, 5, 5, **counter)
    assert figures_of(run.open())["cold_fraction"] == expected


def test_a_script_begins_with_verdict_gain_and_timeline(tmp_path):
    run = serial(SCRIPT)
    run.facts = {"started_ns": 0, "ended_ns": 500 * MS}
    keys = [each.key for each in report_document([run.write(tmp_path / "run")]).sections]
    assert keys[0] == "verdict"
    assert keys.index("next") < keys.index("timeline") < keys.index("job_time")


# -- jobs ---------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path):
    for rank, waits_ms in enumerate([(10, 10, 10), (30, 10, 10), (10, 10, 10)]):
        run = rank_sketch(waits_ms, rank, world_size=4)
        run.facts["ended"] = "RuntimeError" if rank == 2 else "closed"
        run.write(tmp_path / "job")
    return tmp_path / "job"


def test_a_job_is_compared_rank_by_rank_read_one_by_one_or_together(job):
    (opened,) = open_runs(job)
    found = json.loads(json.dumps(to_json([opened]), allow_nan=False))
    assert [each.rank for each in opened] == [run["rank"] for run in found["runs"]] == [0, 1, 2]
    assert (found["job"]["world_size"], found["job"]["steps"]) == (4, 3)
    assert [each["wait_ns"] for each in found["job"]["ranks"]] == [30 * MS, 50 * MS, 30 * MS]
    assert found["job"]["imbalance"] == pytest.approx(50 / (110 / 3))
    assert found["job"]["missing"] == {"ended with RuntimeError": [2], "never started": [3]}
    assert exposure(open_profile(job, rank=1)).whole.wait_ns == 50 * MS
    assert exposure(open_profile(job), rank=1) == exposure(open_profile(job, rank=1))
    assert to_json([Run(open_profile(job))]) == to_json(open_runs(job))


def test_ranks_that_are_missing_are_counted_once(tmp_path):
    run = SketchedRun({**SCRIPT, "world_size": 4})
    run.processes[CONSUMER] = {"rank": 1}
    run.facts = {"world_size": 4}
    for batch in range(10):
        run.wait(batch, 10 * batch * MS, (10 * batch + 4) * MS, "consumer")
    text = one_screen(report_document([run.write(tmp_path / "run")]), "iobench report run")
    assert text.count("3 of 4 ranks (0, 2 to 3): never started.") == 1


# -- storage ------------------------------------------------------------------------------


def test_of_storage_what_was_not_counted_is_unknown_or_has_no_column():
    file = ByteRow("/data/a.npy", 2_048_000)
    in_stages = {"read": StageStorage(56_900_000, 26_900_000), "fused": StageStorage(9_000, None)}
    section = storage_section(StorageFigures(bytes=(file,), in_stages=in_stages))
    (stages,) = (spelled(each) for each in section.blocks if isinstance(each, Table))
    assert stages.rows[1][2:] == ("unknown",)
    (only,) = storage_section(StorageFigures(bytes=(file,))).blocks
    assert only == Sentence("Bytes read: requested 2.05 MB, read calls unknown, device unknown.")
    rank = SimpleNamespace(is_one_of_many=True, trace=StorageTrace(), placement=None)
    figures = storage_of(rank)  # of one of many ranks logs are not evaluated
    assert figures == StorageFigures(notes=figures.notes)
    assert storage_of(SimpleNamespace(**vars(rank) | {"trace": None})) is None


# -- jobs that ended, or were ended, in a wait for a batch that did not come ---------------

HUNG = "No batch came in the last 12.0 s"
BOTH = f"{HUNG}: worker-0, worker-1 (processes 101, 102) finished nothing."
ONE = f"{HUNG}: worker-1 (process 102) finished nothing."
REMEDY = 'multiprocessing_context="forkserver" avoids that.'
MAYBE = f"If another thread held a lock while workers were forked, {REMEDY}"


def started(method, *finished):
    """Return a script with two workers, some of which made a batch in the second ms."""
    run = SketchedRun(SCRIPT)
    run.loaders = [LoaderFacts(0, "torch", "DataLoader", "Fields", workers=2, start_method=method)]
    for worker in (0, 1):
        run.processes["worker", worker, 0] = {"pid": 101 + worker}
    for worker in finished:
        run.add(("worker", worker, 0), Kind.READ, MS, 2 * MS, batch=worker)
    return run


@pytest.mark.parametrize(
    ("waited_s", "finished", "method", "said"),
    [
        (4, (), "fork", "No verdict: no batch was delivered."),
        (12, (), "", f"{BOTH} {MAYBE}"),
        (12, (), "fork", f"{BOTH} {MAYBE}"),
        (12, (), "spawn", BOTH),
        (12, (0,), "fork", ONE),
        (12, (0, 1), "fork", f"{HUNG}."),
    ],
)
def test_a_job_that_hung_says_which_worker_gave_nothing(waited_s, finished, method, said):
    run = started(method, *finished)
    run.add(CONSUMER, Kind.WAIT, 0, waited_s * 1000 * MS, label="failed", sample=0)
    assert figures_of(run.open())["verdict"] == said


def test_of_a_hang_in_the_midst_of_a_training_nothing_is_advised():
    run = started("fork", 0, 1)
    run.wait(0, 0, 3 * MS, "worker-0", sample=0)
    run.add(("worker", 0, 0), Kind.READ, 5 * MS, 6 * MS, batch=2)
    run.add(CONSUMER, Kind.WAIT, 4 * MS, 12_004 * MS, label="failed", sample=0)
    document = report_document([run.open()])
    assert document.figures()["runs"][0]["verdict"] == ONE
    assert "next" not in {section.key for section in document.sections}


def test_a_hang_behind_a_queue_is_since_the_last_batch_that_came_out_of_it(tmp_path):
    run = started("fork", 0, 1)
    for number in (0, 1):  # a thread asks, and puts what it gets into a queue
        requested_ns, taken_ns = 2 * number * MS, (10 + number * 10) * MS
        run.wait(number, requested_ns, requested_ns + MS, f"worker-{number}", thread=1, sample=0)
        more = {"label": RECEIVED, "flags": Flag.DETAIL, "sample": 0}
        run.wait(number, taken_ns - MS, taken_ns, f"worker-{number}", **more)
        run.add(CONSUMER, Kind.STEP, taken_ns + 2 * MS, taken_ns + 3 * MS)
    run.add(CONSUMER, Kind.WAIT, 5 * MS, 12_020 * MS, label="failed", sample=0, thread=1)
    assert figures_of(run.write(tmp_path / "run"))["verdict"] == BOTH


@pytest.mark.parametrize(
    ("asked_ms", "ended_ms", "more", "wait_ms"),
    [
        (100, 5100, {}, 5000),
        (100, 5099, {}, 0),  # too short to be worth a sentence
        (92, 60_000, {}, 0),  # answered
        (0, 60_000, {}, 0),  # recorded before waits were noted as they begin
        (100, None, {}, 0),  # nobody knows until when
        (100, 60_000, {"closed": True}, 0),
        (100, 60_000, {"later_ms": 9000}, 0),  # another process took its place
    ],
)
def test_a_killed_job_waited_until_its_launcher_saw_its_end(
    tmp_path, asked_ms, ended_ms, more, wait_ms
):
    run = SketchedRun(SCRIPT)
    run.loaders = [LoaderFacts(0, "torch", "DataLoader", "Fields")]
    run.facts = {"role": "launcher", "ended_ns": None if ended_ms is None else ended_ms * MS}
    run.processes[CONSUMER] = {"closed": more.get("closed", False)}
    for batch in range(10):
        run.wait(batch, batch * 10 * MS, (batch * 10 + 2) * MS, "consumer", sample=0)
    if "later_ms" in more:
        anchors = (Anchor(more["later_ms"] * MS, 0),)
        run.processes["consumer", 9] = {"closed": False, "anchors": anchors}
    run.write(tmp_path / "run")
    (path,) = (tmp_path / "run" / "spans").glob("*-consumer.spans")
    with path.open("r+b") as file:
        file.seek(span_file.REQUEST_OFFSET)
        file.write(span_file.REQUEST.pack(asked_ms * MS, 0, 0))
    found = Run(tmp_path / "run").of_rank().exposure
    assert (found.hang.wait_ns if found.hang else 0) == wait_ms * MS
    assert found.whole.wait_ns == (20 + wait_ms) * MS
    assert (diagnose(found).verdict is Verdict.HUNG) is bool(wait_ms)
