"""How the application loads the TFRecords: its ``tf.data`` pipeline, and the real plugin's.

TensorFlow runs as in the application, but on the CPU and without its chatter.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.datasets import Baseline, PluginRequest, Stream, open_through_plugin, stopwatch
from iobench.errors import FileFormatError, MissingExtraError
from iobench_maelstrom.plugin_samples import require_plugin
from iobench_maelstrom.radiation.examples import FEATURES
from iobench_maelstrom.radiation.through_plugin import PLUGIN
from iobench_maelstrom.radiation.upstream import UPSTREAM_BATCH_SIZE

if TYPE_CHECKING:
    from iobench.datasets import SampleIndex
    from iobench.samples import Sample, SampleSpec
    from iobench_maelstrom.radiation.tf_dataset import RadiationTf

TENSORFLOW_INSTALL: Final = "pip install 'iobench[tensorflow]'"
INSTALL: Final = (
    "pip install 'iobench[climetlab,tensorflow]' and then "
    "pip install --no-deps climetlab-maelstrom-radiation==0.7.5"
)
LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
MAKES: Final = "read+decode+preprocess+collate"
"""What ``tf.data`` does in threads of its own, none of which can be seen from here."""
SHUFFLE_SIZE = 32768
CACHE = (
    "its cache in memory is off, as by default (the benchmark turns it on, after which epochs read "
    "nothing); examples come in an order of chance"
)
SOURCE = (
    "climetlab-maelstrom-radiation 0.7.5, to_tfdataset, reimplemented: files listed and shuffled, "
    "read in as many at once as TensorFlow sees fit, parsed one example at a time, shuffled in a "
    f"buffer of 32768, batched by 512, prefetched; {CACHE}"
)
PLUGIN_SOURCE = (
    "climetlab-maelstrom-radiation 0.7.5: what its own to_tfdataset gives, batched by 512 as in "
    f"its benchmark; {CACHE}"
)


def example_batches(
    own: RadiationTf, files: Sequence[Path], index: SampleIndex, batch_size: int | None
) -> Baseline:
    """Return the application's ``tf.data`` pipeline over TFRecord files, without those of norms.

    Raises
    ------
    MissingExtraError
        If TensorFlow cannot be imported.
    """
    watch = stopwatch()
    tf = import_tensorflow("maelstrom-radiation-tf --pipeline upstream")
    imported_s = watch()
    parse, size = _parser(tf, own), batch_size or UPSTREAM_BATCH_SIZE
    paths = [str(path) for path in files]

    def one_pass(epoch: int) -> Any:
        return _pipeline(tf, paths, parse, size, seed=epoch)

    stream = batch_stream(one_pass, index, files)
    setup_s = (("TensorFlow", imported_s),)
    return Baseline(stream, size, SOURCE, files=tuple(files), setup_s=setup_s)


def _pipeline(
    tf: Any, paths: Sequence[str], parse: Callable[[Any], Any], batch_size: int, *, seed: int
) -> Any:
    """Return upstream's chain; the seed is ours, so that epochs differ and runs do not."""
    # As list_files, which would take some paths for patterns.
    listed = tf.data.Dataset.from_tensor_slices(list(paths)).shuffle(len(paths), seed=seed)
    options = tf.data.Options()
    options.deterministic = False
    examples = tf.data.TFRecordDataset(
        listed.with_options(options), num_parallel_reads=tf.data.AUTOTUNE
    )
    shuffled = examples.map(parse).shuffle(SHUFFLE_SIZE, seed=seed)
    return shuffled.batch(batch_size).prefetch(tf.data.AUTOTUNE)


