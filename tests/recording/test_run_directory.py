"""Run directories: what they say, names, and span files that lie elsewhere until gathered."""

import json
import os
import pickle

import pytest

from iobench.errors import ProfileError, StorageError
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory, choose_spool, gather
from iobench.recording.span_reader import read_span_file
from tests.support.spools import on_shared


def test_only_runs_on_shared_file_systems_are_spooled_and_not_onto_these(tmp_path, monkeypatch):
    (tmp_path / "job").mkdir()
    job = {"SLURM_TMPDIR": str(tmp_path / "job")}
    on_shared(monkeypatch, tmp_path / "run")
    assert choose_spool(tmp_path / "local", job) is None
    spool = choose_spool(tmp_path / "run", job)
    assert spool is not None
    assert spool.parent == tmp_path / "job"
    on_shared(monkeypatch, tmp_path)
    spool = choose_spool(tmp_path / "run", job)
    assert spool is None or not spool.is_relative_to(tmp_path)
    if spool is not None:
        spool.rmdir()


@pytest.fixture
def run(tmp_path, monkeypatch):
    on_shared(monkeypatch, tmp_path / "run", tmp_path / "spool")
    return RunDirectory.create(tmp_path / "run", {"a": 1})


def record(run, worker=0):
    with run.recorder(role="worker", worker=worker) as recorder:
        recorder.emit(Kind.READ, 1, 2)
    return recorder.path


def n_spans(run):
    return [len(read_span_file(path).spans) for path in run.span_files()]


def test_span_files_lie_in_the_spool_until_gathered(run):
    path = record(run)
    assert run.span_files() == []
    assert RunDirectory.open(run.path).gather() == 1
    assert n_spans(run) == [1]
    assert not path.exists()
    assert not run.spool.exists()
    assert record(run, 1).name != run.span_files()[0].name, "a name that is taken"
    assert run.gather() == 1
    assert n_spans(run) == [1, 1]


def test_a_living_file_is_copied_and_brought_again(run):
    """Who reads the run on another machine has what there was."""
    with run.recorder(role="worker", worker=0) as recorder:
        recorder.emit(Kind.READ, 1, 2)
        assert (run.gather(), n_spans(run)) == (1, [1])
        recorder.emit(Kind.READ, 3, 4)
        assert recorder.path.exists()
    assert (run.gather(), n_spans(run)) == (1, [2])
    assert (run.gather(), n_spans(run)) == (0, [2])


def test_a_run_takes_no_files_from_the_spool_of_another(run, tmp_path):
    path = record(run)
    other = RunDirectory.create(tmp_path / "other", {})
    other.update(spool={"path": str(run.spool), "host": "here"})
    RunDirectory.open(other.path).gather()
    assert path.exists()
    assert (RunDirectory.open(run.path).gather(), n_spans(run)) == (1, [1])


def test_a_copy_that_fails_loses_nothing(run, monkeypatch):
    record(run)

    def full(source, target, nbytes):
        target.write(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfileobj", full)
        with pytest.raises(StorageError, match=r"\.spans: cannot be copied .*No space left"):
            run.gather()
    assert list(run.spans_path.iterdir()) == []
    assert run.gather() == 1


def test_a_file_that_cannot_be_read_stays_in_the_spool_as_well(tmp_path):
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "a.spans").write_bytes(b"garbage")
    gather(tmp_path / "spool", tmp_path / "run")
    assert (tmp_path / "run" / "a.spans").read_bytes() == b"garbage"
    assert (tmp_path / "spool" / "a.spans").exists()
    assert gather(tmp_path / "on another machine", tmp_path) == 0


def test_a_run_is_opened_with_what_it_was_created_and_updated_with(run, monkeypatch):
    name = os.fsdecode(b"/data/\xff \xc3\xa9.npy")
    run.update(b="Höhe", script=name)
    text = (run.path / "run.json").read_text("utf-8")
    assert list(json.loads(text)) == sorted(json.loads(text))
    assert "Höhe" in text
    again = RunDirectory.open(run.path)
    assert (again.config["a"], again.config["b"], again.config["script"]) == (1, "Höhe", name)
    copy = pickle.loads(pickle.dumps(again))
    assert (copy.path, copy.config, copy.spool) == (run.path, run.config, run.spool)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match=r"run\.json: .*No space left"):
        run.update(a=2)
    assert RunDirectory.open(run.path).config["a"] == 1
    assert sorted(path.name for path in run.path.iterdir()) == ["run.json", "spans"]


def test_a_directory_that_holds_a_run_or_cannot_be_made_is_named(tmp_path):
    RunDirectory.create(tmp_path, {})
    with pytest.raises(StorageError, match="holds a run already"):
        RunDirectory.create(tmp_path, {})
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file/run: cannot be made"):
        RunDirectory.create(tmp_path / "file" / "run", {})


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"version": 99}', "\udcff"])
def test_what_is_no_run_is_named(tmp_path, text):
    if text is not None:
        (tmp_path / "run.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ProfileError, match=r"run\.json: "):
        RunDirectory.open(tmp_path)
