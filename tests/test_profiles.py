"""Run directories read back as profiles."""

import json

import pytest

from iobench.analysis.run import exposure, open_runs
from iobench.errors import ProfileError
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.runs.reading import open_profile
from tests.support.spools import on_shared

CONFIG = {"workers": 2, "prefetch": 1, "expected_workers": ["worker-0", "worker-1"]}


def record(path):
    """Write a run of two batches made by one of two workers; the other left nothing."""
    run = RunDirectory.create(path, CONFIG)
    with run.recorder(role="worker", worker=0) as recorder:
        file = recorder.string("b.grib")
        recorder.emit(Kind.SUBMIT_QUEUE, 0, 5, batch=0)
        recorder.emit(Kind.READ, 5, 80, nbytes=9, batch=0, detail=file)
        recorder.emit(Kind.PREPROCESS, 80, 90, batch=0, label=recorder.string("augment"))
    with run.recorder(role="consumer") as recorder:
        made = recorder.string("worker-0")
        recorder.emit(Kind.WAIT, 10, 100, batch=0, detail=made)
        recorder.emit(Kind.OTHER, 10, 120, label=recorder.string("round"), sample=0)
    return run


def test_spans_of_all_processes_come_in_one_table(tmp_path):
    record(tmp_path / "run")
    profile = open_profile(tmp_path / "run")
    assert [process.name for process in profile.processes] == ["consumer", "worker-0"]
    assert len(profile.spans) == 5
    read = profile.spans[profile.spans["kind"] == Kind.READ][0]
    assert profile.strings[read["detail"]] == "b.grib"
    assert profile.processes[read["process"]].name == "worker-0"


def test_texts_of_all_processes_are_numbered_alike(tmp_path):
    record(tmp_path / "run")
    profile = open_profile(tmp_path / "run")
    assert profile.strings == ("", "augment", "b.grib", "round", "worker-0")
    label = profile.spans["label"][profile.spans["kind"] == Kind.OTHER][0]
    assert label == profile.string_number("round")
    assert profile.string_number("nowhere") == -1


def test_missing_workers_and_anchors(tmp_path):
    record(tmp_path / "run")
    profile = open_profile(tmp_path / "run")
    assert profile.missing_workers == ("worker-1",)
    assert profile.lost_spans == 0
    assert all(process.closed and len(process.anchors) == 2 for process in profile.processes)


def test_exposure_of_a_recorded_run(tmp_path):
    record(tmp_path / "run")
    whole = exposure(open_profile(tmp_path / "run")).whole
    assert whole.exposed_ns == {"read": 71, "preprocess:augment": 9, "handover": 10}
    assert (whole.wall_ns, whole.compute_ns) == (110, 20)


def test_a_spool_left_behind_is_gathered(tmp_path, monkeypatch):
    on_shared(monkeypatch, tmp_path / "run", tmp_path / "spool")
    assert record(tmp_path / "run").span_files() == []
    assert len(open_profile(tmp_path / "run").processes) == 2
    assert len(list((tmp_path / "run" / "spans").iterdir())) == 2


def test_one_run_directory_per_format(tmp_path):
    for name in ("source", "numpy"):
        record(tmp_path / "run" / name)
    assert [opened.path.name for opened in open_runs(tmp_path / "run")] == ["numpy", "source"]
    assert len(open_runs(tmp_path / "run" / "source")) == 1


@pytest.mark.parametrize("make", [True, False])
def test_what_is_no_run_says_what_was_expected(tmp_path, make):
    path = tmp_path / "empty"
    if make:
        path.mkdir()
    for read in (open_profile, open_runs):
        with pytest.raises(ProfileError, match=r"empty.*iobench profile --out"):
            read(path)


def test_a_run_of_another_version_is_refused(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"version": 99}))
    with pytest.raises(ProfileError, match="version"):
        open_runs(tmp_path)


def test_spans_of_another_boot_are_refused(tmp_path, monkeypatch):
    run = record(tmp_path / "run")
    monkeypatch.setattr("iobench.recording.recorder.boot_id", lambda: "another")
    run.recorder(role="worker", worker=1).close()
    with pytest.raises(ProfileError, match="another start"):
        open_profile(tmp_path / "run")


def test_training_processes_are_read_one_by_one(tmp_path):
    run = record(tmp_path / "run")
    for rank in (1, 3):
        with run.recorder(role="consumer", rank=rank) as recorder:
            recorder.emit(Kind.WAIT, 0, rank, batch=0)
    with run.recorder(role="worker", worker=0, rank=3) as recorder:
        recorder.emit(Kind.READ, 0, 1, batch=0)
    (opened,) = open_runs(tmp_path / "run")
    profiles = list(opened)
    assert [(each.rank, each.ranks) for each in profiles] == [(n, (0, 1, 3)) for n in (0, 1, 3)]
    assert [len(each.spans) for each in profiles] == [5, 1, 2]
    assert [each.name for each in open_profile(run.path, rank=3).processes] == [
        "consumer",
        "worker-0",
    ]
    with pytest.raises(ProfileError, match=r"process 2 left no spans.*0, 1, 3"):
        open_profile(run.path, rank=2)


def test_one_rank_of_a_profile_is_the_profile_of_that_rank(tmp_path):
    run = record(tmp_path / "run")
    with run.recorder(role="consumer", rank=1) as recorder:
        recorder.emit(Kind.WAIT, 0, 7, batch=0)
    for rank in (0, 1):
        part, alone = open_profile(run.path).of_rank(rank), open_profile(run.path, rank=rank)
        assert part.processes == alone.processes
        assert part.missing_workers == alone.missing_workers
        assert exposure(part) == exposure(alone)


def test_two_boots_of_a_machine_are_refused_whichever_rank_is_read(tmp_path, monkeypatch):
    run = record(tmp_path / "run")
    monkeypatch.setattr("iobench.recording.recorder.boot_id", lambda: "another")
    run.recorder(role="consumer", rank=1).close()
    for rank in (0, 1):
        with pytest.raises(ProfileError, match="another start"):
            open_profile(run.path, rank=rank)


def test_a_file_cut_short_is_counted(tmp_path):
    run = record(tmp_path / "run")
    file = next(file for file in run.span_files() if b"worker" in file.read_bytes()[:200])
    file.write_bytes(file.read_bytes()[:-65536])
    assert open_profile(tmp_path / "run").lost_spans >= 1


def test_a_file_that_is_no_span_file_is_named(tmp_path):
    run = record(tmp_path / "run")
    (run.spans_path / "stray.spans").write_bytes(b"no spans")
    with pytest.raises(ProfileError, match=r"stray\.spans"):
        open_profile(tmp_path / "run")
