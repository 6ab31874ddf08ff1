"""A dataset and a format of somebody else, put on the path, work like those that come along.

The code is what the pages of ``iobench/docs/extending`` show, and their own tests run it.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from iobench.datasets.locate import FileLocator
from iobench.errors import FileFormatError, MissingFileError, OptionError
from iobench.registry import dataset_names, find_dataset, format_names, installed_findings
from iobench.testing import FindingTests
from tests.support.sketched_runs import SketchedRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.datasets import Dataset
    from iobench.findings.contract import Finding

    RunIobench = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).parents[2]
THIRD_PARTY = Path(__file__).parent / "third_party"
TITLE = "hourly observations of one weather station"


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, store_dir: Path) -> None:
    """Put the package on the path of this process and of those it starts."""
    monkeypatch.syspath_prepend(str(THIRD_PARTY))
    monkeypatch.setenv("PYTHONPATH", str(THIRD_PARTY))
    monkeypatch.setenv("IOBENCH_STORE_DIR", str(store_dir))


@pytest.fixture
def stations() -> Dataset:
    return find_dataset("stations", days="6")


def test_both_are_found_by_name() -> None:
    assert {"north-sea", "stations"} <= {*dataset_names()}
    assert "bins" in format_names()


def test_the_missing_file_is_named(stations: Dataset, tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"2024-01-06\.csv: not in .*--data-dir"):
        stations.files(FileLocator(data_dir=tmp_path, cache_dir=tmp_path))


def test_a_file_cut_short_is_no_sample(stations: Dataset) -> None:
    with pytest.raises(FileFormatError, match=r"2024-01-01.csv: .* shape \(2, 3\), expected"):
        stations.decode([b"t2m,rh2m,wind\n1,2,3\n1,2,3\n"], "2024-01-01.csv")


def test_options_are_checked() -> None:
    with pytest.raises(OptionError, match="days=none, expected a whole number"):
        find_dataset("stations", days="none")
    with pytest.raises(OptionError, match="unexpected keyword argument 'hours'"):
        find_dataset("stations", hours="1")


def test_iobench_lists_both(iobench_here: RunIobench) -> None:
    listed = json.loads(iobench_here("list", "--json").stdout)
    assert {"name": "stations", "title": TITLE} in listed["datasets"]
    assert "bins" in listed["formats"]


def test_a_report_is_printed_by_a_renderer_of_somebody_else(
    iobench_here: RunIobench, tmp_path: Path
) -> None:
    sketch = SketchedRun(dataset="stations", format="bins")
    sketch.wait(0, 0, 9_000_000)
    run = sketch.write(tmp_path / "run")
    told = iobench_here("report", str(run.path), "--as", "chat")
    assert told.returncode == 0, told.stderr
    assert re.fullmatch(r"stations as bins: .*: .* waits 100 % of its time .*\n", told.stdout)
    wrong = iobench_here("report", str(run.path), "--as", "chut")
    assert "unknown renderer 'chut': did you mean chat" in wrong.stderr


@pytest.mark.long
def test_a_netcdf_dataset_of_sixty_lines_is_profiled_and_converted(
    iobench: RunIobench, tmp_path: Path
) -> None:
    assert len((THIRD_PARTY / "third_party_waves.py").read_text().splitlines()) <= 60
    told = iobench(
        "profile", "north-sea", "--tiny", "--format", "source,zarr", "--batch-size", "2",
        "--batches", "4", "--workers", "1", "--compute", "1ms", "--json",
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    runs = json.loads(told.stdout)["runs"]
    assert [(run["format"], run["batches"]) for run in runs] == [("source", 4), ("zarr", 4)]
    store = tmp_path / "store"
    told = iobench("convert", "north-sea", "--tiny", "--to", "tfrecord", str(store))
    assert told.returncode == 0, told.stderr
    told = iobench("verify", str(store), "--against", "north-sea")
    assert told.returncode == 0, told.stderr


def test_the_options_of_a_recipe_are_told_and_checked(iobench_here: RunIobench) -> None:
    options = json.loads(iobench_here("info", "north-sea", "--json").stdout)["options"]
    assert [option["name"] for option in options] == ["month", "land"]
    with pytest.raises(OptionError, match="land '1': expected one of 0, nan"):
        find_dataset("north-sea", land="1")
    with pytest.raises(OptionError, match="month '2024-01': expected one of 2019-01, 2019-02 to"):
        find_dataset("north-sea", month="2024-01")
    with pytest.raises(OptionError, match="option 'year': north-sea knows month, land"):
        find_dataset("north-sea", year="2019")


@pytest.mark.long
@pytest.mark.timeout(120)
def test_iobench_profiles_both(iobench: RunIobench) -> None:
    told = iobench(
        "profile", "stations", "--format", "source,bins", "--option", "days=6",
        "--batch-size", "2", "--batches", "4", "--workers", "1", "--compute", "1ms", "--json",
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    runs = json.loads(told.stdout)["runs"]
    assert [(run["format"], run["batches"]) for run in runs] == [("source", 4), ("bins", 4)]
    assert all(sum(run["exposed_ns"].values()) == run["wait_ns"] for run in runs)
    assert all(run["stand_in"] for run in runs)


def test_every_report_says_what_somebody_else_asks_of_a_run(
    iobench_here: RunIobench, tmp_path: Path
) -> None:
    sketch = SketchedRun(dataset="stations", format="bins")
    sketch.wait(0, 0, 9_000_000)
    sketch.wait(1, 10_000_000, 20_250_000)
    run = sketch.write(tmp_path / "run")
    page = tmp_path / "page.html"
    told = iobench_here("report", str(run.path), "--full", "--html", str(page))
    assert told.returncode == 0, told.stderr
    texts = {"terminal": told.stdout, "html": page.read_text()}
    for name in ("markdown",):
        texts[name] = iobench_here("report", str(run.path), "--as", name).stdout
    for name, text in texts.items():
        assert "The longest wait" in text, name
        assert "10.2 ms" in text, name
    (found,) = json.loads(iobench_here("report", str(run.path), "--json").stdout)["runs"]
    assert found["longest_wait"] == {"batch": 1, "wait_ns": 10_250_000}


class TestLongestWait(FindingTests):
    @pytest.fixture
    def finding(self) -> Finding[Any]:
        return next(each for each in installed_findings() if each.name == "longest_wait")
