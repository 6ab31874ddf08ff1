"""Where things are put: the order of places, room for them, marks, folders of other users."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "support"))
from other_user import as_other_user, folder_for_all

from iobench.cli import main
from iobench.errors import StorageError
from iobench.stores.places import choose_place, make_item


@pytest.fixture
def environ(tmp_path, monkeypatch):
    """An environment with nothing but a home directory that names a place."""
    for name in ("IOBENCH_STORE_DIR", "SCRATCH", "TMPDIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return monkeypatch


def close(folder):
    """Put a file where a folder would be made: root, too, cannot write there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists():
        folder.rmdir()
    folder.touch()


def test_order_of_places(tmp_path, environ):
    environ.setenv("IOBENCH_STORE_DIR", str(tmp_path / "named"))
    environ.setenv("SCRATCH", str(tmp_path / "scratch"))
    environ.setenv("TMPDIR", str(tmp_path / "tmp"))
    found = [choose_place(store_dir=tmp_path / "asked").path]
    found.append(choose_place().path)
    environ.delenv("IOBENCH_STORE_DIR")
    for _ in range(3):
        found.append(choose_place().path)
        close(found[-1])
    assert [str(path.relative_to(tmp_path)) for path in found] == [
        "asked", "named", "scratch/iobench", "tmp/iobench", "home/.cache/iobench",
    ]  # fmt: skip


def test_a_place_that_is_named_is_taken_or_refused_and_home_is_never_filled_silently(
    tmp_path, environ
):
    assert "home directory" in choose_place().notice
    assert not choose_place(store_dir=tmp_path / "stores").notice
    close(tmp_path / "asked")
    with pytest.raises(StorageError, match=r"asked \(--store-dir\): File exists"):
        choose_place(store_dir=tmp_path / "asked")
    with pytest.raises(StorageError, match="Not a directory"):
        make_item(tmp_path / "asked/.iobench/indexes", kind="index", title="a")


def test_a_folder_of_others_is_not_marked(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(StorageError, match=r"thesis\.tex, which iobench did not make"):
        make_item(tmp_path, kind="store", title="a")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("name", ["stores", "stand-ins/maelstrom-yr-v1", "indexes"])
def test_links_of_other_users_are_not_followed_by_root_either(tmp_path, monkeypatch, name):
    link = tmp_path / "shared" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path)
    assert choose_place(store_dir=tmp_path / "shared").path == tmp_path / "shared"
    if os.geteuid():
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    else:
        os.lchown(link, 12345, 12345)
    with pytest.raises(StorageError, match=r"is a symbolic link of user .*; remove it, or choose"):
        choose_place(store_dir=tmp_path / "shared")


# ---- room, which is looked for before a conversion begins


N, X = 40, 500


def converted(folder, to="numpy"):
    return [
        "convert", str(folder / "data.nc"), "--sample-dim", "time", "--to", to,
        "--shard-size", "4000",
    ]  # fmt: skip


def write_source(folder):
    """A file of 40 samples of 2 kB each."""
    xarray = pytest.importorskip("xarray", reason="makes the file that is converted")
    values = np.random.default_rng(0).random((N, X), dtype=np.float32)
    xarray.Dataset({"t": (("time", "x"), values)}).to_netcdf(folder / "data.nc")


@pytest.fixture
def small(tmp_path):
    """Mount file systems in memory, of so many bytes or inodes."""
    made = []

    def mount(options):
        folder = tmp_path / f"small-{len(made)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
        if os.geteuid():
            pytest.skip("needs root, to mount a small file system")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
        made.append(folder)
        return folder

    yield mount
    for folder in made:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def test_too_little_room_is_told_before_a_sample_is_written(small, tmp_path, capsys):
    write_source(tmp_path)
    folder = small("size=40k")
    assert main([*converted(tmp_path), str(folder / "store")]) == 75
    assert "80000 bytes are needed" in capsys.readouterr().err.splitlines()[-1]
    assert not list(folder.rglob("shard-*"))
    # Inodes that go meanwhile are told from a full disk.
    folder = small("size=8m,nr_inodes=30")
    assert main([*converted(tmp_path), str(folder / "store")]) == 75
    error = capsys.readouterr().err.splitlines()[-1]
    assert "no more files can be made there (inodes)" in error
    assert "disk is full" not in error


# ---- stores and runs of one user that another may read, and not write


IOBENCH = (sys.executable, "-m", "iobench")


def files(folder):
    """Return what lies in a folder of ours: sizes and times."""
    found = [each for each in folder.rglob("*") if "theirs" not in each.parts]
    return {str(each): (each.stat().st_size, each.stat().st_mtime_ns) for each in found}


@pytest.mark.long
def test_what_another_may_do_with_a_folder_of_ours():
    with folder_for_all() as shared:
        write_source(shared)
        for fmt in ("zarr", "numpy"):
            assert main([*converted(shared, fmt), str(shared / fmt)]) == 0
        quick = ("--batches", "4", "--compute", "none", "--out")
        assert main(["profile", str(shared / "numpy"), *quick, str(shared / "run")]) == 0
        before = files(shared)
        for command in (
            ("profile", shared / "zarr", *quick, "own"),
            ("verify", shared / "zarr"),
            ("info", shared / "zarr"),
            ("report", "own", "--html", "page.html"),
            ("report", shared / "run", "--json"),
        ):
            done = as_other_user(shared, *IOBENCH, *command)
            assert done.returncode == 0, (command, done.stderr)
        assert (shared / "theirs" / "page.html").stat().st_size > 1000
        # Nothing is written there: one line says so, and where else it may go.
        done = as_other_user(shared, *IOBENCH, *converted(shared), shared / "new")
        assert done.returncode not in (0, 2)
        assert "choose another folder" in done.stderr.splitlines()[-1]
        assert files(shared) == before
        (shared / "closed").mkdir(mode=0o700)  # into which others may not look
        for words in (("profile",), ("info",), ("stage", "--to", "near"), ("verify",)):
            done = as_other_user(shared, *IOBENCH, *words, shared / "closed")
            [line] = [line for line in done.stderr.splitlines() if line.startswith("iobench: ")]
            assert done.returncode == 1
            assert str(shared / "closed") in line
            assert "Traceback" not in done.stderr
