"""Training loops over tf.data, recorded: the same batches, every wait, and its threads' work."""

from __future__ import annotations

import time
from io import StringIO

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="its pipelines are what is seen")
import tensorflow as tf

from iobench.analysis.replay.loader_run import LoaderRule
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run, exposure
from iobench.errors import OptionError
from iobench.findings.advice.advising import advice_of
from iobench.findings.advice.loading import loading_of
from iobench.recording.facts import read_process_facts
from iobench.recording.kinds import Kind
from iobench.recording.session import record
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document
from iobench.runs.reading import open_profile
from iobench.tensorflow import hooks, instrument, watching
from iobench.tensorflow.graph_waits import GraphWaits

pytestmark = pytest.mark.timeout(180)
N_EXAMPLES, N_VALUES = 480, 500
"""Enough that TensorFlow's tracer, which sees nothing in its first milliseconds, sees most."""
FEATURES = {"x": tf.io.FixedLenFeature((N_VALUES,), tf.float32)}


def spans_of(path, kind):
    """Return the spans of a kind in order of time, and their labels."""
    profile = open_profile(path)
    spans = profile.spans[profile.spans["kind"] == kind]
    spans = spans[np.argsort(spans["start_ns"], kind="stable")]
    return spans, {profile.strings[label] for label in spans["label"].tolist()}


def waits_of(path):
    spans, _ = spans_of(path, Kind.WAIT)
    return spans[spans["batch"] >= 0]


def batches_of(path, *kinds):
    return {batch for kind in kinds for batch in spans_of(path, kind)[0]["batch"].tolist()}


def adds_up(path):
    whole = exposure(open_profile(path)).whole
    assert sum(stage.exposed_ns for stage in whole.stages) == whole.wait_ns
    return whole


def unseen_of(path):
    """Return what is said not to be seen of a run's only process, and of its first loader."""
    (facts,) = read_process_facts(path / "processes")
    return facts.unseen, facts.loaders[0].unseen if facts.loaders else []


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
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


def pipeline(shards):
    def parse(example):
        return tf.io.parse_single_example(example, FEATURES)["x"] * 2.0

    return tf.data.TFRecordDataset(shards).map(parse, num_parallel_calls=2).batch(2).prefetch(2)


def test_batches_are_the_same_and_each_is_waited_for_once(shards, tmp_path):
    expected = [batch.numpy() for batch in pipeline(shards)]
    with record(tmp_path / "run"):
        seen = [batch.numpy() for batch in instrument(pipeline(shards), name="examples")]
    assert all(map(np.array_equal, seen, expected))
    waits = waits_of(tmp_path / "run")
    assert waits["batch"].tolist() == list(range(len(expected)))
    assert set(waits["nbytes"].tolist()) == {2 * N_VALUES * 4}
    assert spans_of(tmp_path / "run", Kind.WAIT)[1] == {"", "startup", "shutdown"}
    (facts,) = read_process_facts(tmp_path / "run" / "processes")
    (loader,) = facts.loaders
    assert (loader.framework, loader.name, loader.prefetch) == ("tensorflow", "examples", 2)
    assert loader.batch_size == 2
    # The work of its threads has kinds, times and batches.
    reads, decodes, others = (
        spans_of(tmp_path / "run", kind) for kind in (Kind.READ, Kind.DECODE, Kind.PREPROCESS)
    )
    assert (reads[1], decodes[1]) == ({"TFRecord"}, {"ParseExampleV2"})
    assert "Mul" in others[1]
    held_ns = dict(zip(waits["batch"].tolist(), waits["end_ns"].tolist(), strict=True))
    known = decodes[0][decodes[0]["batch"] >= 0]
    # Two examples a batch; made before it was held, on threads that are not the loop's.
    numbers, counts = np.unique(known["batch"], return_counts=True)
    assert len(numbers) >= 10
    assert set(counts.tolist()) <= {1, 2}
    slack_ns = 100_000  # of mapping one clock on the other
    assert all(span["end_ns"] <= held_ns[int(span["batch"])] + slack_ns for span in known)
    assert not set(known["thread"].tolist()) & set(waits["thread"].tolist())
    assert not batches_of(tmp_path / "run", Kind.OPAQUE) & set(numbers.tolist())
    adds_up(tmp_path / "run")
    assert any("traced for" in text for text in loader.unseen)


def test_all_datasets_are_seen_once_installed_and_none_after(shards, tmp_path):
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
    assert len(waits_of(tmp_path / "run")) == 3


