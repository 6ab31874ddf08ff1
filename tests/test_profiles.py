"""Run directories read back as profiles."""

import json

import pytest

from iobench.analysis.run import exposure, open_runs
from iobench.errors import ProfileError
from iobench.recording.kinds import Kind
from iobench.recording.span_reader import Anchor
from iobench.runs.reading import open_profile
from tests.support.sketched_runs import SketchedRun

CONFIG = {"workers": 2, "prefetch": 1, "expected_workers": ["worker-0", "worker-1"]}
WORKER = ("worker", 0)


@pytest.fixture
def sketch():
    """Two batches made by one of two workers; the other left nothing."""
    run = SketchedRun(CONFIG)
    run.process = {"anchors": (Anchor(0, 0), Anchor(120, 120))}
    run.add(WORKER, Kind.SUBMIT_QUEUE, 0, 5, batch=0)
    run.add(WORKER, Kind.READ, 5, 80, nbytes=9, batch=0, detail="b.grib")
    run.add(WORKER, Kind.PREPROCESS, 80, 90, batch=0, label="augment")
    run.wait(0, 10, 100, "worker-0")
    run.round(10, 120)
    return run


@pytest.fixture
def path(sketch, tmp_path):
    return sketch.write(tmp_path / "run").path


def test_spans_of_all_processes_come_in_one_table(path):
    profile = open_profile(path)
    assert [process.name for process in profile.processes] == ["consumer", "worker-0"]
    assert len(profile.spans) == 5
    read = profile.spans[profile.spans["kind"] == Kind.READ][0]
    assert profile.strings[read["detail"]] == "b.grib"
    assert profile.processes[read["process"]].name == "worker-0"


def test_one_run_directory_per_format(sketch, tmp_path):
    for name in ("source", "numpy"):
        sketch.write(tmp_path / "run" / name)
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


@pytest.mark.parametrize(
    ("lane", "about"), [(("worker", 1), {}), (("consumer", -1, 1), {"rank": 1})]
)
def test_two_boots_of_a_machine_are_refused_whichever_rank_is_read(sketch, tmp_path, lane, about):
    sketch.processes[lane] = {"boot_id": "another", **about}
    with pytest.raises(ProfileError, match="another start"):
        sketch.write(tmp_path / "run")  # and opened
    for rank in (None, 0, 1):
        with pytest.raises(ProfileError, match="another start"):
            open_profile(tmp_path / "run", rank=rank)


def test_training_processes_are_read_one_by_one(sketch, tmp_path):
    for rank in (1, 3):
        sketch.processes["consumer", -1, rank] = {"rank": rank}
        sketch.add(("consumer", -1, rank), Kind.WAIT, 0, rank, batch=0)
    sketch.processes["worker", 0, 3] = {"rank": 3}
    sketch.add(("worker", 0, 3), Kind.READ, 0, 1, batch=0)
    path = sketch.write(tmp_path / "run").path
    (opened,) = open_runs(path)
    profiles = list(opened)
    assert [(each.rank, each.ranks) for each in profiles] == [(n, (0, 1, 3)) for n in (0, 1, 3)]
    assert [len(each.spans) for each in profiles] == [5, 1, 2]
    assert [each.name for each in open_profile(path, rank=3).processes] == ["consumer", "worker-0"]
    with pytest.raises(ProfileError, match=r"process 2 left no spans.*0, 1, 3"):
        open_profile(path, rank=2)


def test_one_rank_of_a_profile_is_the_profile_of_that_rank(sketch, tmp_path):
    sketch.processes["consumer", -1, 1] = {"rank": 1}
    sketch.add(("consumer", -1, 1), Kind.WAIT, 0, 7, batch=0)
    path = sketch.write(tmp_path / "run").path
    for rank in (0, 1):
        part, alone = open_profile(path).of_rank(rank), open_profile(path, rank=rank)
        assert part.processes == alone.processes
        assert part.missing_workers == alone.missing_workers
        assert exposure(part) == exposure(alone)


def test_a_file_cut_short_is_counted(path):
    (file,) = path.glob("spans/*worker*")
    file.write_bytes(file.read_bytes()[:-65536])
    assert open_profile(path).lost_spans >= 1


def test_a_file_that_is_no_span_file_is_named(path):
    (path / "spans" / "stray.spans").write_bytes(b"no spans")
    with pytest.raises(ProfileError, match=r"stray\.spans"):
        open_profile(path)
