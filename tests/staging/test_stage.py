"""A finished store staged: whole, once, verified, taken up after a kill, removed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from iobench.errors import (
    FileFormatError,
    IobenchError,
    MissingFileError,
    StorageError,
    StoreError,
)
from iobench.recording.kinds import Kind
from iobench.runs.reading import open_profile
from iobench.samples import SampleSpec, Variable
from iobench.staging.stage import STAGED_NAME, stage, staged_copy
from iobench.stores.finished_store import open_store
from iobench.stores.places import MARK_NAME, make_item
from iobench.stores.verification import verify_store
from iobench.testing import flip_bit, random_sample, write_store
from iobench_converters import numpy_records, tfrecord
from iobench_converters.zarr_groups import FORMAT as ZARR
from tests.support.quota import quota

SPEC = SampleSpec((Variable("T", (160, 161), "f4", ("y", "x"), "K"),))
pytestmark = pytest.mark.timeout(100)
FORMATS = [numpy_records.FORMAT, tfrecord.FORMAT, ZARR]


def make(path, fmt=numpy_records.FORMAT, n_samples=10, shard_n_samples=2):
    samples = [random_sample(SPEC, seed) for seed in range(n_samples)]
    return write_store(path, fmt, SPEC, samples, shard_n_samples=shard_n_samples)


def files_below(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize("fmt", FORMATS, ids=["numpy", "tfrecord", "zarr"])
def test_a_staged_store_is_a_store_of_the_same_bytes(tmp_path, fmt):
    source = make(tmp_path / "store", fmt)
    done = []
    copy = stage(source.path, tmp_path / "node", progress=lambda *told: done.append(told))
    assert copy.path == tmp_path / "node" / "store"
    assert (copy.is_store, copy.was_there) == (True, False)
    assert copy.copied_nbytes == copy.nbytes == done[-1][0] == done[-1][1]
    assert copy.seconds > 0
    assert staged_copy(copy.path) == copy
    assert stage(source.path, tmp_path / "node").was_there
    for name in files_below(source.path):
        assert (copy.path / name).read_bytes() == (source.path / name).read_bytes()
    opened = open_store(copy.path)
    assert verify_store(opened) == opened.manifest.nbytes + sum(
        file.nbytes for file in opened.manifest.metadata
    )


KILLED = """
    import os, signal, sys
    from iobench.staging import stage

    stage.PIECE_NBYTES = 1 << 14
    def moved(done, total):
        if done > total // 2:
            os.kill(os.getpid(), signal.SIGKILL)
    stage.stage(sys.argv[1], sys.argv[2], threads=2, progress=moved)
