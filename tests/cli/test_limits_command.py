"""``iobench limits`` from the command line: its answer, what it keeps, and bad input."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from iobench.cli import main
from iobench.recording.run_directory import RunDirectory
from iobench.registry import find_dataset
from iobench.storage import limit_probe, probe_reads
from iobench.storage.file_systems import file_system_of

if TYPE_CHECKING:
    from iobench.datasets.contract import Dataset

pytestmark = pytest.mark.skipif(not hasattr(os, "preadv"), reason="this system has no preadv")

KIB = 1 << 10
FEW = ("--threads", "1", "--duration", "2", "--bytes", "16MiB")


@pytest.fixture(autouse=True)
def little_copying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_reads, "COPIED_NBYTES", 1 << 20)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "iobench" / "limits"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for number in range(3):
        (tmp_path / "data" / f"{number}.bin").write_bytes(os.urandom(256 * KIB))
    return tmp_path / "data"


def test_the_answer_is_printed_kept_and_not_measured_again(
    data: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["limits", str(data), *FEW]) == 0
    first = capsys.readouterr().out
    words_told = " ".join(first.split())
    assert f"{data}: {file_system_of(data).name}" in words_told
    assert file_system_of(data).cold in words_told
    for words in ("random, direct", "sequential, buffered", "random, again", "Opens:", "memory"):
        assert words in first
    assert "wrote nothing" in first
    assert "Kept for" in first.splitlines()[-1]
    assert [path.suffix for path in own_cache.iterdir() if path.name[0] != "."] == [".json"]
    assert main(["limits", str(data), *FEW]) == 0
    again = capsys.readouterr().out
    assert again.splitlines()[:-1] == first.splitlines()[:-1]
    assert "--refresh measures again" in again.splitlines()[-1]
    assert main(["limits", str(data), *FEW, "--refresh", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {each["order"] for each in told["reads"]} == {"random", "sequential"}
    assert told["read_nbytes"] <= 16 << 20
    assert told["layout"] is None
    assert told["kept"].startswith("kept for")
    assert main(["cache", "--json"]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    assert [item["kind"] for item in items if item["path"] == str(own_cache)] == ["limits"]
    assert main(["cache", "--remove", str(own_cache)]) == 0
    assert not own_cache.exists()


def test_reads_are_like_those_of_a_run_or_store(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory.create(tmp_path / "run", {"sample_nbytes": 50_000})
    assert main(["limits", str(data), *FEW, "--like", str(run.path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["request_nbytes"] == 50_000
    assert {each["order"] for each in told["reads"]} == {"random"}
    assert str(run.path) in told["like"]
    RunDirectory.create(
        tmp_path / "of-store", {"store": {"nbytes": 90_001, "n_samples": 3}, "sample_nbytes": 1}
    )
    assert main(["limits", str(data), *FEW, "--like", str(tmp_path / "of-store"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["request_nbytes"] == 30_001


def test_reads_are_like_those_of_a_dataset(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {"files": {"nbytes": 100_000}, "n_samples": 3, "told_from": "the files at hand"}
    monkeypatch.setattr("iobench.cli.descriptions.describe_dataset", lambda name, **_: facts)
    assert main(["limits", str(data), *FEW, "--like", "maelstrom-ens10", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["request_nbytes"] == 33_334
    assert told["like"] == "samples of maelstrom-ens10, told from the files at hand"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["none"], "none: is not there"),
        (["empty"], "holds no file to read"),
        (["data", "--threads", "0"], "--threads 0: expected numbers"),
        (["data", "--threads", "some"], "--threads some: expected numbers"),
        (["data", "--duration", "0"], "--duration 0: expected more than 0"),
        (["data", "--duration", "nan"], "--duration nan: expected more than 0"),
        (["data", "--bytes", "much"], "--bytes much: expected a size"),
        (["data", "--bytes", "1MB"], "too few for"),
        (["data", "--like", "data"], "--like data: is no dataset, no store and no run"),
        (["data", "--like", "maelstrom-en10"], "maelstrom-ens10"),
        (["data", "--like", "run"], "does not tell how large a sample is"),
        (["s3://bucket/data"], "mounted folder"),
    ],
)
def test_bad_input_is_told_in_one_line(
    data: Path,
    own_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    told: str,
) -> None:
    monkeypatch.chdir(data.parent)
    Path("empty").mkdir()
    RunDirectory.create(Path("run"), {"kind": "script"})
    assert main(["limits", *arguments]) == 1
    error = capsys.readouterr().err
    assert told in error
    assert len(error.splitlines()) == 1
    assert not own_cache.exists()


def test_an_interruption_keeps_nothing(
    data: Path,
    own_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    true_read = limit_probe.read_ranges

    def interrupted(*arguments: object, **named: object) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        return true_read(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(limit_probe, "read_ranges", interrupted)
    assert main(["limits", str(data), *FEW]) == 75
    assert "no figures are kept" in capsys.readouterr().err
    assert not own_cache.exists()


def test_where_nothing_can_be_kept_the_answer_stands(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert main(["limits", str(data), *FEW]) == 0
    assert "Not kept: " in " ".join(capsys.readouterr().out.split())


def test_a_run_is_held_against_the_limits_of_its_files(
    tiny_root: Callable[[Dataset], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = tiny_root(find_dataset("maelstrom-ens10"))
    if not file_system_of(root).counts_device_reads:
        pytest.skip("this file system does not count what its device delivers")
    monkeypatch.chdir(tmp_path)
    assert main(["limits", str(root), *FEW[:4], "--bytes", "32MiB"]) == 0
    profile = ["profile", "maelstrom-ens10", "--data-dir", str(root), "--batches", "4"]
    capsys.readouterr()
    assert main([*profile, "--compute", "none", "--cache", "warm", "--out", "run"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert re.search(r"Used [\d.]+ (\w+/s )?of [\d.]+ \w+/s \(random reads", text)
    cache = json.loads(Path("run/run.json").read_text())["cache"]
    assert cache["resident_fraction_before"] == 1.0
    assert cache["resident_known_by"] in ("cachestat", "mincore", "preadv2")
