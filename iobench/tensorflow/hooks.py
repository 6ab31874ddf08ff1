"""Puts itself where a training asks tf.data for batches, and into Keras' loops; and away again."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any, Final, TypeVar

import tensorflow as tf

from iobench.adapters.patches import Hooks, Patches
from iobench.errors import OptionError
from iobench.recording.free_data import KEPT, NOT_FREE, is_free
from iobench.recording.kinds import Kind
from iobench.recording.session import current_recording
from iobench.tensorflow.graph_waits import GRAPH_WAITS
from iobench.tensorflow.watching import NAME, batch_nbytes, expect_end, watch, write_waits

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.recording.session import Recording

WHOLE_PASS: Final = (
    "tf.data: a pass over a whole dataset inside one operation (for x in dataset in a tf.function, "
    "Dataset.reduce): no clock is read between its batches"
)
DISTRIBUTED: Final = (
    "tf.distribute: each replica asks an iterator of its own, which counts as a loader here, and "
    "their waits come one after the other"
)
WATCH: Final = "_iobench_watch"
FREE: Final = "_iobench_free"
LOOPS: Final = ("fit", "evaluate", "predict")
SAVES: Final = ("save", "save_weights")

D = TypeVar("D", bound=tf.data.Dataset)


def install() -> None:
    """Record every pass over a ``tf.data.Dataset`` from now on, and Keras' loops. Idempotent."""
    _datasets.install()
    _keras.install()


def uninstall() -> None:
    """Put everything back as it was. Idempotent."""
    _keras.uninstall()
    _datasets.uninstall()


def _see_datasets(patches: Patches) -> None:
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator as iterator
    from tensorflow.python.distribute import input_lib

    patches.put(tf.data.Dataset, "__iter__", _iterated)
    patches.put(iterator, "_next_internal", functools.partial(_requested, batch_nbytes))
    patches.put(iterator, "get_next_as_optional", functools.partial(_requested, _optional_nbytes))
    patches.put(tf.data.Dataset, "reduce", functools.partial(_noted, WHOLE_PASS))
    for owner in (input_lib.DistributedDataset, input_lib.DistributedDatasetsFromFunction):
        patches.put(owner, "__iter__", functools.partial(_noted, DISTRIBUTED))


def _see_keras(patches: Patches) -> None:
    """Record Keras' loops and checkpoints, where Keras is imported."""
    model: Any = getattr(sys.modules.get("keras"), "Model", None)
    for name in () if model is None else (*LOOPS, *SAVES):
        owner = next(each for each in model.__mro__ if name in vars(each))
        patches.put(owner, name, _looped if name in LOOPS else _saved)


_datasets, _keras = Hooks(_see_datasets), Hooks(_see_keras)


def instrument(dataset: D, *, name: str = "") -> D:
    """Return the dataset under a name, recorded wherever a recording goes on.

    Its elements and their order are the same, also under ``model.fit``, and what is made of it
    (``.take``, ``.prefetch``) has the name as well. The dataset that was given is left as it is.
    From the first call on all passes over datasets are recorded, as under ``iobench run``.

    Parameters
    ----------
    name : str, optional
        What reports call it; by default its operations.

    Raises
    ------
    OptionError
        If it is no ``tf.data.Dataset``.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise OptionError(
            f"instrument: {type(dataset).__name__} given, expected a tf.data.Dataset; its "
            "iterators are recorded by themselves"
        )
    marked: D = dataset.with_options(tf.data.Options())
    setattr(marked, NAME, name)
    install()
    return marked


def _iterated(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def __iter__(self: Any) -> Any:
        recording = current_recording() if tf.executing_eagerly() else None
        if recording is None:
            return original(self)
        write_waits(recording)  # of the pass before
        pass_watch = watch(self, recording)
        expect_end(recording)
        pass_watch.log.ask()
        try:
            iterator = original(_free(self, recording) if is_free() else self)
        except BaseException:
            pass_watch.log.fail()
            raise
        pass_watch.log.started()
        setattr(iterator, WATCH, pass_watch)
        pass_watch.take_iterator(iterator)
        return iterator

    return __iter__


def _free(dataset: Any, recording: Recording) -> Any:
    """Return a dataset's first elements again and again; itself where its length is unknown."""
    known = getattr(dataset, FREE, None)
    if known is None:
        length = int(dataset.cardinality())
        if length == tf.data.UNKNOWN_CARDINALITY:
            recording.add_unseen(f"{NOT_FREE}a dataset of unknown length was loaded as it is")
            return dataset
        known = dataset.take(KEPT).cache().repeat()
        known = known if length == tf.data.INFINITE_CARDINALITY else known.take(length)
        setattr(dataset, FREE, known)
    return known


def _requested(nbytes_of: Callable[[Any], int | None], original: Callable[[Any], Any]) -> Any:
    """Return what asks an iterator, on record; ``nbytes_of`` what is no batch is None."""

    def ask(iterator: Any) -> Any:
        if not tf.executing_eagerly():
            recording = current_recording()
            if recording is None:
                return original(iterator)
            expect_end(recording)
            return GRAPH_WAITS.timed(original, iterator)
        pass_watch = getattr(iterator, WATCH, None)
        if pass_watch is None:
            return original(iterator)
        pass_watch.log.ask()
        try:
            batch = original(iterator)
            nbytes = nbytes_of(batch)
        except (StopIteration, tf.errors.OutOfRangeError):
            pass_watch.ended()
            raise
        except BaseException:
            pass_watch.log.fail()
            raise
        if nbytes is None:
            pass_watch.ended()
        else:
            pass_watch.delivered(nbytes)
        return batch

    return ask


def _optional_nbytes(batch: Any) -> int | None:
    return -1 if bool(batch.has_value()) else None


def _noted(what: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that says what cannot be seen of its call."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        recording = current_recording()
        if recording is not None:
            recording.add_unseen(what)
        return original(self, *args, **kwargs)

    return call


def _looped(original: Callable[..., Any]) -> Callable[..., Any]:
    names = [*inspect.signature(original).parameters]
    # How many arguments by position come before ``callbacks``, ``self`` not counted.
    n_before = names.index("callbacks") - 1 if "callbacks" in names else -1

    def loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        recording = current_recording()
        if recording is None or len(args) > n_before:
            return original(self, *args, **kwargs)
        from iobench.tensorflow.keras_callback import with_callback

        kwargs["callbacks"] = with_callback(kwargs.get("callbacks"))
        # What passes are for that the loop begins; within ``fit`` it validates.
        before, own = recording.pass_role, {"fit": "training", "predict": "prediction"}
        other = "validation" if before == "training" else "test"
        recording.pass_role = own.get(original.__name__, other)
        try:
            return original(self, *args, **kwargs)
        finally:
            recording.pass_role = before

    return loop


def _saved(original: Callable[..., Any]) -> Callable[..., Any]:
    def save(self: Any, *args: Any, **kwargs: Any) -> Any:
        recording = current_recording()
        if recording is None:
            return original(self, *args, **kwargs)
        with recording.recorder.span(Kind.CHECKPOINT):
            return original(self, *args, **kwargs)

    return save
