"""Files behind URLs on the command line: converted, compared and profiled as files here are."""

import json
from pathlib import Path

import pytest

from iobench.cli import main

DATA = Path(__file__).parents[1] / "data"
MEMBERS = DATA / "era5/era5-levels-members.grib"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    return code, capsys.readouterr()


@pytest.mark.timeout(100)
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_worker_processes_read_for_themselves(put_files, capsys, monkeypatch):
    monkeypatch.setenv("IOBENCH_STORE_DIR", "stores")
    code, said = run(
        capsys, "profile", put_files(MEMBERS), "--sample-dim", "time", "--batches", "4",
        "--batch-size", "1", "--workers", "2", "--framework", "workers", "--compute", "none",
        "--json",
    )  # fmt: skip
    assert code == 0, said.err
    (report,) = json.loads(said.out)["runs"]
    assert report["batches"] == 4
    assert report["missing_workers"] == []
