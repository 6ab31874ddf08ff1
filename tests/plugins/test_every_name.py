"""What every name that ``iobench list`` prints does without an option of the dataset."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from iobench.datasets.standins import stand_in_folder
from iobench.registry import dataset_names, find_dataset

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.quick_cases(3)
@pytest.mark.timeout(100)
@pytest.mark.parametrize("name", dataset_names())
def test_a_name_alone_is_profiled_described_and_planned(name, iobench_here, store_dir: Path):
    tiny = (name, "--tiny", "--store-dir", store_dir)
    words = ("--batches", "2", "--batch-size", "2", "--workers", "0", "--out", "run")
    done = iobench_here("profile", *tiny, *words)
    assert done.returncode == 0, done.stderr
    done = iobench_here("report", "run", "--full")
    assert "Where loading spends its time" in done.stdout
    # Without its files one would be made for the answer, and removed: `test_info_command`.
    made = stand_in_folder(find_dataset(name), store_dir, tiny=True)
    told = iobench_here("info", name, "--json", "--data-dir", made)
    assert told.returncode == 0, told.stderr
    title = json.loads(told.stdout)["title"]
    assert not any("('" in each["text"] for each in json.loads(told.stdout)["options"])
    assert title
    plan = iobench_here("convert", name, "out", *tiny[1:], "--to", "zarr", "--dry-run")
    assert plan.returncode == 0, plan.stderr
