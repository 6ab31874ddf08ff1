"""The base alone, beside the oldest numpy that training environments still pin, really works."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
THIRD_PARTY = ROOT / "tests" / "examples" / "third_party"

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def base(wheel: Path, new_environment: Callable[..., Path]) -> Path:
    """Return an environment with iobench's base and nothing else."""
    return new_environment(str(wheel), *(["numpy==1.26.4"] if sys.version_info < (3, 13) else []))


def iobench(base: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(THIRD_PARTY),
        "IOBENCH_STORE_DIR": str(folder / "stores"),
    }
    return subprocess.run(
        [base / "bin" / "iobench", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_help_and_list_need_no_extra(base: Path, tmp_path: Path) -> None:
    assert iobench(base, tmp_path, "--help").returncode == 0
    listed = iobench(base, tmp_path, "list")
    assert listed.returncode == 0, listed.stderr
    assert "maelstrom-ens10" in listed.stdout


def test_recipes_of_suites_come_along(base: Path, tmp_path: Path) -> None:
    answer = iobench(base, tmp_path, "suite", "nosuch", "--dry-run")
    assert answer.returncode == 1
    assert "formats, loaders, maelstrom, mlperf-hpc, procurement, quick" in answer.stderr


def test_a_missing_extra_is_the_line_that_installs_it(base: Path, tmp_path: Path) -> None:
    answer = iobench(base, tmp_path, "profile", "maelstrom-ens10", "--tiny")
    assert answer.returncode == 69
    assert re.search(r"\(extra (grib|netcdf)\): pip install '", answer.stderr.splitlines()[-1])
    assert "Traceback" not in answer.stderr


def test_wrong_usage_is_told_without_a_traceback(base: Path, tmp_path: Path) -> None:
    answer = iobench(base, tmp_path, "profile", "--nonsense")
    assert (answer.returncode, "Traceback" in answer.stderr) == (2, False)


@pytest.mark.parametrize("formats", ["source,bins", "tfrecord,numpy"])
def test_a_profile_and_its_report_need_no_extra(base: Path, tmp_path: Path, formats: str) -> None:
    told = iobench(
        base, tmp_path, "profile", "stations", "--option", "days=6", "--format", formats,
        "--batches", "4", "--workers", "1", "--compute", "1ms", "--out", "run", "--json",
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    again = iobench(base, tmp_path, "report", "run", "--json")
    assert json.loads(again.stdout)["runs"] == json.loads(told.stdout)["runs"]
    assert iobench(base, tmp_path, "report", "run").returncode == 0
