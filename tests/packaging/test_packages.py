"""The sdist holds all of the tree, the wheel all that runs; away from it, and with the base alone.

The base stands beside the oldest numpy that training environments still pin.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
THIRD_PARTY = ROOT / "tests" / "examples" / "third_party"
PACKAGES = (
    "iobench/", "plugins/iobench_maelstrom/", "plugins/iobench_mlperf_hpc/",
    "converters/iobench_converters/",
)  # fmt: skip
ENVIRONMENT = dict(os.environ)
"""With the user's own home, where pip has its settings; tests get another one."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def pip(python, *arguments):
    """Run pip, away from the tree."""
    answer = subprocess.run(
        [python, "-m", "pip", *arguments],
        capture_output=True, text=True, check=False, cwd=python.parent, env=ENVIRONMENT,
    )  # fmt: skip
    if "(from versions: none)" in answer.stderr and not os.environ.get("IOBENCH_INDEX_REQUIRED"):
        pytest.skip("no package index can be reached")
    assert answer.returncode == 0, answer.stderr


@pytest.fixture(scope="module")
def new_environment(tmp_path_factory):
    """Return what makes an environment with what pip is given, and returns its ``bin``."""

    def make(*wanted):
        folder = tmp_path_factory.mktemp("environment")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip(folder / "bin" / "python", "install", "--quiet", *wanted)
        return folder / "bin"

    return make


@pytest.fixture(scope="module")
def sdist(tmp_path_factory, new_environment):
    """Return the source distribution of the tree."""
    built = tmp_path_factory.mktemp("built")
    builder = new_environment("hatchling") / "hatchling"
    subprocess.run([builder, "build", "-t", "sdist", "-d", built], cwd=ROOT, check=True)
    (found,) = built.glob("*.tar.gz")
    return found


@pytest.fixture(scope="module")
def wheel(sdist):
    """Return the wheel that pip makes of the source distribution."""
    pip(Path(sys.executable), "wheel", "--quiet", "--no-deps", "-w", str(sdist.parent), str(sdist))
    (found,) = sdist.parent.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel, new_environment):
    return new_environment(f"{wheel}[grib,netcdf]")


@pytest.fixture(scope="module")
def base(wheel, new_environment):
    """An environment with iobench's base and nothing else."""
    return new_environment(str(wheel), *(["numpy==1.26.4"] if sys.version_info < (3, 13) else []))


def test_they_hold_every_tracked_file(sdist, wheel):
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so there is no list of tracked files")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    tracked = {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}
    with tarfile.open(sdist) as archive:
        assert tracked <= {name.partition("/")[2] for name in archive.getnames()}
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == {
        name.removeprefix("plugins/").removeprefix("converters/")
        for name in tracked
        if name.startswith(PACKAGES) and not name.startswith("iobench/docs/")
    }


def ran(folder, program, *arguments):
    environment = {"PYTHONPATH": str(THIRD_PARTY), "IOBENCH_STORE_DIR": str(folder / "stores")}
    return subprocess.run(
        [program, *arguments], cwd=folder, env=os.environ | environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


COMMANDS = (
    ("", 0, "iobench profile"),
    ("--help", 0, "doctor"),
    ("doctor", 0, "eccodes"),
    ("list", 0, "maelstrom-ens10"),
    ("suite nosuch --dry-run", 1, "formats, loaders, maelstrom, mlperf-hpc, procurement, quick"),
    ("profile --nonsense", 2, "--nonsense"),
)


def test_commands_away_from_the_tree(base, installed, tmp_path):
    for bin in (base, installed):
        for command, code, told in COMMANDS:
            done = ran(tmp_path, bin / "iobench", *command.split())
            assert done.returncode == code, done.stderr
            assert told in done.stdout + done.stderr
            assert "Traceback" not in done.stderr
    missing = ran(tmp_path, base / "iobench", "profile", "maelstrom-ens10", "--tiny")
    assert missing.returncode == 69
    assert re.search(r"\(extra (grib|netcdf)\): pip install '", missing.stderr.splitlines()[-1])


def test_the_main_job_away_from_the_tree(installed, tmp_path):
    def done(program, *words):
        answer = ran(tmp_path, installed / program, *words)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    command = "profile maelstrom-ens10 --format source,tfrecord --tiny --out run"
    assert "Verdict" in done("iobench", *command.split())
    done("iobench", "report", "run", "--html", "run.html")
    assert "</html>" in (tmp_path / "run.html").read_text()
    (tmp_path / "train.py").write_text("import numpy\nprint(numpy.arange(3).sum())\n")
    assert done("iobench", "run", "--", str(installed / "python"), "train.py") == "3\n"


@pytest.mark.parametrize("formats", ["source,bins", "tfrecord,numpy"])
def test_a_profile_and_its_report_need_no_extra(base, tmp_path, formats):
    told = ran(
        tmp_path, base / "iobench", "profile", "stations", "--option", "days=6", "--format",
        formats, "--batches", "4", "--workers", "1", "--compute", "1ms", "--out", "run", "--json",
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    again = ran(tmp_path, base / "iobench", "report", "run", "--json")
    assert json.loads(again.stdout)["runs"] == json.loads(told.stdout)["runs"]
    assert ran(tmp_path, base / "iobench", "report", "run").returncode == 0
