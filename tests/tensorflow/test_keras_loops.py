"""Keras' own loops, recorded: the same training, and each step's wait apart from its computing."""

from __future__ import annotations

import time

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="Keras' loops run on it")
pytest.importorskip("keras", reason="its loops are what is seen")
import keras
import tensorflow as tf

from iobench.analysis.epochs import epoch_figures
from iobench.analysis.run import Run, exposure
from iobench.recording.facts import read_process_facts
from iobench.recording.kinds import Kind
from iobench.recording.session import record
from iobench.runs.reading import open_profile
from iobench.tensorflow import KerasCallback, hooks, instrument

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # Keras' own: shuffle, and running out
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="another backend's loops"),
]
N_BATCHES, N_CHECKED = 6, 2


def data(n=N_BATCHES):
    x = np.random.default_rng(0).normal(size=(4 * n, 3)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1))).batch(4).prefetch(1)


def fitted(**options):
    """Return a model and its history after two epochs with validation."""
    keras.utils.set_random_seed(5)
    layers = [keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    callbacks = options.pop("callbacks", None)
    train, check = options.pop("train", data()), data(N_CHECKED)
    model.compile("sgd", "mse", **options)
    told = model.fit(train, epochs=2, validation_data=check, verbose=0, callbacks=callbacks)
    return model, told.history


def small_model(**options):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(**{"optimizer": "sgd", "loss": "mse", **options})
    return model


def said_of_parts(folder):
    """Return what is said of the parts of steps: one sentence."""
    (told,) = read_process_facts(folder / "processes")
    (said,) = [each for loader in told.loaders for each in loader.unseen if "optimiser" in each]
    return said


def spans_of(profile, kind):
    found = profile.spans[profile.spans["kind"] == kind]
    return found[np.argsort(found["start_ns"], kind="stable")]


def whole_steps(profile):
    found = spans_of(profile, Kind.STEP)
    return found[found["label"] == profile.string_number("forward+backward")]


@pytest.mark.parametrize(
    "options",
    [{}, {"steps_per_execution": 3}, {"run_eagerly": True}],
    ids=["one", "three", "eager"],
)
def test_a_fit_is_the_same_and_seen_step_by_step(options, tmp_path):
    _, expected = fitted(**options)
    hooks.install()
    with record(tmp_path / "run"):
        _, found = fitted(**options)
    assert found == expected
    profile = open_profile(tmp_path / "run")
    steps, checks = whole_steps(profile), spans_of(profile, Kind.EVALUATE)
    assert steps["epoch"].tolist() == [0] * N_BATCHES + [1] * N_BATCHES
    assert len(checks) == 2 * N_CHECKED
    waits = spans_of(profile, Kind.WAIT)
    waits = waits[waits["batch"] >= 0]
    assert len(np.unique(waits["batch"])) == len(waits) == 2 * (N_BATCHES + N_CHECKED)
    # Each step begins when its batch is there, and ends before the next one is asked for.
    held = dict(zip(waits["batch"].tolist(), waits["end_ns"].tolist(), strict=True))
    done = np.sort(np.concatenate((steps, checks)), order="start_ns")
    assert done["batch"].tolist() == waits["batch"].tolist()
    assert [held[number] for number in done["batch"].tolist()] == done["start_ns"].tolist()
    assert (done["end_ns"][:-1] <= waits["start_ns"][1:]).all()
    epochs = epoch_figures(Run(profile).of_rank())
    assert [each.part.n_batches for each in epochs] == [N_BATCHES + N_CHECKED] * 2
    assert [(each.role, each.n_rounds) for each in exposure(profile).loaders] == [
        ("training", 2), ("validation", 2),
    ]  # fmt: skip
    measured = exposure(profile).whole
    assert sum(stage.exposed_ns for stage in measured.stages) == measured.wait_ns


class SlowLayer(keras.layers.Layer):  # type: ignore[misc]
    """Sleeps in the forward pass, and twice as long in the backward pass."""

    def call(self, x):
        @tf.custom_gradient
        def slow(x):
            return asleep(x, 1), lambda dy: asleep(dy, 2)

        return slow(x)


class SlowOptimizer(keras.optimizers.SGD):  # type: ignore[misc]
    """Sleeps three times as long, in all."""

    def update_step(self, gradient, variable, rate):
        slow = tuple(variable.shape) == (5, 5)  # one of them
        super().update_step(asleep(gradient, 3) if slow else gradient, variable, rate)


SLEEP_S = 0.01


def asleep(values, n_times):
    def sleep(values):
        time.sleep(n_times * SLEEP_S)
        return values

    found = tf.numpy_function(sleep, [values], values.dtype)
    found.set_shape(values.shape)
    return found


def slow_fit(n_batches):
    dense = [keras.layers.Dense(n) for n in (5, 5, 1)]
    model = keras.Sequential([keras.Input((3,)), *dense[:2], SlowLayer(), dense[2]])
    model.compile(SlowOptimizer(), "mse")
    model.fit(data(n_batches), verbose=0)


def step_parts(folder):
    """Return the time of each part of the steps that have any, in the order of the steps."""
    run = Run(open_profile(folder)).of_rank()
    ledger = run.ledger
    found = {}
    for name in ("forward", "backward", "step"):
        if name in ledger.stages.names:
            at = ledger.stages.names.index(name)
            found[name] = ledger.compute_ns[ledger.n_computed[:, at] > 0, at].tolist()
    return found


def test_forward_backward_and_optimiser_are_told_apart(tmp_path):
    hooks.install()
    with record(tmp_path / "run"):
        slow_fit(12)
    parts = step_parts(tmp_path / "run")
    n_parted = {len(times) for times in parts.values()}
    assert len(parts) == 3
    assert n_parted == {min(n_parted)}
    assert 3 <= min(n_parted) <= 8  # the first four are not traced
    for name, n_times in (("forward", 1), ("backward", 2), ("step", 3)):
        slept_ns = n_times * SLEEP_S * 1e9
        assert min(parts[name]) >= 0.99 * slept_ns  # TensorFlow's clock is another one
    typical = [float(np.median(times)) for times in parts.values()]
    assert typical == sorted(typical)
    said = said_of_parts(tmp_path / "run")
    assert f"are separated in {min(n_parted)} traced steps" in said


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"jit_compile": True}, "jit_compile"),
        ({"run_eagerly": True}, "run_eagerly"),
        ({"steps_per_execution": 4}, "steps_per_execution"),
    ],
    ids=["xla", "eager", "several"],
)
def test_why_parts_of_steps_are_not_told_apart(options, why, tmp_path):
    hooks.install()
    with record(tmp_path / "run"):
        small_model(**options).fit(data(8), verbose=0)
    assert not step_parts(tmp_path / "run")
    assert why in said_of_parts(tmp_path / "run")