"""


def kill_in_the_middle(source, to):
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(source), str(to)]
    ended = subprocess.run(command, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL


def test_a_call_goes_on_where_one_was_killed(tmp_path):
    source = make(tmp_path / "store")
    kill_in_the_middle(source.path, tmp_path / "node")
    with pytest.raises(IobenchError):
        open_store(tmp_path / "node/store")  # nothing takes it for finished
    copy = stage(source.path, tmp_path / "node")
    assert 0 < copy.copied_nbytes < 0.9 * copy.nbytes
    verify_store(open_store(copy.path))
    assert not list(copy.path.rglob("*.iobench-tmp"))


def damage_bit(file):
    status = file.stat()
    flip_bit(file, file.stat().st_size // 2)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a disk does it, unseen


def damage_length(file):
    os.truncate(file, file.stat().st_size - 100)


@pytest.mark.parametrize("damage", [damage_bit, damage_length, Path.unlink])
def test_a_copy_that_is_not_as_it_was_staged_is_told_and_copied_again(tmp_path, damage):
    source = make(tmp_path / "store")
    first = stage(source.path, tmp_path / "node")
    shard = next(first.path.glob("*.npy"))
    nbytes = shard.stat().st_size
    damage(shard)
    told = []
    again = stage(source.path, tmp_path / "node", notice=told.append)
    assert [shard.name in line and "are copied" in line for line in told] == [True]
    assert again.copied_nbytes - (first.path / "iobench.json").stat().st_size == nbytes
    assert again.files == first.files
    verify_store(open_store(again.path))


def test_files_that_changed_since_they_were_staged_are_copied_again(tmp_path):
    files = [tmp_path / "data" / f"{n}.bin" for n in range(3)]
    files[0].parent.mkdir()
    for file in files:
        file.write_bytes(os.urandom(1000))
    first = stage(tmp_path / "data", tmp_path / "node")
    assert (first.path.name, first.is_store) == ("data", False)
    files[1].write_bytes(os.urandom(1001))
    files[2].unlink()
    told = []
    again = stage(tmp_path / "data", tmp_path / "node", notice=told.append)
    assert ["1.bin" in line for line in told] == [True]
    assert again.copied_nbytes == 1001
    assert (again.path / "1.bin").read_bytes() == files[1].read_bytes()
    assert files_below(again.path) == [MARK_NAME, "0.bin", "1.bin", STAGED_NAME]


def test_a_source_that_changes_while_it_is_staged_is_told(tmp_path):
    file = tmp_path / "data" / "a.bin"
    file.parent.mkdir()
    file.write_bytes(os.urandom(1 << 18))

    def change(done, total):
        with file.open("ab") as stream:
            stream.write(b"more")

    with pytest.raises(FileFormatError, match=r"a\.bin"):
        stage(file.parent, tmp_path / "node", threads=1, progress=change)
    assert not (tmp_path / "node/data/a.bin").exists()


def test_a_damaged_store_is_not_staged(tmp_path):
    source = make(tmp_path / "store")
    shard = next(source.path.glob("*.npy"))
    flip_bit(shard, 5000)
    with pytest.raises(FileFormatError, match=f"{shard.name}: is not as it was"):
        stage(source.path, tmp_path / "node")
    assert not (tmp_path / "node/store/iobench.json").exists()


def test_nothing_of_others_is_written_over(tmp_path):
    source = make(tmp_path / "store")
    (tmp_path / "node/store").mkdir(parents=True)
    (tmp_path / "node/store/mine.txt").write_text("mine")
    with pytest.raises(StorageError, match=r"mine\.txt, which iobench did not make"):
        stage(source.path, tmp_path / "node")
    stage(source.path, tmp_path / "other")
    other = make(tmp_path / "more/store")
    with pytest.raises(StorageError, match="holds a copy of"):
        stage(other.path, tmp_path / "other")


@pytest.mark.parametrize("name", ["../mine.txt", "{folder}/mine.txt"])
def test_what_a_copy_says_of_itself_reaches_nothing_outside(tmp_path, name):
    source = make(tmp_path / "store")
    copy = stage(source.path, tmp_path / "node")
    (tmp_path / "node/mine.txt").write_text("mine")
    told = json.loads((copy.path / STAGED_NAME).read_text())
    told["files"].append({"name": name.format(folder=tmp_path / "node"), "nbytes": 4})
    (copy.path / STAGED_NAME).write_text(json.dumps(told))
    assert staged_copy(copy.path) is None
    stage(source.path, tmp_path / "node")
    assert (tmp_path / "node/mine.txt").read_text() == "mine"


def test_a_place_that_is_too_small_is_told_before_a_byte_is_copied(tmp_path, monkeypatch):
    source = make(tmp_path / "store")
    real = os.statvfs(tmp_path)
    (tmp_path / "node").mkdir()
    values = {each: getattr(real, each) for each in dir(real) if each.startswith("f_")}
    told = type("Told", (), {**values, "f_bavail": 100})
    monkeypatch.setattr(os, "statvfs", lambda path: told)
    with pytest.raises(StorageError, match=r"are needed, .* are free"):
        stage(source.path, tmp_path / "node", progress=lambda *_: pytest.fail("copied"))
    assert list((tmp_path / "node").iterdir()) == []


def test_what_is_no_finished_store_and_what_lies_in_itself_is_refused(tmp_path):
    source = make(tmp_path / "store")
    copy = stage(source.path, tmp_path / "node")
    with pytest.raises(StorageError, match="lies in what is to be staged"):
        stage(tmp_path / "node", tmp_path / "node")
    make_item(tmp_path / "begun", kind="store", title="of something")
    (tmp_path / "begun/a.bin").write_bytes(b"half")
    with pytest.raises(StoreError, match="is not a finished store"):
        stage(tmp_path / "begun", tmp_path / "node")
    assert stage(copy.path, tmp_path / "second").is_store  # a copy of a copy


def test_objects_are_staged_as_files_are(tmp_path, bucket):
    source = make(tmp_path / "store")
    from iobench.files.urls import URL

    for name in files_below(source.path):
        (URL(f"s3://{bucket}/store") / name).write_bytes((source.path / name).read_bytes())
    copy = stage(f"s3://{bucket}/store", tmp_path / "node")
    assert (copy.is_store, copy.source) == (True, f"s3://{bucket}/store")
    verify_store(open_store(copy.path))
    files = stage(f"s3://{bucket}/store/iobench.json", tmp_path / "node")
    assert (files.path / "iobench.json").read_bytes() == (source.path / "iobench.json").read_bytes()


@pytest.mark.long
def test_a_recording_has_the_copy_as_stage_in_with_its_bytes(tmp_path, iobench):
    source = make(tmp_path / "store")
    script = "import sys, iobench.staging.stage as s; s.stage(*sys.argv[1:])"
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, "train.py", str(source.path), str(tmp_path / "node")]
    ran = iobench("run", "--out", "run", "--", *command)
    assert ran.returncode == 0, ran.stderr
    spans = open_profile(tmp_path / "run").spans
    staged = spans[spans["kind"] == Kind.STAGE_IN]
    copy = staged_copy(tmp_path / "node/store")
    assert staged["nbytes"].tolist() == [copy.nbytes]
    took_ns = int(staged["end_ns"][0]) - int(staged["start_ns"][0])
    assert took_ns >= copy.seconds * 1e9
    parts = json.loads(iobench("report", "run", "--json").stdout)["job"]["parts"]
    assert {"part": "stage_in", "ns": took_ns, "nbytes": copy.nbytes} in parts


def test_the_command_stages_once(tmp_path, iobench_here):
    source = make(tmp_path / "store")
    staged = iobench_here("stage", source.path, "--to", "node", "--json")
    assert staged.returncode == 0, staged.stderr
    told = json.loads(staged.stdout)
    assert (told["path"], told["kind"]) == (str(tmp_path / "node/store"), "store")
    assert told["copied_nbytes"] == told["nbytes"] >= source.manifest.nbytes
    assert iobench_here("verify", "node/store").returncode == 0
    again = iobench_here("stage", source.path, "--to", "node")
    assert "was there" in again.stdout


def test_the_command_stages_all_that_a_folder_holds(tmp_path, iobench_here):
    inside = tmp_path / "data/deep"
    inside.mkdir(parents=True)
    names = {"one.nc", "deep/two.nc", "deep/stage.json", "stage.json.old"}
    names.add("f" * 255)  # as long as names can be
    for file in names:
        (tmp_path / "data" / file).write_bytes(file.encode())
    for source in ("data", "data/deep/.."):
        iobench_here("stage", source, "--to", f"node/{source}/../to")
        copied = tmp_path / "node" / source / "../to/data"
        assert names < {*files_below(copied)}
    (inside / "link").symlink_to(tmp_path)
    with pytest.raises(MissingFileError, match="link"):
        stage(tmp_path / "data", tmp_path / "elsewhere")
    shutil.rmtree(inside)
    inside.write_bytes(b"a file now")
    again = stage(tmp_path / "data", tmp_path / "node/to")
    assert (again.path / "deep").read_bytes() == b"a file now"
    (tmp_path / "data/stage.json").write_bytes(b"{}")
    with pytest.raises(StorageError, match="rename this one"):
        stage(tmp_path / "data", tmp_path / "elsewhere")


def test_a_quota_that_is_met_is_told_and_nothing_is_left(tmp_path):
    source = make(tmp_path / "store")
    with (
        quota(source.manifest.nbytes // 2),
        pytest.raises(StorageError, match="your quota there") as caught,
    ):
        stage(source.path, tmp_path / "node", threads=2)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "node").iterdir()) == []
