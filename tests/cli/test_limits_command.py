"""``iobench limits`` from the command line: its answer, and bad input."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from iobench.cli import main
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.storage.file_systems import file_system_of
from tests.support.sketched_runs import CONSUMER, SketchedRun

KIB = 1 << 10
FEW = ("--duration", "0.5")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for number in range(3):
        (tmp_path / "data" / f"{number}.bin").write_bytes(os.urandom(256 * KIB))
    return tmp_path / "data"


def test_the_answer_is_printed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["limits", str(data), *FEW]) == 0
    first = capsys.readouterr().out
    words_told = " ".join(first.split())
    assert f"{data}: {file_system_of(data).name}" in words_told
    for words in ("Random reads of", "direct", "cached"):
        assert words in first
    assert "wrote nothing" in first
    assert main(["limits", str(data), *FEW, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {each["way"] for each in told["reads"]} == {"direct", "cached"}


def test_reads_are_like_those_of_a_run_or_store(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory.create(tmp_path / "run", {"sample_nbytes": 50_000})
    assert main(["limits", str(data), *FEW, "--like", str(run.path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["request_nbytes"] == 50_000
    assert str(run.path) in told["like"]
    RunDirectory.create(
        tmp_path / "of-store", {"store": {"nbytes": 90_001, "n_samples": 3}, "sample_nbytes": 1}
    )
    assert main(["limits", str(data), *FEW, "--like", str(tmp_path / "of-store"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["request_nbytes"] == 30_001
    script = SketchedRun(kind="script")
    for number, nbytes in enumerate((100, 40_000, 40_000)):
        script.add(CONSUMER, Kind.READ, 10 * number, 10 * number + 4, nbytes=nbytes)
    script.write(tmp_path / "of-script")
    assert main(["limits", str(data), *FEW, "--like", str(tmp_path / "of-script"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["request_nbytes"] == 40_000
