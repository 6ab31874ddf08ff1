"""DALI's readers over a store, and a script's own pipeline, with every wait for them recorded."""

import importlib
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip(
    "nvidia.dali", reason="needs pip install 'iobench[dali]' (1 GB, not in the test extra)"
)
sys.path.append(str(Path(__file__).parents[1] / "loaders" / "support"))
from number_stores import SPEC, expected_batch, write_numbers
from own_zarr import SIZE as OWN_SIZE
from own_zarr import profile_own_zarr

from iobench.analysis.run import exposure
from iobench.dali import DaliLoader, instrument
from iobench.errors import OptionError, WorkerError
from iobench.loaders.ring.order import plan_batches
from iobench.recording.facts import read_process_facts
from iobench.recording.kinds import Kind
from iobench.recording.recorder import Recorder
from iobench.recording.session import record
from iobench.runs.reading import open_profile

pytestmark = pytest.mark.timeout(120)
N, SIZE = 10, 4


@pytest.fixture
def recorder(tmp_path):
    with Recorder(tmp_path / "spans", role="consumer") as recorder:
        yield recorder


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "numbers"
    write_numbers(folder, N, "tfrecord")
    return [[folder / "shard-00000.tfrecord", folder / "shard-00000.idx"]]


def test_records_of_a_store_are_read_pass_after_pass(files, recorder):
    with DaliLoader(files, SPEC, SIZE, threads=1, recorder=recorder) as loader:
        found = [*loader.batches(itertools.islice(plan_batches(N, SIZE), 5))]
    for place, batch in enumerate(found):
        expected = expected_batch([(place * SIZE + each) % N for each in range(SIZE)])
        for name, array in expected.items():
            assert batch.arrays[name].dtype == array.dtype
            assert np.array_equal(batch.arrays[name].reshape(array.shape), array), name
    with pytest.raises(WorkerError, match="closed"):
        loader.batches([])


def test_files_that_dali_cannot_read_are_refused(tmp_path, recorder):
    with pytest.raises(OptionError, match="choose --format tfrecord"):
        DaliLoader([[tmp_path / "c"]], SPEC, 2, threads=1, recorder=recorder)


def pipeline(n=6):
    dali, fn = (importlib.import_module(f"nvidia.dali.{name}") for name in ("pipeline", "fn"))
    made = dali.Pipeline(batch_size=2, num_threads=1, device_id=None, prefetch_queue_depth=2)
    with made:
        batches = [np.full((2, 3), number, np.float32) for number in range(n)]
        made.set_outputs(fn.external_source(source=iter(batches), batch=True))
    made.build()
    return made


def test_a_pipeline_of_a_script_is_the_same_and_waited_for(tmp_path):
    kind = type(pipeline())
    with record(tmp_path / "run"):
        source = instrument(pipeline(), name="numbers")
        assert isinstance(source, kind)
        assert instrument(source) is source
        found = [float(source.run()[0].as_array()[0, 0]) for _ in range(6)]
        with pytest.raises(StopIteration):
            source.run()
    assert found == [0, 1, 2, 3, 4, 5]
    profile = open_profile(tmp_path / "run")
    spans = profile.spans
    waits = spans[spans["kind"] == Kind.WAIT]
    assert waits["batch"].tolist() == [0, 1, 2, 3, 4, 5, -1]
    opaque = spans[spans["kind"] == Kind.OPAQUE]
    assert {profile.strings[label] for label in opaque["label"]} == {"dali"}
    assert opaque["batch"].tolist() == [*range(6)]
    whole = exposure(profile).whole
    exposed = {stage.stage: stage.exposed_ns for stage in whole.stages}
    assert exposed["opaque:dali"] == int((opaque["end_ns"] - opaque["start_ns"]).sum())
    (facts,) = read_process_facts(tmp_path / "run" / "processes")
    (loader,) = facts.loaders
    assert (loader.framework, loader.name, loader.batch_size) == ("dali", "numbers", 2)
    assert "opaque" in loader.unseen[0]


def test_what_is_not_of_dali_is_refused():
    with pytest.raises(OptionError, match="list given, expected a pipeline or an iterator"):
        instrument([1])


def test_records_are_profiled_and_other_stores_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (run,) = profile_own_zarr(capsys, "tfrecord", "dali")
    assert (run["framework"], run["threads"], run["workers"]) == ("dali", 1, 0)
    assert (run["batches"], run["samples"], run["nbytes"]) == (12, 24, 24 * 4 * OWN_SIZE)
    assert sum(run["exposed_ns"].values()) == run["wait_ns"]
    assert {"opaque:dali", "collate"} <= {row["stage"] for row in run["stages"]}
    for stored in ("zarr", "numpy"):
        told = profile_own_zarr(capsys, stored, "dali", code=1)
        assert "choose --format tfrecord" in told.splitlines()[-1]