def test_an_error_of_the_pipeline_stays_what_it_is(tmp_path):
    def fails(number):
        return tf.debugging.check_numerics(1.0 / tf.cast(number - 3, tf.float32), "at three")

    plain = tf.data.Dataset.range(9).map(fails)
    with pytest.raises(tf.errors.InvalidArgumentError) as expected:
        list(plain)
    with record(tmp_path / "run"), pytest.raises(tf.errors.InvalidArgumentError) as found:
        list(instrument(plain))
    assert str(found.value) == str(expected.value)
    assert spans_of(tmp_path / "run", Kind.WAIT)[1] == {"", "startup", "failed"}
    assert len(waits_of(tmp_path / "run")) == 3
    with pytest.raises(OptionError, match=r"list given, expected a tf\.data\.Dataset"):
        instrument([1, 2])


def test_a_profiler_that_the_script_starts_meanwhile_is_its_own(shards, tmp_path):
    with record(tmp_path / "run"):
        for number, _ in enumerate(instrument(pipeline(shards))):
            if number == 40:  # ours traces by then
                tf.profiler.experimental.start(str(tmp_path / "theirs"))
            if number == 43:
                tf.profiler.experimental.stop()
    assert list((tmp_path / "theirs").rglob("*.xplane.pb"))
    assert batches_of(tmp_path / "run", Kind.DECODE) - {-1}
    assert batches_of(tmp_path / "run", Kind.DECODE, Kind.OPAQUE) >= set(range(N_EXAMPLES // 2))


def test_what_is_traced_when_the_recording_ends_is_written(shards, tmp_path):
    with record(tmp_path / "run"):
        iterator = iter(instrument(pipeline(shards)))
        for _ in range(12):
            next(iterator)
    assert batches_of(tmp_path / "run", Kind.DECODE, Kind.OPAQUE) >= set(range(12))
    assert batches_of(tmp_path / "run", Kind.DECODE)
    tf.profiler.experimental.start(str(tmp_path / "free"))  # nobody traces any more
    tf.profiler.experimental.stop()
    next(iterator)


# ---- functions that sleep, as the trace shows them

N_BATCHES, BATCH = 24, 4
READ_S, PARSE_S = 0.006, 0.012


def asleep(seconds):
    def sleep(number):
        time.sleep(seconds)
        return number

    return lambda number: tf.numpy_function(sleep, [number], tf.int64)


def sleeping(calls=2):
    options = tf.data.Options()
    options.threading.private_threadpool_size = 4
    data = tf.data.Dataset.range(BATCH * N_BATCHES).map(asleep(READ_S))
    data = data.map(asleep(PARSE_S), num_parallel_calls=calls)
    return data.batch(BATCH).prefetch(2).with_options(options)


def recorded(data, folder, n_epochs=1):
    with record(folder):
        seen = instrument(data)
        for _ in range(n_epochs):
            for _ in seen:
                time.sleep(0.001)
    return Run(open_profile(folder)).of_rank()


def test_work_of_traced_batches_has_the_name_of_its_operation(tmp_path):
    run = recorded(sleeping(), tmp_path / "run", n_epochs=3)
    rows = run.exposure.whole.stages
    first, second = (
        next(row.busy_ns for row in rows if f":{operation}/" in row.stage)
        for operation in ("Map", "MapAndBatch")
    )
    n_least = 2 * (N_BATCHES - 8)  # of two epochs: the third is due when that costs under 1 %
    assert first >= 0.99e9 * n_least * BATCH * READ_S
    assert second >= 0.99e9 * n_least * BATCH * PARSE_S
    # Nothing that was traced is left without a name.
    gap = sum(row.exposed_ns for row in rows if row.stage == "worker_gap")
    assert gap < 0.1 * run.exposure.whole.wait_ns
    assert "batches of epochs 0 and 1, placed" in " ".join(unseen_of(tmp_path / "run")[1])


def test_a_validation_is_traced_beside_the_training(tmp_path):
    with record(tmp_path / "run"):
        train, check = instrument(sleeping()), instrument(sleeping())
        for _ in range(2):
            for number, _ in enumerate(train):
                if number == N_BATCHES // 2:
                    list(check)
    (facts,) = read_process_facts(tmp_path / "run" / "processes")
    for loader in facts.loaders:
        assert "batches of epochs 0 and 1, placed" in " ".join(loader.unseen)


def test_no_gain_is_predicted_and_what_is_not_seen_is_said(tmp_path, monkeypatch):
    rank = recorded(sleeping(calls=1), tmp_path / "run")
    (run,) = runs = recorded_runs(rank)
    assert run.rule is LoaderRule.OPAQUE
    assert run.reason.startswith("tf.data pipelines are not replayed")
    text = " ".join(TerminalRenderer(StringIO()).render(report_document([Run(rank)])).split())
    assert f"Replay error unknown ({run.reason}), so no gain is predicted." in text
    advice = advice_of([loading_of(rank, runs)])
    assert (advice.changes, advice.to_measure) == ((), ())
    assert advice.sentence == f"No advice. Nothing is predicted: {run.reason}."
    assert "GPUs" not in " ".join(unseen_of(tmp_path / "run")[1])
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [kind])
    recorded(tf.data.Dataset.range(60).batch(1), tmp_path / "with")
    said = " ".join(unseen_of(tmp_path / "with")[1])
    assert "GPUs: TensorFlow's tracer is used for the host only" in said


def test_what_is_interleaved_is_traced_too(tmp_path):
    files = tf.data.Dataset.range(BATCH * N_BATCHES // 48)
    rows = lambda number: tf.data.Dataset.range(48).map(asleep(READ_S))  # noqa: E731
    data = files.interleave(rows, cycle_length=2, num_parallel_calls=2).batch(BATCH).prefetch(1)
    whole = recorded(data, tmp_path / "run").exposure.whole
    busy = sum(row.busy_ns for row in whole.stages if row.stage.startswith("opaque:"))
    assert busy >= 0.8e9 * (N_BATCHES - 8) * BATCH * READ_S


# ---- loops that a script compiled itself: waits are there in the end, or said not to be

N = 6
SUMS = [4 * n + 1 for n in range(N)]


def numbers():
    return tf.data.Dataset.range(2 * N).batch(2)


def test_waits_of_two_compiled_rounds_are_written(tmp_path):
    hooks.install()

    @tf.function
    def step(batches):
        return tf.reduce_sum(next(batches))

    with record(tmp_path / "run"):
        found = []
        for _ in range(2):
            batches = iter(numbers())
            found += [int(step(batches)) for _ in range(N)]
    assert found == SUMS * 2
    waits = waits_of(tmp_path / "run")
    assert len(waits) == len(np.unique(waits["batch"])) == 2 * N
    assert len(np.unique(waits["sample"])) == 2
    assert (waits["start_ns"][1:] >= waits["end_ns"][:-1]).all()
    assert adds_up(tmp_path / "run").n_batches == 2 * N
    assert not unseen_of(tmp_path / "run")[0]


def test_two_iterators_of_one_compiled_step_are_two_loaders(tmp_path):
    @tf.function
    def step(first, second):
        return tf.reduce_sum(next(first)) - tf.reduce_sum(next(second))

    with record(tmp_path / "run"):
        first, second = iter(instrument(numbers())), iter(instrument(numbers().take(N)))
        assert [int(step(first, second)) for _ in range(N)] == [0] * N
    assert np.bincount(waits_of(tmp_path / "run")["sample"]).tolist() == [N, N]
    assert any("no Python runs" in what for what in unseen_of(tmp_path / "run")[1])


def test_a_step_that_is_compiled_for_replicas_runs_as_ever(tmp_path, monkeypatch):
    fresh = GraphWaits()  # whose place is made within the strategy
    for module in (hooks, watching):
        monkeypatch.setattr(module, "GRAPH_WAITS", fresh)
    hooks.install()
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope(), record(tmp_path / "run"):
        batches = iter(numbers())

        @tf.function
        def step():
            return strategy.run(lambda: tf.reduce_sum(next(batches)))

        assert [int(step()) for _ in range(N)] == SUMS
    assert len(waits_of(tmp_path / "run")) == N


def test_waits_for_an_iterator_of_before_are_counted_as_unseen(tmp_path):
    hooks.install()
    batches = iter(numbers())
    with record(tmp_path / "run"):
        step = tf.function(lambda: next(batches))
        step()
        step()
    ((what,), _) = unseen_of(tmp_path / "run")
    assert "2 waits inside compiled functions" in what


def test_a_pass_inside_one_operation_is_said_to_be_unseen(tmp_path, monkeypatch):
    # Else a loop that AutoGraph cannot convert is run as it is, and never ends.
    monkeypatch.setenv("AUTOGRAPH_STRICT_CONVERSION", "1")
    hooks.install()

    @tf.function
    def total(dataset):
        found = tf.constant(0, tf.int64)
        for batch in dataset:
            found += tf.reduce_sum(batch)
        return found

    with record(tmp_path / "run"):
        assert int(total(numbers())) == int(total(numbers())) == sum(range(2 * N))
    ((what,), _) = unseen_of(tmp_path / "run")
    assert "for x in dataset in a tf.function" in what
