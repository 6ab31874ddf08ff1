import json
import os
import pickle

import pytest

from iobench.errors import ProfileError, StorageError
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.recording.span_reader import read_span_file


def test_a_run_is_opened_with_what_it_was_created_with(tmp_path):
    RunDirectory.create(tmp_path / "run", {"dataset": "maelstrom-ens10", "workers": 2})
    config = RunDirectory.open(tmp_path / "run").config
    assert (config["dataset"], config["workers"], config["version"]) == ("maelstrom-ens10", 2, 1)
    assert config["spool"] is None


def test_run_json_is_sorted_and_readable(tmp_path):
    run = RunDirectory.create(tmp_path, {"b": "Höhe", "a": 1})
    text = (run.path / "run.json").read_text("utf-8")
    assert list(json.loads(text)) == sorted(json.loads(text))
    assert "Höhe" in text


def test_updates_add_and_replace(tmp_path):
    run = RunDirectory.create(tmp_path, {"a": 1, "b": 2})
    run.update(b=3, c=4)
    again = RunDirectory.open(tmp_path).config
    assert (again["a"], again["b"], again["c"]) == (1, 3, 4)


def test_an_update_that_fails_leaves_the_run_as_it_was(tmp_path, monkeypatch):
    run = RunDirectory.create(tmp_path, {"a": 1})

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match=r"run\.json: .*No space left"):
        run.update(a=2)
    assert RunDirectory.open(tmp_path).config["a"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "spans"]


def test_a_run_is_never_mixed_with_another(tmp_path):
    RunDirectory.create(tmp_path, {})
    with pytest.raises(StorageError, match="holds a run already"):
        RunDirectory.create(tmp_path, {})


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file/run: cannot be made"):
        RunDirectory.create(tmp_path / "file" / "run", {})


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"version": 99}', "\udcff"])
def test_what_is_no_run_is_named(tmp_path, text):
    if text is not None:
        (tmp_path / "run.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ProfileError, match=r"run\.json: "):
        RunDirectory.open(tmp_path)


def test_recorders_write_into_the_run(tmp_path):
    run = RunDirectory.create(tmp_path, {})
    with run.recorder(role="worker", worker=4) as recorder:
        recorder.emit(Kind.READ, 1, 2)
    (path,) = run.span_files()
    assert read_span_file(path).worker == 4
    assert run.gather() == 0


def test_a_run_travels_to_other_processes(tmp_path):
    run = RunDirectory.create(tmp_path / "run", {"a": 1}, spool=tmp_path / "spool")
    copy = pickle.loads(pickle.dumps(run))
    assert (copy.path, copy.config, copy.spool) == (run.path, run.config, run.spool)


def test_a_name_that_is_no_text_comes_back_as_it_was(tmp_path) -> None:
    name = os.fsdecode(b"/data/\xff \xc3\xa9.npy")
    RunDirectory.create(tmp_path / "run", {"script": name})
    assert RunDirectory.open(tmp_path / "run").config["script"] == name
