"""``iobench compare`` as users call it, on runs written span by span."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.cli import main
from iobench.recording.kinds import Kind
from iobench.recording.span_reader import Anchor
from tests.support.sketched_runs import SketchedRun

US = 1_000
MACHINE = {"host": "one", "cpus": 2, "cpu_model": "x", "memory_nbytes": 10**9}
Capture = pytest.CaptureFixture[str]


def serial_run(
    path: Path,
    *,
    n_steps: int = 200,
    read_us: int | Sequence[int] = 400,
    step_us: int = 600,
    seed: int = 0,
    n_rounds: int = 1,
    offset_ns: int = 0,
    weather: Sequence[int] | None = None,
    ended: bool = True,
    **changed: Any,
) -> Path:
    """Return a serial run whose reads vary by a tenth; rounds start every second.

    Where there are several typical times of reads there is a rank for each.
    """
    config: dict[str, Any] = {
        "dataset": "own", "format": "source", "workers": 0, "prefetch": 0, "batch_size": 1,
        "sample_nbytes": 8, "n_samples": n_steps, "machine": MACHINE,
        "compute": {"forward_ns": 0, "backward_ns": step_us * US},
    }  # fmt: skip
    run = SketchedRun(config | changed)
    run.process = {"anchors": (Anchor(offset_ns, offset_ns),), "closed": ended}
    nbytes, per_round = 8 * int(run.config["batch_size"]), n_steps // n_rounds
    for rank, typical_us in enumerate([read_us] if isinstance(read_us, int) else read_us):
        lane, rng = ("consumer", -1, rank), np.random.default_rng(seed)
        run.processes[lane] = {"rank": rank}
        for turn in range(n_rounds):
            start = now = offset_ns + turn * 10**9
            slower = 1.0 if weather is None else weather[turn]
            for batch in range(turn * per_round, (turn + 1) * per_round):
                varied = 1 + 0.1 * rng.standard_normal()
                read_ns = max(int(typical_us * US * slower * varied), 1)
                end = run.work(lane, now, {Kind.READ: read_ns}, batch=batch, epoch=0)
                run.wait(batch, now, end, "consumer", lane=lane, nbytes=nbytes, epoch=0)
                now = end + step_us * US
            run.shutdown(now, now, lane)
            run.round(start, now, turn, lane)
    run.write(path)
    return path


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


def test_that_a_script_ends_its_workers_is_no_caution(tmp_path, capsys):
    for name, closed in (("a", False), ("b", True)):
        run = SketchedRun({"kind": "script", "command": "python train.py"})
        run.processes[("worker", 0)] = {"closed": closed}
        for batch, now in enumerate(range(0, 100 * US, 10 * US)):
            run.add(("worker", 0), Kind.READ, now, now + 4 * US, batch=batch)
            run.wait(batch, now, now + 5 * US, "worker-0")
        run.write(tmp_path / name)
    cautions = document(capsys, tmp_path / "a", tmp_path / "b")["cautions"]
    assert not [each for each in cautions if "killed" in each]


def test_ranks_are_one_run(tmp_path, capsys):
    one = serial_run(tmp_path / "one")
    two = serial_run(tmp_path / "two", world_size=2, read_us=(400, 600))
    found = document(capsys, one, two)
    assert [run["ranks"] for run in found["runs"]] == [1, 2]
    several = figures(found)
    # Steps of 1.0 and of 1.2 ms, at once: of a step 1.1 ms, and together almost twice as fast.
    assert several["step_ns"]["values"][1] == pytest.approx(1.1e6, rel=0.02)
    assert several["wait_ns"]["values"][1] == pytest.approx(5e5, rel=0.02)
    assert several["samples_per_s"]["ratio"] == pytest.approx(2 / 1.1, rel=0.02)
