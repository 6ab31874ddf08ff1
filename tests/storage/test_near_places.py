"""Where a run says that files could be staged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from iobench.recording.mounts import FileSystem
from iobench.storage import file_systems

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("slurm", "temporary", "expected"),
    [
        (("xfs", "local"), ("ext4", "local"), ["slurm", "temporary"]),
        (("lustre", "network"), ("ext4", "local"), ["temporary"]),
        (("fuse.sshfs", "unknown"), ("tmpfs", "memory"), ["temporary"]),
        (("xfs", ""), ("ext4", "local"), ["temporary"]),
        (None, ("ext4", "local"), ["temporary"]),
        (("xfs", "local"), None, ["slurm"]),
    ],
)
def test_only_folders_of_this_machine_that_can_be_written_are_places(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    slurm: tuple[str, str] | None,
    temporary: tuple[str, str] | None,
    expected: list[str],
) -> None:
    environ = {"SLURM_TMPDIR": str(tmp_path / "slurm"), "TMPDIR": str(tmp_path / "temporary")}
    known = {}
    for name, file_system in (("slurm", slurm), ("temporary", temporary)):
        if file_system is not None:  # else the environment names a folder that is not there
            (tmp_path / name).mkdir()
        name_of, reach = file_system or ("xfs", "local")
        known[tmp_path / name] = FileSystem(name_of, mount=str(tmp_path / name), reach=reach)
    real = file_systems.file_system_of
    monkeypatch.setattr(
        file_systems, "file_system_of", lambda path: known[path] if path in known else real(path)
    )
    places = file_systems.near_places(environ=environ)["near"]["places"]
    below = [each for each in places if each["path"].startswith(str(tmp_path))]
    assert [each["path"].rpartition("/")[2] for each in below] == expected
    assert all(each["free_nbytes"] > 0 for each in below)
    assert [each["in_memory"] for each in below] == [
        "tmpfs" in (each["file_system"]) for each in below
    ]