def _parser(tf: Any, own: RadiationTf) -> Callable[[Any], Any]:
    """Return what makes (inputs, targets) of one example; upstream parses all nine features."""
    view, norms, hr_factor = own.view, own.norms, float(own.hr_factor())
    features = {
        name: tf.io.FixedLenFeature(shape, tf.float32) for name, (_, shape) in FEATURES.items()
    }

    def change(name: str, values: Any) -> Any:
        if name in view["input_fields"]:
            if norms is None:
                return values
            mean, deviation = norms[name]
            return (values - mean) / deviation
        if name.startswith("hr_"):
            return values * hr_factor
        down, up = values[..., 0], values[..., 1]
        if view["netflux"]:
            return down - up
        if view["minimal_outputs"]:
            top = down[..., 0] - up[..., 0] if view["topnetflux"] else up[..., 0]
            return tf.stack([top, down[..., -1], up[..., -1]], axis=-1)
        return values

    def parse(example: Any) -> Any:
        found = tf.io.parse_example(example, features)
        return tuple(
            {name: change(name, found[name]) for name in names}
            for names in (view["input_fields"], view["output_fields"])
        )

    return parse


def example_batches_through_plugin(
    own: RadiationTf, files: Sequence[Path], index: SampleIndex, batch_size: int | None
) -> Baseline:
    """Return the real plugin's ``tf.data`` pipeline; it is opened here.

    Raises
    ------
    MissingExtraError
        If TensorFlow, CliMetLab or the plugin is not installed.
    """
    require_plugin(own.name, PLUGIN, install=INSTALL)
    watch = stopwatch()
    import_tensorflow("maelstrom-radiation-tf --pipeline climetlab")
    imported_s = watch()
    # It takes lists for several, not tuples.
    view = {name: list(v) if type(v) is tuple else v for name, v in own.view.items()}
    size = batch_size or UPSTREAM_BATCH_SIZE
    opened = open_through_plugin(
        PluginRequest(
            own.name,
            {**own.plugin_arguments(own.file_numbers), **view},
            dict(zip(own.urls(), files, strict=True)),
            opening={"batch_size": size},
            opened_by="to_tfdataset",
            install=INSTALL,
        )
    )
    stream = batch_stream(lambda _: opened, index, files[: len(own.file_numbers)])
    setup_s = (("TensorFlow", imported_s),)
    return Baseline(stream, size, PLUGIN_SOURCE, files=tuple(files), setup_s=setup_s)


def import_tensorflow(who: str) -> Any:
    """Return TensorFlow; it sees no GPU, for batches are made on the CPU.

    Nothing is run yet, so a process may still be forked; one that was after TensorFlow ran cannot
    run it again.

    Parameters
    ----------
    who : str
        Names what needs it, in the error.

    Raises
    ------
    MissingExtraError
        If it cannot be imported; says what installs it.
    """
    with _quiet():
        try:
            import tensorflow
        except ImportError as error:
            raise MissingExtraError(f"{who} needs TensorFlow: {TENSORFLOW_INSTALL}") from error
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


def batch_stream(
    make: Callable[[int], Any],
    index: SampleIndex,
    files: Sequence[Path],
    n_samples: int | None = None,
) -> Stream:
    """Return a stream of the batches of ``tf.data`` data sets, of which ``make(epoch)`` is one.

    A batch is (inputs, targets), by name; ``n_samples`` are in all of them, those of the index by
    default.
    """
    where = str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"

    def batches(epoch: int) -> Iterator[Sample]:
        # The pipeline is built here, not with its first batch: that takes as long as many of them.
        with _errors_of(where):
            taken = make(epoch).as_numpy_iterator()
        return handed_on(taken)

    def handed_on(taken: Iterator[Any]) -> Iterator[Sample]:
        with _errors_of(where):
            for inputs, targets in taken:
                yield _as_specified({**inputs, **targets}, index.spec)

    return Stream(
        spec=index.spec,
        items=batches,
        stages=(),
        n_samples=lambda batch: len(next(iter(batch.values()))),
        n_samples_all=len(index) if n_samples is None else n_samples,
        makes=MAKES,
        batched=True,
        ahead=0,
        framework="tensorflow",
    )


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
    """Return the arrays without the axis of length 1 that the plugin's norms add to vectors."""
    return {variable.name: batch[variable.name].reshape(-1, *variable.shape) for variable in spec}


def _in_words(message: str) -> str:
    """Return what TensorFlow says, without the names of its functions and devices."""
    said = re.sub(r"\{\{.*?\}\}|\[Op:.*", "", message, flags=re.DOTALL)
    return " ".join(said.split())
