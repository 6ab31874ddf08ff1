"""``iobench profile --framework torch`` and a script with our DataLoader: the same is recorded."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path

import pytest
from quiet_screen import QuietScreen

pytest.importorskip("torch")

import iobench
from iobench.analysis.run import exposure
from iobench.profiling.config import RunConfig
from iobench.profiling.profile_run import profile
from iobench.recording.kinds import LOOP_KINDS, Kind, stage_name
from iobench.recording.span_file import Flag
from iobench.torch import DataLoader

pytestmark = pytest.mark.timeout(60)

MODULE = """
import numpy as np

def work():  # long enough for a span a step
    np.sort(np.random.default_rng(0).random(400_000))

class Whole:
    def __len__(self):
        return 12
    def __getitem__(self, number):
        work()
        return {"field": np.full((3, 4), number, "f4")}

class Parted(Whole):
    def __getitem__(self, number):
        return self.preprocess(self.decode(self.read(number)))
    def read(self, number):
        work()
        return np.full((3, 4), number, "f4").tobytes()
    def decode(self, raw):
        return {"field": np.frombuffer(raw, "f4").reshape(3, 4).copy()}
    def preprocess(self, arrays):
        return arrays

class FromFiles(Whole):
    def __init__(self):
        np.save("field.npy", np.zeros((3, 4), "f4"))
    def __getitem__(self, number):
        work()
        return {"field": np.load("field.npy")}
"""
DATASETS = ("Whole", "Parted", "FromFiles")


def profiled(target, workers):
    config = RunConfig(
        targets=(target,), framework="torch", workers=workers, batch_size=3, epochs=2,
        compute="none", out=Path(f"profile-{workers}"), store_dir=Path("stores"),
    )  # fmt: skip
    return iobench.open_profile(profile(config, QuietScreen()))


def scripted(dataset, workers):
    path = Path(f"script-{workers}")
    with iobench.record(path, detail="sample"):
        loader = DataLoader(
            dataset, batch_size=3, shuffle=True, num_workers=workers, persistent_workers=workers > 0
        )
        for _ in range(2):
            for _ in loader:
                pass
        del loader  # its workers end within the recording
    return iobench.open_profile(path)


def shown(profile):
    """Return how many spans of each stage each process has, without those of the measured loop."""
    found = Counter[tuple[str, str, bool]]()
    for span in profile.spans:
        kind, label = Kind(span["kind"]), profile.strings[span["label"]]
        who, counted = profile.processes[span["process"]].name, bool(span["flags"] & Flag.IO)
        if (
            kind in LOOP_KINDS | {Kind.WAIT}
            or label == "release"
            or (counted and who == "consumer")
        ):
            continue
        if counted:
            found[who, stage_name(kind, label), True] = 1  # of batches that read anything
        elif kind is not Kind.HEAD_OF_LINE:  # which batch is in another's way differs by chance
            found[who, stage_name(kind, label), False] += 1
    return found


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", DATASETS)
def test_the_same_stages_as_often(module, name, workers):
    of_profile = profiled(f"{module}:{name}", workers)
    of_script = scripted(getattr(importlib.import_module(module), name)(), workers)
    assert shown(of_profile) == shown(of_script)
    rows = [{row.stage for row in exposure(run).whole.stages} for run in (of_profile, of_script)]
    assert {"collate", "fused"} <= rows[0] & rows[1]
    assert ({"read", "decode", "preprocess"} <= rows[0]) == (name == "Parted")
