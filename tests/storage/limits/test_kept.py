"""What a probe found is kept for its mount, and found again for a path on it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from iobench.errors import StorageError
from iobench.recording.this_process import host_name
from iobench.storage import kept_limits
from iobench.storage.file_systems import file_system_of
from iobench.storage.kept_limits import (
    all_kept_limits,
    keep_limits,
    limits_folder,
    limits_for,
    limits_of_files,
    limits_of_host,
)
from iobench.storage.limit_figures import ReadFigures, StorageLimits, read_limits
from iobench.storage.probe_reads import copied_nbytes
from iobench.stores.places import user_folder


def made(path: Path, **changes) -> StorageLimits:
    mount = file_system_of(path).mount
    if mount is None:
        pytest.skip("this system does not tell its mounts")
    return replace(
        StorageLimits(
            path=str(path),
            mount=str(mount),
            host=host_name(),
            file_system="ext4",
            reach="local",
            wall_ns=1_000,
            like="",
            request_nbytes=1 << 20,
            n_files=1,
            files_nbytes=1 << 30,
            reads=(
                ReadFigures(
                    order="random",
                    way="direct",
                    threads=1,
                    n_reads=10,
                    nbytes=10 << 20,
                    wall_ns=10**7,
                    latency_ns=(1, 2, 3, 4),
                    served_by="device",
                ),
            ),
            memcpy_bytes_per_s={1: 1e10},
            spent_ns=1,
            read_nbytes=10 << 20,
        ),
        **changes,
    )


def test_the_place_is_that_of_all_that_is_kept(monkeypatch, tmp_path):
    assert limits_folder() == user_folder() / "limits"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert limits_folder() == user_folder() / "limits" == tmp_path / "iobench" / "limits"


def test_limits_are_found_for_any_path_on_the_mount_the_nearest_first(tmp_path):
    folder = tmp_path / "kept"
    (tmp_path / "data" / "a").mkdir(parents=True)
    assert limits_for(tmp_path / "data", folder=folder) is None
    above = made(tmp_path / "data", wall_ns=1)
    aside = made(tmp_path / "other", wall_ns=2)
    for each in (above, aside):
        keep_limits(each, folder=folder)
    assert limits_for(tmp_path / "data" / "a", folder=folder) == above
    assert limits_for(tmp_path / "none" / "yet", folder=folder) == aside
    assert all_kept_limits(folder) == [above, aside]


def test_a_later_probe_takes_the_place_of_its_like_and_few_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_limits, "MOST_KEPT", 3)
    keep_limits(made(tmp_path, wall_ns=1), folder=tmp_path)
    keep_limits(made(tmp_path, wall_ns=2), folder=tmp_path)
    assert [each.wall_ns for each in all_kept_limits(tmp_path)] == [2]
    for number in range(3, 8):
        keep_limits(made(tmp_path, wall_ns=number, request_nbytes=number), folder=tmp_path)
    assert [each.wall_ns for each in all_kept_limits(tmp_path)] == [5, 6, 7]
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"limits": [{"version": 1}, 3]}', "\xff"])
def test_what_cannot_be_read_is_not_there(tmp_path, text):
    file = keep_limits(made(tmp_path), folder=tmp_path)
    file.write_text(text)
    assert all_kept_limits(tmp_path) == []
    keep_limits(made(tmp_path), folder=tmp_path)
    assert len(all_kept_limits(tmp_path)) == 1


def test_another_version_or_type_is_refused():
    with pytest.raises(StorageError, match="another version"):
        StorageLimits.from_dict({"version": 99})
    assert read_limits(None) == read_limits([None]) == read_limits([[]]) == []


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        keep_limits(made(tmp_path), folder=tmp_path / "file")


def test_a_run_takes_the_limits_of_its_files_along(tmp_path):
    folder = tmp_path / "kept"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_bytes(b"data")
    files = [tmp_path / "data" / "a", tmp_path / "data"]
    assert limits_of_files(files, folder=folder) == {"storage_limits": []}
    assert limits_of_host(folder=folder) == {"storage_limits": []}
    limits = made(tmp_path)
    keep_limits(limits, folder=folder)
    told = limits_of_files(files, folder=folder)
    assert read_limits(told["storage_limits"]) == [limits]
    assert limits_of_files([], folder=folder) == {"storage_limits": []}
    assert limits_of_files([*files, "s3://bucket/a"], folder=folder) == {"storage_limits": []}
    host = limits_of_host(folder=folder)
    assert read_limits(host["storage_limits"]) == [limits]
    assert limits.mount in host["mounts"]
    keep_limits(replace(limits, host="another", wall_ns=9), folder=folder)
    assert all_kept_limits(folder) == [limits] or len(all_kept_limits(folder)) == 0


@pytest.mark.parametrize(
    "change",
    [{"wall_ns": None}, {"path": 5}, {"request_nbytes": "1"}, {"reads": [{"order": "random"}]}],
)
def test_kept_limits_that_were_damaged_are_not_there(change, tmp_path: Path) -> None:
    good = made(tmp_path)
    bad = json.loads(json.dumps(good.to_dict())) | change
    assert read_limits([bad, json.loads(json.dumps(good.to_dict()))]) == [good]


def test_a_read_of_damaged_limits_is_not_there(tmp_path: Path) -> None:
    told = json.loads(json.dumps(made(tmp_path).to_dict()))
    told["reads"][0]["nbytes"] = "many"
    assert read_limits([told]) == []


def test_threads_together_never_copy_more_than_memory_has() -> None:
    sizes = {threads: copied_nbytes(threads) for threads in (1, 2, 16, 128, 256, 1024)}
    assert [sizes[threads] >> 20 for threads in sizes] == [128, 64, 8, 8, 4, 1]
    assert all(threads * size <= 1 << 30 for threads, size in sizes.items())
