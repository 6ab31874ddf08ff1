"""Loops a script compiled itself: their waits are there in the end, or said not to be."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytest.importorskip("tensorflow", reason="its loops are what is seen")
pytest.importorskip("keras", reason="imported first by the script")
import tensorflow as tf

from iobench.analysis.run import exposure
from iobench.launch.running import ScriptRun, run_script
from iobench.recording.facts import read_process_facts
from iobench.recording.kinds import Kind
from iobench.recording.session import record
from iobench.runs.reading import open_profile
from iobench.tensorflow import hooks, instrument, watching
from iobench.tensorflow.graph_waits import GraphWaits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iobench.runs.contents import RunData

pytestmark = pytest.mark.timeout(180)
N = 6
SCRIPT = """
import keras
import numpy as np
import tensorflow as tf

x = np.zeros((24, 3), np.float32)
data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1))).batch(4)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(data, epochs=2, verbose=0)

@tf.function
def step(batches):
    return tf.reduce_sum(next(batches)[0])

batches = iter(data)
print([float(step(batches)) for _ in range(5)])
"""


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    yield
    hooks.uninstall()


def numbers() -> Any:
    return tf.data.Dataset.range(2 * N).batch(2)


def waits_of(profile: RunData) -> Any:
    found = profile.spans[profile.spans["kind"] == Kind.WAIT]
    return found[np.argsort(found["start_ns"], kind="stable")]


def unseen_of(path: Path) -> list[str]:
    return [what for facts in read_process_facts(path / "processes") for what in facts.unseen]


def test_waits_of_two_compiled_rounds_are_written(tmp_path: Path) -> None:
    hooks.install()

    @tf.function
    def step(batches: Any) -> Any:
        return tf.reduce_sum(next(batches))

    with record(tmp_path / "run"):
        found = []
        for _ in range(2):
            batches = iter(numbers())
            found += [int(step(batches)) for _ in range(N)]
    assert found == [4 * n + 1 for n in range(N)] * 2
    profile = open_profile(tmp_path / "run")
    waits = waits_of(profile)
    waits = waits[waits["batch"] >= 0]
    assert len(waits) == len(np.unique(waits["batch"])) == 2 * N
    assert len(np.unique(waits["sample"])) == 2
    assert (waits["start_ns"][1:] >= waits["end_ns"][:-1]).all()
    measured = exposure(profile).whole
    assert measured.n_batches == 2 * N
    assert sum(stage.exposed_ns for stage in measured.stages) == measured.wait_ns
    assert not unseen_of(tmp_path / "run")


def test_two_iterators_of_one_compiled_step_are_two_loaders(tmp_path: Path) -> None:
    @tf.function
    def step(first: Any, second: Any) -> Any:
        return tf.reduce_sum(next(first)) - tf.reduce_sum(next(second))

    with record(tmp_path / "run"):
        first, second = iter(instrument(numbers())), iter(instrument(numbers().take(N)))
        assert [int(step(first, second)) for _ in range(N)] == [0] * N
    waits = waits_of(open_profile(tmp_path / "run"))
    assert np.bincount(waits["sample"][waits["batch"] >= 0]).tolist() == [N, N]
    (told,) = read_process_facts(tmp_path / "run" / "processes")
    assert any("no Python runs" in what for what in told.loaders[0].unseen)


def test_a_step_that_is_compiled_for_replicas_runs_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = GraphWaits()  # whose place is made within the strategy
    for module in (hooks, watching):
        monkeypatch.setattr(module, "GRAPH_WAITS", fresh)
    hooks.install()
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope(), record(tmp_path / "run"):
        batches = iter(numbers())

        @tf.function
        def step() -> Any:
            return strategy.run(lambda: tf.reduce_sum(next(batches)))

        assert [int(step()) for _ in range(N)] == [4 * n + 1 for n in range(N)]
    waits = waits_of(open_profile(tmp_path / "run"))
    assert (waits["batch"] >= 0).sum() == N


def test_waits_for_an_iterator_of_before_are_counted_as_unseen(tmp_path: Path) -> None:
    hooks.install()
    batches = iter(numbers())
    with record(tmp_path / "run"):
        step = tf.function(lambda: next(batches))
        step()
        step()
    (what,) = unseen_of(tmp_path / "run")
    assert "2 waits inside compiled functions" in what


def test_a_pass_inside_one_operation_is_said_to_be_unseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else a loop that AutoGraph cannot convert is run as it is, and never ends.
    monkeypatch.setenv("AUTOGRAPH_STRICT_CONVERSION", "1")
    hooks.install()

    @tf.function
    def total(dataset: Any) -> Any:
        found = tf.constant(0, tf.int64)
        for batch in dataset:
            found += tf.reduce_sum(batch)
        return found

    with record(tmp_path / "run"):
        assert int(total(numbers())) == int(total(numbers())) == sum(range(2 * N))
    (what,) = unseen_of(tmp_path / "run")
    assert "for x in dataset in a tf.function" in what


@pytest.mark.long
def test_keras_before_tensorflow_and_a_compiled_loop_after(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    asked = ScriptRun((sys.executable, str(script)), out=tmp_path / "run")
    assert run_script(asked, lambda _: None, dict(os.environ)).code == 0
    profile = open_profile(tmp_path / "run")
    waits = waits_of(profile)
    assert (waits["batch"] >= 0).sum() == 2 * 6 + 5
    steps = profile.spans[profile.spans["kind"] == Kind.STEP]
    assert (steps["label"] == profile.string_number("forward+backward")).sum() == 2 * 6
