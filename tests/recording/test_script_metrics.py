"""``iobench.metric``: a script's own figures, from the call to reports, comparisons and tables."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import iobench
from iobench.cli import main
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
    ("name", "value", "problem"),
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
    tmp_path: Path, name: Any, value: Any, problem: str
) -> None:
    with pytest.raises(OptionError, match=problem):
        iobench.metric(name, value)
    with iobench.record(tmp_path / "run"):
        with pytest.raises(OptionError, match=problem):
            iobench.metric(name, value)
        with pytest.raises(OptionError, match=r"loss.*expected"):
            iobench.metric("loss", np.ones(2))  # type: ignore[arg-type]


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


@pytest.mark.long
def test_no_more_names_are_kept_than_a_file_can_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iobench.recording.session.MOST_METRICS", 20)
    with iobench.record(tmp_path / "run") as recording:
        for number in range(21):
            iobench.metric(f"step {number}", 1.0)
        assert len(recording.facts.metrics) == 20
        assert recording.facts.unseen == ["metrics: those after the first 20 names and epochs"]


def test_without_a_recording_nothing_happens(tmp_path: Path) -> None:
    class Untouched:
        def __float__(self) -> float:
            raise AssertionError("it would wait for a device")

    iobench.metric("loss", Untouched())
    run = train(tmp_path / "run", [[("loss", 1.0)]])
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    iobench.metric("loss", Untouched())
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_ranks_have_one_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("IOBENCH_RUN_TOKEN", "job")
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        train(tmp_path / "run", [[("loss", 1.0 + 3 * rank)] * (1 + rank)])
    document = answer(capsys, "report", tmp_path / "run")
    of_ranks = [each["metrics"]["epochs"] for each in (*document["runs"], document["job"])]
    of_epoch = {"name": "loss", "epoch": 0}
    assert of_ranks == [
        {"loss": [{**of_epoch, "mean": mean, "n_values": number}]}
        for mean, number in [(1.0, 1), (4.0, 2), (3.0, 3)]
    ]


def test_reports_and_comparisons_have_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = train(
        tmp_path / "one",
        [[("loss", 4.0), ("odd", 1.0)], [("loss", 0.5)], [("loss", 2.0), ("odd", math.nan)]],
    )
    other = train(tmp_path / "other", [[("loss", 3.0), ("bias", 0.5)]])

    def lines(*words: object) -> list[str]:
        capsys.readouterr()
        assert main([*map(str, words)]) == 0
        return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]

    assert {"loss 4 2 3", "odd 1 unknown 2"} <= {*lines("report", one, "--full")}
    compared = answer(capsys, "compare", one, other)["runs"]
    figures = {"loss": 2.0, "odd": None}
    assert [each["figures"] for each in compared] == [figures, {"loss": 3.0, "bias": 0.5}]
    assert {"loss, last epoch 2 3", "bias, last epoch unknown 0.5"} <= {
        *lines("compare", one, other)
    }
