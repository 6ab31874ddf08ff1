"""A plain ``tf.data`` pipeline over the TFRecords.

TensorFlow runs on the CPU and without its chatter.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.datasets import Baseline, SamplePasses
from iobench.errors import FileFormatError, MissingExtraError
from iobench_maelstrom.radiation.examples import FEATURES

if TYPE_CHECKING:
    from iobench.datasets import SampleIndex
    from iobench.samples import Sample, SampleSpec
    from iobench_maelstrom.radiation.tf_dataset import RadiationTf

LOG_LEVEL: Final = "TF_CPP_MIN_LOG_LEVEL"
SOURCE: Final = (
    "a plain tf.data pipeline: TFRecordDataset over the files in order, each example parsed by a "
    "map in as many calls at once as TensorFlow sees fit, batched and prefetched; not shuffled, "
    "not cached. Training scripts of yours may do otherwise: iobench run -- python train.py "
    "measures them."
)


def tf_batches(
    own: RadiationTf, files: Sequence[Path], index: SampleIndex, batch_size: int
) -> Baseline:
    """Return a ``tf.data`` pipeline over TFRecord files, without those of norms."""
    tf = import_tensorflow("maelstrom-radiation-tf --pipeline upstream")
    parse, paths = _parser(tf, own), [str(path) for path in files]
    where = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"

    def batches(_: int) -> Iterator[Sample]:
        # The pipeline is built here, not with its first batch: that takes as long as many of them.
        with _errors_of(where):
            examples = tf.data.TFRecordDataset(paths)
            parsed = examples.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
            iterator = parsed.batch(batch_size).prefetch(tf.data.AUTOTUNE).as_numpy_iterator()
        return checked(iterator)

    def checked(iterator: Iterator[Any]) -> Iterator[Sample]:
        with _errors_of(where):
            for batch in iterator:
                yield _as_specified(batch, index.spec)

    passes = SamplePasses(index.spec, batches, len(index), batched=True, framework="tensorflow")
    return Baseline(passes, SOURCE)


def _parser(tf: Any, own: RadiationTf) -> Callable[[Any], Any]:
    """Return what makes a sample of one example."""
    view, norms, hr_factor = own.view, own.norms, float(own.hr_factor())
    names = (*view["input_fields"], *view["output_fields"])
    features = {name: tf.io.FixedLenFeature(FEATURES[name][1], tf.float32) for name in names}

    def change(name: str, values: Any) -> Any:
        if name in view["input_fields"]:
            if norms is None:
                return values
            mean, deviation = norms[name]
            return (values - mean) / deviation
        if name.startswith("hr_"):
            return values * hr_factor
        down, up = values[..., 0], values[..., 1]
        return down - up if view["netflux"] else values

    def parse(example: Any) -> Any:
        parsed = tf.io.parse_single_example(example, features)
        return {name: change(name, parsed[name]) for name in names}

    return parse


def import_tensorflow(user: str) -> Any:
    """Return TensorFlow; it sees no GPU, for batches are made on the CPU.

    Nothing is run yet, so a process may still be forked; one that was after TensorFlow ran cannot
    run it again.
    """
    with _quiet():
        try:
            import tensorflow
        except ImportError as error:
            raise MissingExtraError(
                f"{user} needs TensorFlow: pip install 'iobench[tensorflow]'"
            ) from error
        # Fails where TensorFlow has run in this process: then it has what it was given.
        with contextlib.suppress(RuntimeError):
            tensorflow.config.set_visible_devices([], "GPU")
    return tensorflow


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep off stderr what TensorFlow says there; its errors are exceptions besides.

    The variable, which it looks at once, does not hold for what it says while it is loaded.
    """
    before = os.environ.get(LOG_LEVEL)
    os.environ.setdefault(LOG_LEVEL, "3")
    sys.stderr.flush()
    stderr = os.dup(2)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        if before is None:
            del os.environ[LOG_LEVEL]


@contextlib.contextmanager
def _errors_of(where: str) -> Iterator[None]:
    import tensorflow

    try:
        yield
    except tensorflow.errors.OpError as error:
        reason = _in_words(str(error.message))
        raise FileFormatError(
            f"{where}: TensorFlow cannot read the examples: {reason}; fetch the files again"
        ) from error


def _as_specified(batch: Mapping[str, Any], spec: SampleSpec) -> Sample:
    """Return the arrays without the axis of length 1 that the published norms add to vectors."""
    return {variable.name: batch[variable.name].reshape(-1, *variable.shape) for variable in spec}


def _in_words(message: str) -> str:
    """Return what TensorFlow says, without the names of its functions and devices."""
    said = re.sub(r"\{\{.*?\}\}|\[Op:.*", "", message, flags=re.DOTALL)
    return " ".join(said.split())