def test_the_callback_alone_is_enough_for_one_dataset(tmp_path):
    with record(tmp_path / "run"):
        fitted(train=instrument(data()), callbacks=[KerasCallback()])
    profile = open_profile(tmp_path / "run")
    assert len(whole_steps(profile)) == 2 * N_BATCHES
    waits = spans_of(profile, Kind.WAIT)
    assert (waits["batch"] >= 0).sum() >= 2 * N_BATCHES


def test_evaluation_prediction_and_saving_have_their_kinds(tmp_path):
    model, _ = fitted()
    hooks.install()
    with record(tmp_path / "run"):
        model.evaluate(data(), verbose=0)
        model.predict(data().map(lambda x, _: x), verbose=0)
        model.save_weights(tmp_path / "kept.weights.h5")
    profile = open_profile(tmp_path / "run")
    labels = [profile.strings[s["label"]] for s in spans_of(profile, Kind.EVALUATE)]
    assert labels == [""] * N_BATCHES + ["predict"] * N_BATCHES
    assert len(spans_of(profile, Kind.CHECKPOINT)) == 1
    assert (tmp_path / "kept.weights.h5").exists()


def test_a_training_goes_on_with_its_own_dataset_after_a_validation(tmp_path):
    hooks.install()
    with record(tmp_path / "run"):
        model = small_model()
        endless, check = instrument(data().repeat(), name="train"), instrument(data(2), name="val")
        model.fit(endless, steps_per_epoch=3, epochs=3, validation_data=check, verbose=0)
    profile = open_profile(tmp_path / "run")
    (told,) = read_process_facts(tmp_path / "run" / "processes")
    number = {loader.name: f"loader-{loader.number}" for loader in told.loaders}
    rounds = profile.spans[profile.spans["label"] == profile.string_number("round")]
    whose = {
        sample: profile.strings[detail]
        for sample, detail in zip(rounds["sample"].tolist(), rounds["detail"].tolist(), strict=True)
    }
    waits = spans_of(profile, Kind.WAIT)
    waits = waits[waits["batch"] >= 0]
    loaders = [whose[sample] for sample in waits["sample"].tolist()]
    assert (loaders.count(number["train"]), loaders.count(number["val"])) == (9, 6)


def test_what_a_callback_loads_between_steps_is_its_own_loaders(tmp_path):
    hooks.install()

    @tf.function
    def drawn(iterator):
        return next(iterator)[0]

    with record(tmp_path / "run"):
        extra = iter(instrument(data(), name="extra"))
        draw = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: drawn(extra))
        model = small_model()
        model.fit(data(), verbose=0, callbacks=[draw])
    waits = spans_of(open_profile(tmp_path / "run"), Kind.WAIT)
    by_round = np.unique(waits["sample"][waits["batch"] >= 0], return_counts=True)[1]
    assert by_round.tolist() == [N_BATCHES, N_BATCHES]


@pytest.mark.parametrize("collected", [None, 4])
def test_batches_whose_gradients_are_collected_are_one_step(tmp_path, collected: int | None):
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=collected)
    model = small_model(optimizer=optimizer)
    hooks.install()
    with record(tmp_path / "run"):
        model.fit(data(), epochs=2, validation_data=data(N_CHECKED), verbose=0)
    found = Run(tmp_path / "run").of_rank().exposure
    steps = found.steps
    assert steps is not None
    # Keras counts on from one epoch to the next: 12 batches are 3 steps of 4.
    assert (steps.n_steps, steps.batches_per_step) == ((3, 4) if collected else (12, 1))
    assert found.whole.wait is not None
    assert found.whole.wait.n_steps == steps.n_steps
