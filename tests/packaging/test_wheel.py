"""What a release holds: the sdist all of the tree, the wheel all that runs; both away from it."""

from __future__ import annotations

import os
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "iobench/", "plugins/iobench_maelstrom/", "plugins/iobench_mlperf_hpc/",
    "converters/iobench_converters/",
)  # fmt: skip

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def tracked() -> set[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so there is no list of tracked files")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}


@pytest.fixture(scope="module")
def installed(wheel: Path, new_environment: Callable[..., Path]) -> Path:
    return new_environment(f"{wheel}[grib,netcdf]") / "bin"


def test_the_sdist_holds_every_tracked_file(sdist: Path, tracked: set[str]) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert tracked <= names


def test_the_wheel_holds_every_file_of_the_packages(wheel: Path, tracked: set[str]) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == {
        name.removeprefix("plugins/").removeprefix("converters/")
        for name in tracked
        if name.startswith(PACKAGES)
    }


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("", "iobench profile"),
        ("--help", "doctor"),
        ("doctor netcdf grib", "eccodes"),
        ("list", "maelstrom-ens10"),
    ],
)
def test_first_commands_away_from_the_tree(
    installed: Path, tmp_path: Path, command: str, told: str
) -> None:
    assert told in _done(tmp_path, installed / "iobench", *command.split())


def test_the_main_job_away_from_the_tree(installed: Path, tmp_path: Path) -> None:
    command = "profile maelstrom-ens10 --format source,tfrecord --tiny --out run"
    assert "Verdict" in _done(tmp_path, installed / "iobench", *command.split())
    _done(tmp_path, installed / "iobench", "report", "run", "--html", "run.html")
    assert "</html>" in (tmp_path / "run.html").read_text()
    (tmp_path / "train.py").write_text("import numpy\nprint(numpy.arange(3).sum())\n")
    told = _done(tmp_path, installed / "iobench", "run", "--", installed / "python", "train.py")
    assert told == "3\n"


def _done(folder: Path, *command: str | Path) -> str:
    answer = subprocess.run(
        list(map(str, command)),
        cwd=folder, env={**os.environ, "IOBENCH_STORE_DIR": str(folder / "stores")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    return answer.stdout
