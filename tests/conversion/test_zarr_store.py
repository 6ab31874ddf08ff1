"""A Zarr store of the user's own through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from iobench.cli import main

DIMS = {"_ARRAY_DIMENSIONS": ["time", "x"]}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write ten chunks by hand; the command runs beside them."""
    monkeypatch.chdir(tmp_path)
    values = np.arange(40, dtype="<f4").reshape(10, 4)
    array = {
        "zarr_format": 2, "shape": [10, 4], "chunks": [1, 4], "dtype": "<f4", "order": "C",
        "compressor": None, "filters": None, "fill_value": None,
    }  # fmt: skip
    folder = tmp_path / "own.zarr" / "v"
    folder.mkdir(parents=True)
    for file, content in {
        "../.zgroup": {"zarr_format": 2},
        ".zarray": array,
        ".zattrs": DIMS,
    }.items():
        (folder / file).write_text(json.dumps(content))
    for number in range(10):
        (folder / f"{number}.0").write_bytes(values[number].tobytes())
    return "own.zarr"


def run(*arguments: str) -> int:
    quick = ("--workers", "0", "--batches", "5", "--batch-size", "2", "--compute", "none")
    return main(["profile", *arguments, "--sample-dim", "time", *quick, "--out", "run", "--json"])


@pytest.mark.parametrize("cache", ["as-is", "warm"])
def test_every_stage_of_a_store_is_measured(store, capsys, cache) -> None:
    assert run(store, "--format", "source,numpy", "--pipeline", "own", "--cache", cache) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [each["format"] for each in runs] == ["source", "numpy"]
    stages = {stage["stage"]: stage for stage in runs[0]["stages"]}
    assert stages["read"]["nbytes"] == 5 * 2 * 16
    assert {"decode", "collate"} <= stages.keys()


def test_a_chunk_of_another_length_is_named(store, capsys) -> None:
    Path(store, "v", "3.0").write_bytes(bytes(15))
    assert run(store) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "chunk 3.0" in line
    assert "15 bytes" in line
