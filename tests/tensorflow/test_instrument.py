"""A training loop over tf.data, recorded: the same batches, every wait, and its threads' work."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytest.importorskip("tensorflow", reason="its pipelines are what is seen")
import tensorflow as tf

from iobench.analysis.run import exposure
from iobench.errors import OptionError
from iobench.recording.facts import read_process_facts
from iobench.recording.kinds import Kind
from iobench.recording.session import record
from iobench.runs.reading import open_profile
from iobench.tensorflow import hooks, instrument

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iobench.runs.contents import RunData

pytestmark = pytest.mark.timeout(180)
N_EXAMPLES, N_VALUES = 480, 500
"""Enough that TensorFlow's tracer, which sees nothing in its first milliseconds, sees most."""
FEATURES = {"x": tf.io.FixedLenFeature((N_VALUES,), tf.float32)}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("examples")
    paths = [str(folder / f"{number}.tfrecord") for number in range(2)]
    for number, path in enumerate(paths):
        with tf.io.TFRecordWriter(path) as writer:
            for place in range(N_EXAMPLES // 2):
                values = np.full(N_VALUES, 100 * number + place, dtype=np.float32)
                floats = tf.train.FloatList(value=values)
                feature = {"x": tf.train.Feature(float_list=floats)}
                features = tf.train.Features(feature=feature)
                writer.write(tf.train.Example(features=features).SerializeToString())
    return paths


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    yield
    hooks.uninstall()


def pipeline(shards: list[str], batch: int = 2) -> Any:
    def parse(example: Any) -> Any:
        return tf.io.parse_single_example(example, FEATURES)["x"] * 2.0

    examples = tf.data.TFRecordDataset(shards)
    return examples.map(parse, num_parallel_calls=2).batch(batch).prefetch(2)


def spans_of(profile: RunData, kind: Kind) -> Any:
    return profile.spans[profile.spans["kind"] == kind]


def labels(profile: RunData, spans: Any) -> set[str]:
    return {profile.strings[label] for label in spans["label"].tolist()}


def test_batches_are_the_same_and_each_is_waited_for_once(
    shards: list[str], tmp_path: Path
) -> None:
    expected = [batch.numpy() for batch in pipeline(shards)]
    with record(tmp_path / "run"):
        seen = [batch.numpy() for batch in instrument(pipeline(shards), name="examples")]
        other = list(pipeline(shards))  # was not asked to be recorded
    assert len(other) == len(expected)
    assert all(map(np.array_equal, seen, expected))
    profile = open_profile(tmp_path / "run")
    waits = spans_of(profile, Kind.WAIT)
    assert waits["batch"][waits["batch"] >= 0].tolist() == list(range(len(expected)))
    assert labels(profile, waits) == {"", "startup", "shutdown"}
    assert set(waits["nbytes"][waits["batch"] >= 0].tolist()) == {2 * N_VALUES * 4}
    (facts,) = read_process_facts(tmp_path / "run" / "processes")
    (loader,) = facts.loaders
    assert (loader.framework, loader.name, loader.prefetch) == ("tensorflow", "examples", 2)
    assert loader.batch_size == 2


def test_the_work_of_its_threads_has_kinds_times_and_batches(
    shards: list[str], tmp_path: Path
) -> None:
    with record(tmp_path / "run"):
        for _ in instrument(pipeline(shards)):
            pass
    profile = open_profile(tmp_path / "run")
    reads, decodes = (spans_of(profile, kind) for kind in (Kind.READ, Kind.DECODE))
    assert labels(profile, reads) == {"TFRecord"}
    assert labels(profile, decodes) == {"ParseExampleV2"}
    assert "Mul" in labels(profile, spans_of(profile, Kind.PREPROCESS))
    waits = spans_of(profile, Kind.WAIT)
    held_ns = dict(zip(waits["batch"].tolist(), waits["end_ns"].tolist(), strict=True))
    known = decodes[decodes["batch"] >= 0]
    # Two examples a batch; made before it was held, on threads that are not the loop's.
    numbers, counts = np.unique(known["batch"], return_counts=True)
    assert len(numbers) >= 10
    assert set(counts.tolist()) <= {1, 2}
    slack_ns = 100_000  # of mapping one clock on the other
    assert all(span["end_ns"] <= held_ns[int(span["batch"])] + slack_ns for span in known)
    assert not set(known["thread"].tolist()) & set(waits["thread"].tolist())
    opaque = spans_of(profile, Kind.OPAQUE)
    assert not set(opaque["batch"].tolist()) & set(numbers.tolist())
    measured = exposure(profile).whole
    assert sum(stage.exposed_ns for stage in measured.stages) == measured.wait_ns
    (facts,) = read_process_facts(tmp_path / "run" / "processes")
    (loader,) = facts.loaders
    assert any("traced for" in text for text in loader.unseen)


def test_all_datasets_are_seen_once_installed_and_none_after(
    shards: list[str], tmp_path: Path
) -> None:
    before = tf.data.Dataset.__iter__
    with record(tmp_path / "run"):
        hooks.install()
        hooks.install()
        iterator = iter(pipeline(shards))
        next(iterator)
        iterator.get_next()
        assert bool(iterator.get_next_as_optional().has_value())
        hooks.uninstall()
        assert tf.data.Dataset.__iter__ is before
        list(pipeline(shards))
    waits = spans_of(open_profile(tmp_path / "run"), Kind.WAIT)
    assert (waits["batch"] >= 0).sum() == 3


def test_an_error_of_the_pipeline_stays_what_it_is(shards: list[str], tmp_path: Path) -> None:
    def fails(number: Any) -> Any:
        return tf.debugging.check_numerics(1.0 / tf.cast(number - 3, tf.float32), "at three")

    plain = tf.data.Dataset.range(9).map(fails)
    with pytest.raises(tf.errors.InvalidArgumentError) as expected:
        list(plain)
    with record(tmp_path / "run"), pytest.raises(tf.errors.InvalidArgumentError) as found:
        list(instrument(plain))
    assert str(found.value) == str(expected.value)
    profile = open_profile(tmp_path / "run")
    waits = spans_of(profile, Kind.WAIT)
    assert labels(profile, waits) == {"", "startup", "failed"}
    assert (waits["batch"] >= 0).sum() == 3


def test_what_is_no_dataset_is_refused() -> None:
    with pytest.raises(OptionError, match=r"list given, expected a tf\.data\.Dataset"):
        instrument([1, 2])


def test_a_profiler_that_the_script_starts_meanwhile_is_its_own(
    shards: list[str], tmp_path: Path
) -> None:
    with record(tmp_path / "run"):
        for number, _ in enumerate(instrument(pipeline(shards))):
            if number == N_EXAMPLES // 4:  # ours traces by then
                tf.profiler.experimental.start(str(tmp_path / "theirs"))
            if number == N_EXAMPLES // 4 + 3:
                tf.profiler.experimental.stop()
    assert list((tmp_path / "theirs").rglob("*.xplane.pb"))
    profile = open_profile(tmp_path / "run")
    known = {*spans_of(profile, Kind.DECODE)["batch"].tolist()}
    opaque = {*spans_of(profile, Kind.OPAQUE)["batch"].tolist()}
    assert known - {-1}
    assert known | opaque >= set(range(N_EXAMPLES // 2))


def test_what_is_traced_when_the_recording_ends_is_written(
    shards: list[str], tmp_path: Path
) -> None:
    with record(tmp_path / "run"):
        iterator = iter(instrument(pipeline(shards)))
        for _ in range(12):
            next(iterator)
    profile = open_profile(tmp_path / "run")
    explained = {*spans_of(profile, Kind.DECODE)["batch"].tolist()}
    explained |= {*spans_of(profile, Kind.OPAQUE)["batch"].tolist()}
    assert explained >= set(range(12))
    assert spans_of(profile, Kind.DECODE).size
    tf.profiler.experimental.start(str(tmp_path / "free"))  # nobody traces any more
    tf.profiler.experimental.stop()
    next(iterator)
