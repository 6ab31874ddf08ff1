"""Batches as TensorFlow tensors: of the ring, and of tf.data as ``iobench profile`` reads it."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="its loaders are what is measured")
import tensorflow as tf
from number_stores import SPEC, expected_batch, nothing_left, ring_threads, write_numbers
from own_zarr import SIZE, profile_own_zarr

from iobench.analysis.run import exposure
from iobench.datasets.contract import SamplePasses
from iobench.errors import StoreError, WorkerError
from iobench.loaders.contract import IN_THREADS
from iobench.loaders.measure import Compute, MeasuredPipeline, measure
from iobench.loaders.ring.order import BatchPlan, plan_batches
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.runs.reading import open_profile
from iobench.samples import SampleSpec, Variable
from iobench.tensorflow import TFStoreLoader
from iobench.tensorflow.measured_pipelines import TFExampleLoader, TFPipelineLoader
from iobench.tensorflow.store_loader import as_tensor

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("stores") / "numbers")


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores") / "examples"
    write_numbers(folder, N_EXAMPLES, "tfrecord")
    return folder / "shard-00000.tfrecord"


@pytest.fixture
def buffers():
    with nothing_left() as alive:
        yield alive


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "run", {})


@pytest.fixture
def recorder(run):
    with run.recorder(role="consumer") as opened:
        yield opened


def assert_batch(batch, numbers):
    expected = expected_batch(numbers)
    assert list(batch) == list(expected)
    for name, array in expected.items():
        assert batch[name].dtype == array.dtype
        assert np.array_equal(np.asarray(batch[name]), array), name


# ---- the ring


def test_tensors_share_the_memory_of_the_ring(store, buffers):
    loader = TFStoreLoader(store, 4, depth=3)
    for _ in range(5):
        addresses = {np.asarray(batch["x"]).ctypes.data for batch in loader}
        assert len(addresses) <= 3
        assert len(buffers) == 3


@pytest.mark.parametrize("dtype", ["bfloat16", tf.float16, "float32"])
def test_floating_point_numbers_are_cast(store, dtype):
    wanted = tf.as_dtype(dtype)
    for number, batch in enumerate(TFStoreLoader(store, 4, dtype=dtype)):
        expected = expected_batch(range(4 * number, min(4 * number + 4, 50)))
        for name in ("x", "half", "y"):
            assert batch[name].dtype == wanted
            values = expected[name].astype(wanted.as_numpy_dtype)
            assert np.array_equal(batch[name].numpy(), values)
        assert batch["number"].dtype == tf.int64


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0)[1:],  # not aligned
        np.arange(6.0).reshape(2, 3).T,
        np.arange(4)[::-1],
        np.broadcast_to(np.float32(2), (3,)),  # may not be written to
        np.array([True, False]),
        np.array(3, ">i4"),
        np.float32(1.5),
        np.zeros((0, 3)),
    ],
    ids=str,
)
def test_arrays_that_cannot_be_shared_are_copied(array):
    assert np.array_equal(as_tensor(array).numpy(), array)


@pytest.mark.usefixtures("buffers")
def test_keras_is_trained_on_a_dataset_of_it(store):
    loader = TFStoreLoader(store, 5, shuffle=True, seed=2, dtype="float32")
    dataset = loader.as_dataset()
    assert dataset.element_spec["x"] == tf.TensorSpec((5, 6, 8), tf.float32)
    model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(2)])
    model.compile("sgd", "mse", run_eagerly=False)

    @tf.autograph.experimental.do_not_convert  # where it cannot (3.13), it keeps frames for ever
    def paired(batch):
        return batch["x"] / 60, batch["y"]

    model.fit(dataset.map(paired), epochs=2, verbose=0, shuffle=False)
    assert loader.epoch == 1


@pytest.mark.usefixtures("buffers")
def test_a_dataset_has_the_batches_and_ends_with_the_loop(store):
    loader = TFStoreLoader(store, 4, shuffle=True)
    expected = [loader.order.samples(0, batch).tolist() for batch in range(len(loader))]
    dataset = loader.as_dataset()
    assert dataset.element_spec["number"].shape == (None,)
    seen = []
    for batch in dataset:
        assert_batch(batch, batch["number"].numpy().tolist())
        seen.append(batch["number"].numpy().tolist())
    assert seen == expected
    iterator = iter(dataset)
    next(iterator)
    del iterator, batch
    gc.collect()
    assert ring_threads() == []


@pytest.mark.usefixtures("buffers")
def test_a_transform_gives_the_dataset_its_signature(store):
    def transform(batch):
        return batch["x"].mean(axis=(1, 2)), {"y": batch["y"].astype("f4")}

    dataset = TFStoreLoader(store, 4, transform=transform, dtype="bfloat16").as_dataset()
    signature = tf.TensorSpec((None,), tf.bfloat16), {"y": tf.TensorSpec((None, 2), tf.bfloat16)}
    assert dataset.element_spec == signature
    for number, (x, _) in enumerate(dataset):
        expected = expected_batch(range(4 * number, min(4 * number + 4, 50)))["x"]
        assert np.array_equal(x, expected.mean(axis=(1, 2)).astype(x.dtype.as_numpy_dtype))


@pytest.mark.long
@pytest.mark.usefixtures("buffers")
def test_batches_of_processes_are_a_dataset(store):
    loader = TFStoreLoader(store, 5, processes=True, threads=2)
    dataset = loader.as_dataset()
    assert dataset.element_spec["x"] == tf.TensorSpec((5, 6, 8), tf.float32)
    for number, batch in enumerate(dataset):
        assert np.array_equal(batch["x"], expected_batch(range(5 * number, 5 * number + 5))["x"])
    loader.close()


# ---- TFRecord stores through tf.data

N_EXAMPLES, N, SIZE_OF_BATCH = 30, 40, 4


def test_batches_have_the_samples_of_the_store_and_its_threads_are_seen(shard, run, recorder):
    plan = plan_batches(N_EXAMPLES, SIZE_OF_BATCH)
    with TFExampleLoader([shard], SPEC, SIZE_OF_BATCH, threads=2, recorder=recorder) as loader:
        found = [*loader.batches(itertools.islice(plan, 5))]
        loader.after_round()
        found += loader.batches(itertools.islice(plan, 12))
    assert [batch.planned.batch for batch in found] == [*range(17)]
    assert {batch.worker for batch in found} == {IN_THREADS}
    for place, batch in enumerate(found):
        numbers = [(place * SIZE_OF_BATCH + each) % N_EXAMPLES for each in range(SIZE_OF_BATCH)]
        assert_batch(batch.arrays, numbers)
    recorder.close()
    profile = open_profile(run.path)
    spans = profile.spans
    read, decoded = (
        {profile.strings[label] for label in spans["label"][spans["kind"] == kind].tolist()}
        for kind in (Kind.READ, Kind.DECODE)
    )
    assert read == {"TFRecord"}
    assert "ParseExampleV2" in decoded
    assert set(range(17)) <= set(spans["batch"].tolist())
    assert len(np.unique(spans["thread"])) > 1


def test_bad_input_gets_one_line(shard, tmp_path, recorder):
    other = SampleSpec((Variable("absent", (2,), "<f4", ("x",)),))
    loader = TFExampleLoader([shard], other, 2, threads=1, recorder=recorder)
    with loader, pytest.raises(StoreError, match="'absent'"):
        next(loader.batches(plan_batches(N_EXAMPLES, 2)))
    cut = tmp_path / "cut.tfrecord"
    cut.write_bytes(shard.read_bytes()[:-5])
    loader = TFExampleLoader([cut], SPEC, N_EXAMPLES, threads=1, recorder=recorder)
    with loader, pytest.raises(WorkerError, match=r"^batch 0, pass 0: .*truncated"):
        list(loader.batches(itertools.islice(plan_batches(N_EXAMPLES, N_EXAMPLES), 2)))
    with pytest.raises(WorkerError, match="closed"):
        loader.batches([])


# ---- pipelines under a profile


def passes(error=False):
    def items(epoch):
        if error and epoch:
            raise ValueError("no second pass")
        data = tf.data.Dataset.range(N).map(lambda n: tf.fill((3,), tf.cast(n + epoch, tf.float32)))
        batches = data.batch(SIZE_OF_BATCH).prefetch(2)
        return ({"x": batch} for batch in batches.as_numpy_iterator())

    spec = SampleSpec((Variable("x", (3,), "<f4", ("x",)),))
    return SamplePasses(spec, items, N, batched=True, framework="tensorflow")


def test_operations_are_told_apart_and_waits_explained(tmp_path):
    costs = {"light_ns": 300, "full_ns": 900}
    config = {"workers": 0, "prefetch": 0, "batch_size": SIZE_OF_BATCH, "unit_costs": costs}
    directory = RunDirectory.create(tmp_path / "run", config)
    with (
        directory.recorder(role="consumer") as recorder,
        TFPipelineLoader(passes(), SIZE_OF_BATCH, recorder=recorder) as loader,
    ):
        plan = BatchPlan(plan_batches(N, SIZE_OF_BATCH), limit=60)
        compute = Compute(forward_ns=0, backward_ns=0, source="none")
        measure([MeasuredPipeline("tf", loader, plan, recorder, compute)])
    profile = open_profile(directory.path)
    spans = profile.spans
    labels = {
        (Kind(kind), profile.strings[label])
        for kind, label in zip(spans["kind"].tolist(), spans["label"].tolist(), strict=True)
    }
    assert {(Kind.PREPROCESS, "Range"), (Kind.PREPROCESS, "Fill"), (Kind.OPEN, "pipeline")} < labels
    assert not (spans["kind"] == Kind.FUSED).any()
    explained = np.isin(spans["kind"], (Kind.PREPROCESS, Kind.COLLATE, Kind.OPAQUE))
    assert set(range(60)) <= set(spans["batch"][explained].tolist())
    whole = exposure(profile).whole
    assert sum(stage.exposed_ns for stage in whole.stages) == whole.wait_ns
    # A new pipeline for each of the six passes, and the loop has to wait for it.
    (building,) = (stage for stage in whole.stages if stage.stage == "open:pipeline")
    assert building.n_spans == 6
    assert building.exposed_ns > 0


def test_batches_are_those_of_the_pipeline_until_its_making_fails(recorder):
    with TFPipelineLoader(passes(), SIZE_OF_BATCH, recorder=recorder) as loader:
        plan = plan_batches(N, SIZE_OF_BATCH)
        found = [*loader.batches(itertools.islice(plan, 7))]
        loader.after_round()
        found += loader.batches(itertools.islice(plan, 7))
    assert [batch.planned.batch for batch in found] == [*range(14)]
    assert {batch.worker for batch in found} == {IN_THREADS}
    values = [value for batch in found for value in batch.arrays["x"][:, 2].tolist()]
    assert values == [*range(40), *range(1, 17)]
    loader = TFPipelineLoader(passes(error=True), SIZE_OF_BATCH, recorder=recorder)
    with loader, pytest.raises(WorkerError, match="no second pass"):
        list(loader.batches(itertools.islice(plan_batches(N, SIZE_OF_BATCH), 11)))


def test_loops_that_take_turns_are_each_seen(tmp_path):
    runs = [RunDirectory.create(tmp_path / name, {}) for name in "ab"]
    with (
        runs[0].recorder(role="consumer") as first,
        runs[1].recorder(role="consumer") as second,
        TFPipelineLoader(passes(), SIZE_OF_BATCH, recorder=first) as one,
        TFPipelineLoader(passes(), SIZE_OF_BATCH, recorder=second) as other,
    ):
        plans = [plan_batches(N, SIZE_OF_BATCH) for _ in runs]
        for _ in range(3):
            for loader, plan in zip((one, other), plans, strict=True):  # over the end of a pass
                assert sum(1 for _ in loader.batches(itertools.islice(plan, 12))) == 12
                loader.after_round()
    for run in runs:
        spans = open_profile(run.path).spans
        traced = {*spans["batch"][spans["kind"] == Kind.PREPROCESS].tolist()}
        assert {number // 12 for number in traced if number >= 0} == {0, 1, 2}


def test_every_store_is_profiled(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runs = profile_own_zarr(capsys, "tfrecord,zarr,numpy", "tensorflow")
    assert [run["format"] for run in runs] == ["tfrecord", "zarr", "numpy"]
    for run in runs:
        assert (run["framework"], run["threads"], run["workers"]) == ("tensorflow", 1, 0)
        assert (run["batches"], run["samples"]) == (12, 24)
        assert sum(run["exposed_ns"].values()) == run["wait_ns"]
    # The ring reads what tf.data has no reader for, and sees every read.
    for run in runs[1:]:
        (read,) = [row for row in run["stages"] if row["stage"] == "read"]
        assert read["nbytes"] == 24 * 4 * SIZE
