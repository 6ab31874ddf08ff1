"""``iobench.metric``: a script's own figures, from the call to reports, comparisons and tables."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import iobench
from iobench.cli import main
from iobench.compat.deep500 import timer
from iobench.errors import OptionError
from iobench.recording.delivery_log import DeliveryLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Given = tuple[str, Any]


def deliver(recording: Any, epoch: int, role: str = "", n_batches: int = 2) -> None:
    """Let a pass over a loader bring some batches."""
    log = DeliveryLog(recording, recording.add_loader("torch", "Loader", "data"), epoch=epoch)
    log.role = role
    log.ask()
    log.started()
    for _ in range(n_batches):
        log.ask(number := recording.next_batch())
        log.deliver(number, nbytes=8, maker="consumer")
    log.ask()
    log.end()


def train(path: Path, epochs: Iterable[Sequence[Given]]) -> Path:
    """Record a training that names figures after the batches of each epoch."""
    with iobench.record(path) as recording:
        for epoch, given in enumerate(epochs):
            deliver(recording, epoch)
            for name, value in given:
                iobench.metric(name, value)
    return path


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def metrics_of(capsys: pytest.CaptureFixture[str], run: Path) -> dict[str, list[Any]]:
    (told,) = answer(capsys, "report", run)["runs"]
    return {
        name: [(each["epoch"], each["mean"], each["n_values"]) for each in epochs]
        for name, epochs in told["metrics"]["epochs"].items()
    }


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        ([[("loss", 0.25)], [("loss", 0.125)]], [(0, 0.25, 1), (1, 0.125, 1)]),
        ([[("loss", 1), ("loss", 2), ("loss", 6)]], [(0, 3.0, 3)]),
        ([[], [("loss", np.float32(0.5))]], [(1, 0.5, 1)]),
        ([[("loss", np.array([3.0]))]], [(0, 3.0, 1)]),
        ([[("loss", math.nan)], [("loss", 2.0)]], [(0, None, 1), (1, 2.0, 1)]),
        ([[("loss", 1.0), ("loss", math.inf), ("loss", -math.inf)]], [(0, None, 3)]),
        ([[("loss", 1e308), ("loss", -1e308)]], [(0, None, 2)]),
    ],
    ids=["epochs", "mean", "numpy", "array", "nan", "infinities", "overflow"],
)
def test_an_epoch_has_the_mean_of_its_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], epochs: Any, expected: Any
) -> None:
    run = train(tmp_path / "run", epochs)
    assert metrics_of(capsys, run) == {"loss": expected}
    for file in (run / "processes").iterdir():  # any reader of JSON can read it
        json.loads(file.read_text(), parse_constant=lambda name: pytest.fail(name))


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("", 1.0, "1 to 100 printable"),
        ("a" * 101, 1.0, "1 to 100 printable"),
        ("two\nlines", 1.0, "1 to 100 printable"),
        (3, 1.0, "1 to 100 printable"),
        ("loss", "0.5", "str is no number"),
        ("loss", None, "NoneType is no number"),
    ],
)
def test_what_is_no_figure_is_refused_whether_recorded_or_not(
    tmp_path: Path, name: Any, value: Any, told: str
) -> None:
    with pytest.raises(OptionError, match=told):
        iobench.metric(name, value)
    with iobench.record(tmp_path / "run"), pytest.raises(OptionError, match=told):
        iobench.metric(name, value)


def test_several_numbers_are_no_figure(tmp_path: Path) -> None:
    with iobench.record(tmp_path / "run"), pytest.raises(OptionError, match=r"loss.*expected"):
        iobench.metric("loss", np.ones(2))  # type: ignore[arg-type]


def test_without_a_recording_nothing_happens(tmp_path: Path) -> None:
    class Untouched:
        def __float__(self) -> float:
            raise AssertionError("it would wait for a device")

    iobench.metric("loss", Untouched())
    run = train(tmp_path / "run", [[("loss", 1.0)]])
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    iobench.metric("loss", Untouched())
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_the_epoch_is_that_of_what_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with iobench.record(tmp_path / "run") as recording:
        iobench.metric("before", 1.0)
        deliver(recording, 0, "validation")  # a check before the training
        for epoch in range(2):
            deliver(recording, epoch, "training")
            deliver(recording, epoch + 1, "validation")
            iobench.metric("error", epoch)
    found = metrics_of(capsys, tmp_path / "run")
    assert found == {"before": [(-1, 1.0, 1)], "error": [(0, 0.0, 1), (1, 1.0, 1)]}


def test_no_more_names_are_kept_than_a_file_can_hold(tmp_path: Path) -> None:
    with iobench.record(tmp_path / "run") as recording:
        for number in range(10_001):
            iobench.metric(f"step {number}", 1.0)
        assert len(recording.facts.metrics) == 10_000
        assert recording.facts.unseen == ["metrics: those after the first 10,000 names and epochs"]


def test_what_a_killed_training_said_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = (
        "import iobench, os, signal, sys\n"
        "sys.path.append(sys.argv[2])\n"
        "import test_script_metrics\n"
        "recording = iobench.record(sys.argv[1]).start()\n"
        "test_script_metrics.deliver(recording, 0)\n"
        "iobench.metric('loss', 0.5)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    words = [sys.executable, "-c", script, str(tmp_path / "run"), str(Path(__file__).parent)]
    killed = subprocess.run(words, capture_output=True, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert metrics_of(capsys, tmp_path / "run") == {"loss": [(0, 0.5, 1)]}


@pytest.mark.timeout(120)
def test_ranks_have_one_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = (
        "import iobench, sys\n"
        "sys.path.append(sys.argv[2])\n"
        "import test_script_metrics\n"
        "rank = int(sys.argv[3])\n"
        "with iobench.record(sys.argv[1]) as recording:\n"
        "    test_script_metrics.deliver(recording, 0)\n"
        "    for _ in range(1 + rank):\n"
        "        iobench.metric('loss', 1.0 + 3 * rank)\n"
    )
    told = {"WORLD_SIZE": "2", "IOBENCH_RUN_TOKEN": "job", "PATH": os.environ["PATH"]}
    words = [sys.executable, "-c", script, str(tmp_path / "run"), str(Path(__file__).parent)]
    ranks = [
        subprocess.Popen([*words, str(rank)], env={**told, "RANK": str(rank)}) for rank in range(2)
    ]
    assert [rank.wait(60) for rank in ranks] == [0, 0]
    found = answer(capsys, "report", tmp_path / "run")
    of_ranks = [each["metrics"]["epochs"] for each in (*found["runs"], found["job"])]
    expected = [(1.0, 1), (4.0, 2), (3.0, 3)]
    of_epoch = {"name": "loss", "epoch": 0}
    assert of_ranks == [
        {"loss": [{**of_epoch, "mean": mean, "n_values": number}]} for mean, number in expected
    ]


def test_what_deep500s_timer_logs_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[Any] = []
    tracker = types.ModuleType("mlflow")
    tracker.log_metrics = logged.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", tracker)
    with iobench.record(tmp_path / "run") as recording:
        deliver(recording, 0)
        own = timer.Timer()
        for key in (timer.TimeType.FORWARD, "of two\nlines"):
            own.start(key)
            own.end(key)
        own.log_mlflow_all("train")
    assert [*logged[0]] == ["train/FORWARD", "train/of two\nlines"]
    found = metrics_of(capsys, tmp_path / "run")
    assert found == {"train/FORWARD": [(0, logged[0]["train/FORWARD"], 1)]}


def test_a_report_has_a_row_for_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(
        tmp_path / "run",
        [[("loss", 4.0), ("odd", 1.0)], [("loss", 0.5)], [("loss", 2.0), ("odd", math.nan)]],
    )
    assert main(["report", str(run), "--full"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "loss 4 2 3" in lines
    assert "odd 1 unknown 2" in lines


def test_runs_are_compared_by_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = train(tmp_path / "one", [[("loss", 4.0)], [("loss", 2.0)]])
    other = train(tmp_path / "other", [[("loss", 3.0), ("bias", 0.5)]])
    found = answer(capsys, "compare", one, other)
    figures = [each["figures"] for each in found["runs"]]
    assert figures == [{"loss": 2.0}, {"loss": 3.0, "bias": 0.5}]
    assert main(["compare", str(one), str(other)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "loss, last epoch 2 3" in lines
    assert "bias, last epoch unknown 0.5" in lines


def test_the_quarterly_table_has_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(tmp_path / "run", [[("loss", 4.0)], [("loss", 2.0), ("odd", math.inf)]])
    rows = answer(capsys, "compare", "--quarterly", run)["rows"]
    assert rows
    assert all(row["figures"] == {"loss": 2.0, "odd": None} for row in rows)
    assert main(["compare", "--quarterly", str(run)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["loss,", "odd,"] in lines
    assert any(line[-2:] == ["2", "unknown"] for line in lines)
