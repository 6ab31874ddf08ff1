"""``iobench compare`` as users call it, on runs written span by span."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.cli import main
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.testing import FakeClock

US = 1_000
MACHINE = {"host": "one", "cpus": 2, "cpu_model": "x", "memory_nbytes": 10**9}
Capture = pytest.CaptureFixture[str]


def serial_run(
    path: Path,
    *,
    n_steps: int = 200,
    read_us: float = 400,
    step_us: float = 600,
    seed: int = 0,
    n_rounds: int = 1,
    offset_ns: int = 0,
    weather: object = None,
    rank: int = 0,
    ended: bool = True,
    **changed: Any,
) -> Path:
    """Return a serial run whose reads vary by a tenth; rounds start every second."""
    config: dict[str, Any] = {
        "dataset": "own", "format": "source", "workers": 0, "prefetch": 0, "batch_size": 1,
        "sample_nbytes": 8, "n_samples": n_steps, "machine": MACHINE,
        "compute": {"forward_ns": 0, "backward_ns": int(step_us * US)},
    }  # fmt: skip
    config |= changed
    directory = RunDirectory.open(path) if rank else RunDirectory.create(path, config)
    recorder = directory.recorder(role="consumer", rank=rank, clock=FakeClock(offset_ns))
    rng = np.random.default_rng(seed)
    nbytes = 8 * int(config["batch_size"] or 1)
    number = {text: recorder.string(text) for text in ("consumer", "shutdown", "round")}
    per_round = n_steps // n_rounds
    for turn in range(n_rounds):
        start = now = offset_ns + turn * 10**9
        slower = 1.0 if weather is None else float(np.asarray(weather)[turn])
        for batch in range(turn * per_round, (turn + 1) * per_round):
            varied = 1 + 0.1 * rng.standard_normal()
            end = now + max(int(read_us * US * slower * varied), 1)
            recorder.emit(Kind.READ, now, end, batch=batch, epoch=0)
            recorder.emit(
                Kind.WAIT, now, end, nbytes=nbytes, batch=batch, epoch=0, detail=number["consumer"]
            )
            now = end + int(step_us * US)
        if n_steps:
            recorder.emit(Kind.WAIT, now, now, label=number["shutdown"])
        recorder.emit(Kind.OTHER, start, now, sample=turn, label=number["round"])
    if ended:
        recorder.close()
    return directory.path


def document(capsys: Capture, *arguments: object) -> dict[str, Any]:
    assert main(["compare", *map(str, arguments), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def figures(found: dict[str, Any], at: int = 0) -> dict[str, dict[str, Any]]:
    return {each["figure"]: each for each in found["comparisons"][at]["figures"]}


def test_ratios_have_intervals_and_swap(tmp_path, capsys):
    a, b = (serial_run(tmp_path / f"{us}", read_us=us, seed=us) for us in (400, 480))
    there, back = (figures(document(capsys, *pair)) for pair in ((a, b), (b, a)))
    wait = there["wait_ns"]
    assert 1.15 < wait["low"] < wait["ratio"] < wait["high"] < 1.25
    assert wait["differs"] is True
    assert wait["values"][1] / wait["values"][0] == pytest.approx(wait["ratio"])
    for same in ("exposed:read", "busy:read"):
        assert there[same]["ratio"] == pytest.approx(wait["ratio"])
    assert there["samples_per_s"]["ratio"] == pytest.approx(1 / there["sample_ns"]["ratio"])
    assert there["compute_ns"]["ratio"] == 1
    for key, figure in there.items():
        if figure["ratio"] is not None:
            assert back[key]["ratio"] == pytest.approx(1 / figure["ratio"])
            assert back[key]["low"] == pytest.approx(1 / figure["high"])
    assert document(capsys, a, b)["comparisons"][0]["interval_of"] == "blocks"
    for figure in figures(document(capsys, a, a)).values():
        assert figure["ratio"] is None or figure["differs"] is False


def test_turns_are_paired(tmp_path, capsys):
    both = tmp_path / "both"
    common: dict[str, Any] = {
        "n_rounds": 8, "weather": [1, 3, 1, 5, 1, 1, 2, 1], "step_us": 100,
    }  # fmt: skip
    serial_run(both / "z", position=0, **common)
    other = {"read_us": 440, "seed": 3} | common
    serial_run(both / "a", position=1, offset_ns=5 * 10**8, **other)
    found = document(capsys, both)
    assert [Path(run["run"]).name for run in found["runs"]] == ["z", "a"]
    assert found["comparisons"][0]["interval_of"] == "rounds"
    assert found["comparisons"][0]["n_blocks"] == [8, 8]
    wait = figures(found)["wait_ns"]
    assert 1.05 < wait["low"] < wait["high"] < 1.15
    # The same times at another hour are no turns, and then the weather hides it.
    later = serial_run(tmp_path / "later", offset_ns=10**12, **other)
    apart = document(capsys, both / "z", later)
    assert apart["comparisons"][0]["interval_of"] == "blocks"
    assert figures(apart)["wait_ns"]["differs"] is False


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"dataset": "another"}, ["dataset"]),
        ({"stand_in": True, "tiny": True}, ["stand_in", "tiny"]),
        ({"sample_nbytes": 4}, ["sample_nbytes"]),
        ({"batch_size": 2, "n_samples": 400}, ["batch_size", "n_samples"]),
        ({"step_us": 900}, ["step_ns"]),
    ],
)
def test_what_is_not_the_same_is_named(tmp_path, capsys, changed, named):
    a, b = serial_run(tmp_path / "a"), serial_run(tmp_path / "b", **changed)
    found = document(capsys, a, b)
    assert [*found["configuration"]] == named
    assert figures(found)["busy:read"]["ratio"] == pytest.approx(
        0.5 if {"batch_size", "sample_nbytes"} & changed.keys() else 1, abs=0.03
    )


def test_a_run_that_was_killed_is_a_caution(tmp_path, capsys):
    a, b = serial_run(tmp_path / "a"), serial_run(tmp_path / "b", ended=False)
    assert "killed" in " ".join(document(capsys, a, b)["cautions"])


def test_ranks_are_one_run(tmp_path, capsys):
    one, two = serial_run(tmp_path / "one"), serial_run(tmp_path / "two", world_size=2)
    serial_run(two, rank=1, read_us=600)
    found = document(capsys, one, two)
    assert [run["ranks"] for run in found["runs"]] == [1, 2]
    several = figures(found)
    # Steps of 1.0 and of 1.2 ms, at once: of a step 1.1 ms, and together almost twice as fast.
    assert several["step_ns"]["values"][1] == pytest.approx(1.1e6, rel=0.02)
    assert several["wait_ns"]["values"][1] == pytest.approx(5e5, rel=0.02)
    assert several["samples_per_s"]["ratio"] == pytest.approx(2 / 1.1, rel=0.02)
