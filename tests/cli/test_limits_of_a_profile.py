"""``iobench profile --limits``: what storage gave a reader of the run's shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from iobench.cli import main
from iobench.storage.probe_figures import read_limits

QUICK = ("--tiny", "--batches", "4", "--compute", "none", "--workers", "1", "--json")
NAME = "maelstrom-power"


@pytest.fixture
def profiled(
    store_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    def profile(limits: str, *more: str) -> tuple[dict[str, Any], dict[str, Any]]:
        out = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        words = ["profile", NAME, *QUICK, "--store-dir", str(store_dir), "--out", str(out)]
        words += ["--limits", limits, *more]
        assert main(words) == 0
        (run,) = json.loads(capsys.readouterr().out)["runs"]
        return run, json.loads((out / "run.json").read_text())

    return profile


def test_a_profile_is_held_against_its_own_storage(profiled: Any) -> None:
    run, told = profiled("0.4", "--format", "tfrecord")
    (before,) = read_limits(told["storage_limits"])
    assert {each.threads for each in before.reads} == {1}
    use = run["storage_limit"]
    assert use["storage_bytes_per_s"] or use["reason"]
    assert told["storage_probe_s"] == before.spent_ns / 1e9
    if use["limit_bytes_per_s"] is not None:
        assert use["used_fraction"] == use["used_bytes_per_s"] / use["limit_bytes_per_s"]


def test_nothing_is_probed_where_that_is_off(profiled: Any) -> None:
    run, told = profiled("off")
    assert not {"storage_limits", "storage_probed", "storage_probe_s"} & set(told)
    assert run["storage_limit"] is None


def test_a_dataset_without_files_says_so(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "own_numbers.py").write_text(
        "import numpy as np\n"
        "class Numbered:\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, number): return {'field': np.full(3, number, 'f4')}\n"
    )
    monkeypatch.chdir(tmp_path)
    quick = ("--batches", "2", "--compute", "none", "--workers", "0")
    assert main(["profile", "own_numbers:Numbered", "--out", "run", *quick]) == 0
    told = json.loads(Path("run/run.json").read_text())
    assert told["no_storage_probe"] == "which files are read is unknown"
