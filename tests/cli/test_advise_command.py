"""``iobench advise``, as users call it: on runs that were kept, and on what it profiles first."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from iobench.cli import main
from iobench.cli.profile_command import profile_config
from iobench.recording.kinds import Kind
from tests.support.sketched_runs import CONSUMER, SketchedRun

MS = 1_000_000
NBYTES = 500_000
COMMAND = "iobench profile own.nc --format source --workers 0 --compute=5ms --json --out runs/1"


def recorded(path: Path, step_ms: int, **more: Any) -> Path:
    """Keep a run of thirty samples that the training loop reads and decodes by itself."""
    config = {
        "dataset": "own",
        "format": "source",
        "framework": "native",
        "workers": 0,
        "prefetch": 0,
        "batch_size": 1,
        "n_samples_all": 1000,
        "sample_nbytes": NBYTES,
        "machine": {"cpus": 2, "memory_nbytes": 8 << 30},
        "cache": {"asked": "as-is", "resident_fraction_before": 1.0},
        "command": COMMAND,
    }
    run, clock = SketchedRun(config, **more), 0
    for batch in range(60):
        of = {"nbytes": NBYTES, "batch": batch, "epoch": 0}
        decoded = run.work(CONSUMER, clock, {Kind.READ: 4 * MS, Kind.DECODE: 2 * MS}, **of)
        run.wait(batch, clock, decoded, "consumer", nbytes=NBYTES)
        clock = decoded + step_ms * MS
    run.shutdown(clock, clock + 1)
    run.round(0, clock + 1)
    run.write(path)
    return path


def test_json_has_the_same_figures_and_the_commands_parse(tmp_path: Path, iobench_here) -> None:
    run = recorded(tmp_path / "run", step_ms=7)
    done = iobench_here("advise", run, "--json")
    document = json.loads(done.stdout)
    assert document["outcome"] == "advice"
    assert document["replay_error_fraction"] == pytest.approx(0.0, abs=1e-6)
    best = document["changes"][0]
    assert best["settings"] == {"workers": 1}
    # Six of thirteen ms hide behind a step of seven.
    assert best["saved_fraction"] == pytest.approx(6 / 13, abs=0.01)
    assert best["saved_s"] == pytest.approx(6.0, abs=0.1)
    assert best["cost"]["spent_s"] == 0
    (store,) = (each for each in document["to_measure"] if "format" in each["settings"])
    assert store["break_even"] == {"epochs": None, "never": False, "staging_to_epoch": None}
    for change in (*document["changes"], *document["to_measure"]):
        for command in change["commands"]:
            if command.startswith("iobench profile"):
                profile_config(shlex.split(command)[2:])


def test_a_script_is_told_lines_of_code_and_why_it_is_not_tried(
    tmp_path: Path, iobench_here
) -> None:
    run = recorded(tmp_path / "run", 7, kind="script", command="python train.py", framework="torch")
    done = iobench_here("advise", run, "--try", "1", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert "num_workers=1" in document["changes"][0]["commands"][0]
    assert document["not_tried"].startswith("Nothing tried: the loader belongs to the script;")
    refused = iobench_here("advise", run, "--try", "1", "--", "python", "train.py")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "python train.py: expected a run directory alone" in refused.stderr


@pytest.mark.long
@pytest.mark.timeout(110)
def test_a_dataset_is_profiled_first_and_the_best_change_tried(iobench, store_dir: Path) -> None:
    pytest.importorskip("eccodes", reason="reads GRIB: pip install 'iobench[grib]'")
    done = iobench(
        "advise", "maelstrom-ens10", "--tiny", "--store-dir", store_dir, "--json",
        "--batches", "12", "--compute", "2ms", "--workers", "0", "--try", "1", "--rounds", "1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["baseline"]["format"] == "source"
    assert document["changes"] == []  # a dozen batches prove nothing
    best = document["to_measure"][0]
    (measured,) = (each for each in document["to_measure"] if each["evidence"] == "measured")
    assert measured["low_fraction"] is None
    assert measured["settings"]["format"] == "tfrecord"
    (tried,) = document["tried"]
    assert tried["settings"] == best["settings"]
    assert tried["rounds"] == 1
    assert (Path(document["run"]).name, document["not_tried"]) == ("maelstrom-ens10-1", None)


def test_a_profile_is_tried_with_the_files_batches_and_workers_that_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[Any] = []
    monkeypatch.setattr(
        "iobench.trials.configurations.try_changes",
        lambda config, *_, **__: tried.append(config) or [],
    )
    facts: dict[str, Any] = {"sources": ["own.nc"], "batch_size": 4, "asked": {"workers": 0}}
    command = "iobench profile gone.nc --format source --workers 3 --batch-size 9 --cache warm"
    run = recorded(tmp_path / "run", 7, **facts, command=command)
    assert main(["advise", str(run), "--try", "1"]) == 0
    masked = recorded(tmp_path / "masked", 7, **facts, command="iobench profile gone.nc --name ***")
    assert main(["advise", str(masked), "--try", "1"]) == 1
    assert "in place of the run" in capsys.readouterr().err
    assert [each.targets for each in tried] == [("own.nc",)]
    assert {(each.batch_size, each.workers, each.cache) for each in tried} == {(4, 0, "warm")}
