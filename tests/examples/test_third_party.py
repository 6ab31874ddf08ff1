"""What somebody else has written, put on the path, works like what comes along.

The code is what the pages of ``iobench/docs/extending`` show, and their own tests run it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iobench.datasets.locate import FileLocator
from iobench.errors import MissingFileError, OptionError
from iobench.recording.kinds import Kind
from iobench.registry import dataset_names, find_dataset, format_names, installed_findings
from iobench.runs.reading import open_profile
from iobench.testing import DatasetTests, FindingTests, StandInTests
from tests.support.sketched_runs import SketchedRun

if TYPE_CHECKING:
    from collections.abc import Callable

    RunIobench = Callable[..., subprocess.CompletedProcess[str]]

THIRD_PARTY = Path(__file__).parent / "third_party"
TITLE = "hourly observations of one weather station"


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, store_dir: Path) -> None:
    """Put the package on the path of this process and of those it starts."""
    monkeypatch.syspath_prepend(str(THIRD_PARTY))
    monkeypatch.setenv("PYTHONPATH", str(THIRD_PARTY))
    monkeypatch.setenv("IOBENCH_STORE_DIR", str(store_dir))


class TheirDatasets:
    @pytest.fixture(params=["north-sea", "stations"])
    def dataset(self, request: pytest.FixtureRequest) -> Any:
        options = {"days": "6"} if request.param == "stations" else {}
        return find_dataset(request.param, **options)

    @pytest.fixture
    def root(self, dataset: Any, tiny_root: Any) -> Any:
        return tiny_root(dataset)

    @pytest.fixture
    def files(self, dataset: Any, root: Path, tmp_path: Path) -> Any:
        return dataset.files(FileLocator(stand_in=root, cache_dir=tmp_path))


class TestDatasets(TheirDatasets, DatasetTests):
    test_damage_is_named_and_nothing_else_is_read = None  # type: ignore[assignment]


class TestStandIns(TheirDatasets, StandInTests):
    pass


class TestLongestWait(FindingTests):
    @pytest.fixture
    def finding(self) -> Any:
        return next(each for each in installed_findings() if each.name == "longest_wait")


def test_all_are_found_by_name(iobench_here: RunIobench, tmp_path: Path) -> None:
    assert {"north-sea", "stations"} <= {*dataset_names()}
    assert "bins" in format_names()
    listed = json.loads(iobench_here("list", "--json").stdout)
    assert {"name": "stations", "title": TITLE} in listed["datasets"]
    assert "bins" in listed["formats"]
    with pytest.raises(MissingFileError, match=r"2024-01-06\.csv: not in .*--data-dir"):
        find_dataset("stations", days="6").files(FileLocator(cache_dir=tmp_path))
    options = json.loads(iobench_here("info", "north-sea", "--json").stdout)["options"]
    assert [option["name"] for option in options] == ["month", "land"]


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("stations", {"hours": "1"}, "unexpected keyword argument 'hours'"),
        ("north-sea", {"land": "1"}, "land '1': expected one of 0, nan"),
        ("north-sea", {"month": "2024-01"}, "month '2024-01': expected one of 2019-01, 2019-02 to"),
        ("north-sea", {"year": "2019"}, "option 'year': north-sea knows month, land"),
    ],
)
def test_their_options_are_checked(name: str, option: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        find_dataset(name, **option)


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("name", "formats", "more"),
    [
        ("north-sea", "source,zarr", ("--tiny",)),
        ("stations", "source,bins", ("--option", "days=6")),
    ],
)
def test_a_dataset_is_profiled_in_formats_and_converted(
    iobench: RunIobench, tmp_path: Path, name: str, formats: str, more: tuple[str, ...]
) -> None:
    told = iobench(
        "profile", name, "--format", formats, "--batch-size", "2", "--batches", "4",
        "--workers", "1", "--compute", "1ms", "--json", *more,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    runs = json.loads(told.stdout)["runs"]
    assert [(run["format"], run["batches"]) for run in runs] == [
        (each, 4) for each in formats.split(",")
    ]
    assert all(sum(run["exposed_ns"].values()) == run["wait_ns"] for run in runs)
    assert all(run["stand_in"] for run in runs)
    store = str(tmp_path / "store")
    to = "tfrecord" if name == "north-sea" else "bins"
    for command in (("convert", name, *more, "--to", to, store), ("verify", store)):
        told = iobench(*command)
        assert told.returncode == 0, told.stderr


def test_every_report_says_what_somebody_else_asks_of_a_run(
    iobench_here: RunIobench, tmp_path: Path
) -> None:
    sketch = SketchedRun(dataset="stations", format="bins")
    sketch.wait(0, 0, 9_000_000)
    sketch.wait(1, 10_000_000, 20_250_000)
    run, page = str(sketch.write(tmp_path / "run").path), tmp_path / "page.html"
    told = iobench_here("report", run, "--full", "--html", str(page))
    assert told.returncode == 0, told.stderr
    markdown = iobench_here("report", run, "--as", "markdown").stdout
    for text in (told.stdout, page.read_text(), markdown):
        assert "The longest wait" in text
        assert "10.2 ms" in text
    (found,) = json.loads(iobench_here("report", run, "--json").stdout)["runs"]
    assert found["longest_wait"] == {"batch": 1, "wait_ns": 10_250_000}
    told = iobench_here("report", run, "--as", "chat")  # a renderer of somebody else
    assert re.fullmatch(r"stations as bins: .*: .* waits .*\n", told.stdout)
    wrong = iobench_here("report", run, "--as", "chut")
    assert "unknown renderer 'chut': did you mean chat" in wrong.stderr


SCRIPT = """
import torch
from third_party_records import RecordFile, unpack

class Records(torch.utils.data.Dataset):
    file = None
    def __len__(self):
        return 8
    def __getitem__(self, number):
        self.file = self.file or RecordFile("records.bin")
        return torch.frombuffer(bytearray(unpack(self.file.fetch(number))), dtype=torch.uint8)

print(sum(int(batch.sum()) for batch in torch.utils.data.DataLoader(Records(), 2, num_workers=2)))
"""


@pytest.mark.long
@pytest.mark.timeout(120)
def test_reads_of_another_librarys_format_are_stages(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the script trains with torch")
    values = [np.full(50_000, number, np.uint8).tobytes() for number in range(8)]
    records = b"".join(zlib.compress(each).ljust(4096, b"\0") for each in values)
    (tmp_path / "records.bin").write_bytes(records)
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "iobench", "run", "--out", "run", "--"]
    done = subprocess.run(
        [*command, sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True,
        timeout=100, check=False, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(50_000 * sum(range(8)))]
    spans = open_profile(tmp_path / "run").spans
    read, decoded = (spans[spans["kind"] == kind] for kind in (Kind.READ, Kind.DECODE))
    assert read["nbytes"].tolist().count(4096) == 8
    assert decoded["nbytes"].tolist() == 8 * [50_000]
    assert (decoded["cpu_ns"] > 0).all()
