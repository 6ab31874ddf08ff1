"""The tf.data pipeline over application A3's records: its operations are seen in its threads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytest.importorskip("tensorflow", reason="the application runs on it")

from iobench.datasets.locate import FileLocator
from iobench.recording.facts import read_process_facts
from iobench.recording.kinds import Kind
from iobench.recording.session import record
from iobench.runs.reading import open_profile
from iobench.tensorflow import hooks
from iobench_maelstrom.radiation.tf_dataset import RadiationTf

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(180)


def test_a3_tells_its_operations_and_every_wait(tiny_root: Any, tmp_path: Path) -> None:
    dataset = RadiationTf()
    locator = FileLocator(stand_in=tiny_root(dataset), cache_dir=tmp_path / "cache")
    files = dataset.files(locator)
    index = dataset.samples(files, locator)
    passes = dataset.upstream(files, index, batch_size=16).pipeline
    expected = [*passes.items(0)]
    hooks.install()
    try:
        with record(tmp_path / "run"):
            found = [*passes.items(0)]
    finally:
        hooks.uninstall()
    assert len(found) == len(expected) > 8
    profile = open_profile(tmp_path / "run")
    spans = profile.spans
    waits = spans[(spans["kind"] == Kind.WAIT) & (spans["batch"] >= 0)]
    assert len(waits) == len(expected)
    labels = {
        kind: {profile.strings[each] for each in np.unique(spans["label"][spans["kind"] == kind])}
        for kind in (Kind.READ, Kind.DECODE, Kind.COLLATE)
    }
    assert "ParseExampleV2" in labels[Kind.DECODE] or "tf.data" in {
        profile.strings[each] for each in np.unique(spans["label"][spans["kind"] == Kind.OPAQUE])
    }
    (facts,) = read_process_facts(tmp_path / "run" / "processes")
    (loader,) = facts.loaders
    assert loader.name == "TensorSlice > TFRecord > ParallelMap > Batch > Prefetch"
