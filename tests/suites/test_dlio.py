"""Cells as workloads of DLIO, and its figures beside ours; held to the real DLIO where it is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "support"))

from measured_suites import write_suite

from iobench.analysis.run import Run
from iobench.cli import main
from iobench.subjects.utilisation.figures import utilisation
from iobench.suites.dlio import dlio_figures, read_dlio
from iobench.suites.results import read_results
from iobench.suites.suite_archive import pack, verify
from iobench.suites.suite_folder import SuiteFolder, read_folder_recipe
from iobench.suites.suite_table import suite_document, suite_table

yaml = pytest.importorskip("yaml", reason="workloads are YAML")

COMPUTE_S = 0.004
PUBLISHED = {
    "model": {"name"}, "framework": None, "workflow": {"generate_data", "train"},
    "dataset": {
        "data_folder", "num_files_train", "num_samples_per_file", "record_length_bytes", "format",
    },
    "reader": {"data_loader", "batch_size", "read_threads", "file_shuffle", "sample_shuffle"},
    "train": {"epochs", "computation_time"}, "metric": {"au"},
}  # fmt: skip
"""Keys of mlcommons/storage caa90c9, configs/dlio/workload/{unet3d,cosmoflow}_h100.yaml."""
OF_DLIO_2_0_0 = {"record_length"}
STEPS = [0.9, 0.03, 0.05]
WAITS = [0.5, 0.01, 0.02]
SUMMARY = {
    "start": "2026-11-27T23:36:17.204534", "num_accelerators": 1, "hostname": "vendor-1",
    "metric": {
        "train_au_mean_percentage": 81.25, "train_throughput_mean_samples_per_second": 100.0,
        "train_io_mean_MB_per_second": 2.0,
    },
    "host_cpu_count": [64], "host_cpuinfo": {"model name": "a CPU"}, "host_memory_GB": [2.0],
}  # fmt: skip
OF_TRAINING = (
    "train_au_mean_percentage", "train_throughput_mean_samples_per_second",
    "train_io_mean_MB_per_second",
)  # fmt: skip
OUTPUT = {
    "hostname": "vendor-1",
    "1": {"proc": {"block1": STEPS}, "load": {"block1": WAITS, "eval": [9.0]}, "au": {}},
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("dlio")
    tables = {
        "suite": {"name": "stored", "repeats": 2, "drop": 0},
        "fixed": {
            "dataset": "maelstrom-ens10", "tiny": True, "batches": 4, "batch-size": 2,
            "compute": "4ms", "energy": "off", "device": "none",
        },
        "vary": {"format": ["numpy", "zarr:codec=none"]},
    }  # fmt: skip
    return write_suite(place / "suite", place / "stores", tables)


@pytest.fixture
def suite(measured: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(measured, tmp_path / "suite"))


def written(folder: Path, summary: Any = SUMMARY, name: str = "elsewhere") -> Path:
    """Write what DLIO writes."""
    (folder / ".hydra").mkdir(parents=True)
    text = summary if isinstance(summary, str) else json.dumps(summary)
    (folder / "summary.json").write_text(text)
    (folder / "0_output.json").write_text(json.dumps(OUTPUT))
    (folder / ".hydra" / "config.yaml").write_text(f"workload:\n  model:\n    name: {name}\n")
    return folder


def workloads(suite: Path, out: Path) -> dict[str, tuple[dict[str, Any], str]]:
    assert main(["suite", "dlio", str(suite), "--out", str(out)]) == 0
    files = sorted((out / "workload").glob("*.yaml"))
    return {file.stem: (yaml.safe_load(file.read_text()), file.read_text()) for file in files}


def test_workloads_have_the_published_keys(suite: Path, tmp_path: Path) -> None:
    found = workloads(suite, tmp_path / "out")
    assert len(found) == 2
    for told, _ in found.values():
        for table, keys in told.items():
            assert table in PUBLISHED
            if isinstance(keys, dict):
                assert keys.keys() <= (PUBLISHED[table] or set()) | OF_DLIO_2_0_0


def test_workloads_are_what_was_measured(suite: Path, tmp_path: Path) -> None:
    (numpy, text), (zarr, other) = workloads(suite, tmp_path / "out").values()
    runs = [Run.open(path.parent) for path in sorted(suite.rglob("run.json"))]
    store = runs[0].about.store
    assert store is not None
    data = numpy["dataset"]
    assert data["format"] == "npy"
    assert data["num_files_train"] * data["num_samples_per_file"] == store.n_samples
    assert data["record_length_bytes"] == round(store.nbytes / store.n_samples)
    assert numpy["reader"]["batch_size"] == 2
    used = utilisation(runs[0].of_rank())
    assert used is not None
    # At least what was asked for: a sleep is never shorter.
    assert COMPUTE_S <= numpy["train"]["computation_time"] < 50 * COMPUTE_S
    assert re.search(r"utilisation by the same formula there: 0\.\d{4}", text)
    assert "stands for it" not in text
    assert zarr["dataset"]["format"] == "npy"
    assert "DLIO has no zarr: npy stands for it" in other


def test_results_of_dlio_stand_beside_ours(suite: Path, tmp_path: Path) -> None:
    name = next(iter(workloads(suite, tmp_path / "out")))
    assert main(["suite", "dlio", str(suite), "--read", str(written(tmp_path / "a"))]) == 0
    assert (
        main(["suite", "dlio", str(suite), "--read", str(written(tmp_path / "b", name=name))]) == 0
    )
    theirs = [each for each in read_results(suite) if each.cell.get("framework") == "dlio"]
    assert {tuple(each.cell.values()) for each in theirs} == {
        ("elsewhere", "dlio"), ("maelstrom-ens10", "numpy", "dlio"),
    }  # fmt: skip
    for each in theirs:
        assert each.figures == {
            "samples_per_s": 100.0, "bytes_per_s": 2.0 * 2**20, "utilisation": 0.8125,
            "step_s": pytest.approx(0.04), "wait_s": pytest.approx(0.015),
        }  # fmt: skip
        assert each.machine["host"] == "vendor-1"
        assert each.machine["memory_bytes"] == 2 << 30
    table = suite_table(SuiteFolder.of(suite, read_folder_recipe(suite)))
    rows = {tuple(row.cell.values()): row for row in table.cells}
    assert rows["maelstrom-ens10", "numpy", "dlio"].figures["utilisation"].mean.value == 0.8125
    assert rows["maelstrom-ens10", "numpy"].figures["utilisation"].mean.value is not None
    assert suite_document(table).sections


def test_they_go_into_an_archive_and_are_made_again(suite: Path, tmp_path: Path) -> None:
    assert main(["suite", "dlio", str(suite), "--read", str(written(tmp_path / "a"))]) == 0
    archive = tmp_path / "a.tar.gz"
    pack(suite, archive, versions={}, environment={})
    assert verify(archive).wrong == ()
    (path,) = (suite / "cells" / "dlio-elsewhere").glob("*.result.json")
    told = json.loads(path.read_text())
    told["figures"]["utilisation"] = 0.99
    path.write_text(json.dumps(told))
    pack(suite, archive, versions={}, environment={})
    (line,) = verify(archive).wrong
    assert "utilisation is stated as 0.99, and its run gives 0.8125" in line


@pytest.mark.parametrize(
    ("summary", "why"),
    [
        ("{", "is damaged"),
        ([], "is no object"),
        ({"metric": {}}, "has no throughput and no utilisation of a training"),
        ({"metric": None}, "has no throughput"),
        (SUMMARY | {"metric": SUMMARY["metric"] | {"train_au_mean_percentage": "x"}}, "has no"),  # type: ignore[operator]
        ('{"metric": {"train_au_mean_percentage": NaN}}', "has no throughput"),
        (SUMMARY | {"metric": dict.fromkeys(OF_TRAINING, 10**400)}, "has no throughput"),
        (SUMMARY | {"metric": dict.fromkeys(OF_TRAINING, True)}, "has no throughput"),
        (SUMMARY | {"metric": dict.fromkeys(OF_TRAINING, -1)}, "has no throughput"),
    ],
)
def test_what_is_no_result_of_dlio_is_refused(
    suite: Path, tmp_path: Path, summary: Any, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = written(tmp_path / "a", summary)
    assert main(["suite", "dlio", str(suite), "--read", str(output)]) == 1
    said = capsys.readouterr().err
    assert why in said
    assert len(said.splitlines()) == 1
    assert not (suite / "cells" / "dlio-elsewhere").exists()


@pytest.mark.parametrize("steps", [{"proc": None}, {"proc": [1.0]}, {"proc": {"block1": [1, "x"]}}])
def test_steps_of_another_shape_are_unknown(tmp_path: Path, steps: Any) -> None:
    output = written(tmp_path / "a")
    for file in output.glob("*_output.json"):
        file.write_text(json.dumps({"1": steps}))
    assert dlio_figures(output).keys() == {"samples_per_s", "bytes_per_s", "utilisation"}


@pytest.mark.parametrize(
    "config", ["  model: mine\n", "  model:\n    size: 3\n    name: mine\n  train:\n    name: no\n"]
)
def test_a_workload_is_known_by_its_name(suite: Path, tmp_path: Path, config: str) -> None:
    output = written(tmp_path / "a")
    (output / ".hydra" / "config.yaml").write_text(f"workload:\n{config}")
    assert read_dlio(output, suite).cell["dataset"] == "mine"


def test_a_folder_without_results_is_refused(
    suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["suite", "dlio", str(suite), "--read", str(tmp_path)]) == 1
    assert "expected the folder that DLIO wrote" in capsys.readouterr().err
    assert main(["suite", "dlio", str(suite)]) == 1
    assert "expected --out FOLDER, --read FOLDER" in capsys.readouterr().err
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["suite", "dlio", str(empty), "--out", str(tmp_path / "x")]) == 1
    assert "no cell has runs" in capsys.readouterr().err


@pytest.fixture(scope="module")
def dlio() -> None:
    """Skip before a suite is made."""
    pytest.importorskip("dlio_benchmark", reason="installed by the DLIO step of .ci/run --all")


def test_the_real_dlio_runs_a_workload_and_its_figures_are_read(
    dlio: None, suite: Path, tmp_path: Path
) -> None:
    out, output = tmp_path / "out", tmp_path / "output"
    name = next(iter(workloads(suite, out)))
    done = subprocess.run(
        [
            sys.executable, "-m", "dlio_benchmark.main", "--config-dir", str(out),
            f"workload={name}", "++workload.workflow.generate_data=True",
            f"hydra.run.dir={output}",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert main(["suite", "dlio", str(suite), "--read", str(output)]) == 0
    (theirs,) = [each for each in read_results(suite) if each.cell.get("framework") == "dlio"]
    assert theirs.cell["format"] == "numpy"
    said = done.stdout + done.stderr
    for key, pattern in (
        ("utilisation", r"Training Accelerator Utilization \[AU\] \(%\): ([\d.]+)"),
        ("samples_per_s", r"Training Throughput \(samples/second\): ([\d.]+)"),
    ):
        found = re.search(pattern, said)
        assert found is not None, said
        factor = 100 if key == "utilisation" else 1
        assert theirs.figures[key] * factor == pytest.approx(float(found[1]), abs=1e-4)
    # Both wait as long as the workload's step says, which is what was measured of ours.
    told = yaml.safe_load((out / "workload" / f"{name}.yaml").read_text())
    assert theirs.figures["step_s"] >= told["train"]["computation_time"]
