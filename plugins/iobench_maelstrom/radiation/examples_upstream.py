"""How the application loads the TFRecords: its ``tf.data`` pipeline, and the real plugin's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.datasets import Baseline, PluginRequest, open_through_plugin, stopwatch
from iobench_maelstrom.plugin_samples import require_plugin
from iobench_maelstrom.radiation.examples import FEATURES
from iobench_maelstrom.radiation.norms import norm_urls
from iobench_maelstrom.radiation.on_tensorflow import batch_stream, import_tensorflow
from iobench_maelstrom.radiation.through_plugin import PLUGIN
from iobench_maelstrom.radiation.upstream import UPSTREAM_BATCH_SIZE

if TYPE_CHECKING:
    from iobench.samples import SampleSpec
    from iobench_maelstrom.radiation.norms import Norms
    from iobench_maelstrom.radiation.subsets import ExampleFile
    from iobench_maelstrom.radiation.view import View

__all__ = ["example_batches", "example_batches_through_plugin"]

SHUFFLE_SIZE = 32768
INSTALL: Final = (
    "pip install 'iobench[climetlab,tensorflow]' and then "
    "pip install --no-deps climetlab-maelstrom-radiation==0.7.5"
)
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
    files: Sequence[Path],
    *,
    spec: SampleSpec,
    view: View,
    norms: Norms | None,
    hr_factor: float,
    n_samples: int,
    batch_size: int | None,
) -> Baseline:
    """Return the application's ``tf.data`` pipeline over TFRecord files.

    Parameters
    ----------
    files : sequence of Path
        Of examples alone.
    spec, view : SampleSpec, View
        Of our samples, which these are.
    norms : Norms or None
        Of the inputs.
    hr_factor : float
        What heating rates are multiplied by.
    n_samples : int
        Examples of all files.
    batch_size : int or None
        None: upstream's.

    Raises
    ------
    MissingExtraError
        If TensorFlow cannot be imported.
    """
    watch = stopwatch()
    tf = import_tensorflow("maelstrom-radiation-tf --pipeline upstream")
    imported_s = watch()
    batch_size = batch_size or UPSTREAM_BATCH_SIZE
    parse = _parser(tf, view, norms, hr_factor)
    paths = [str(path) for path in files]

    def one_pass(epoch: int) -> Any:
        return _pipeline(tf, paths, parse, batch_size, seed=epoch)

    stream = batch_stream(one_pass, spec=spec, n_samples=n_samples, where=_told(files))
    return Baseline(
        stream, batch_size, SOURCE, files=tuple(files), setup_s=(("TensorFlow", imported_s),)
    )


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


def _parser(tf: Any, view: View, norms: Norms | None, hr_factor: float) -> Callable[[Any], Any]:
    """Return what makes (inputs, targets) of one example; upstream parses all nine features."""
    features = {
        name: tf.io.FixedLenFeature(shape, tf.float32) for name, (_, shape) in FEATURES.items()
    }

    def change(name: str, values: Any) -> Any:
        if name in view.input_fields:
            if norms is None:
                return values
            mean, deviation = norms.by_name[name]
            return (values - mean) / deviation
        if name.startswith("hr_"):
            return values * hr_factor
        down, up = values[..., 0], values[..., 1]
        if view.netflux:
            return down - up
        if view.minimal_outputs:
            top = down[..., 0] - up[..., 0] if view.topnetflux else up[..., 0]
            return tf.stack([top, down[..., -1], up[..., -1]], axis=-1)
        return values

    def parse(example: Any) -> Any:
        found = tf.io.parse_example(example, features)
        return tuple(
            {name: change(name, found[name]) for name in names}
            for names in (view.input_fields, view.output_fields)
        )

    return parse


def example_batches_through_plugin(
    example_files: Sequence[ExampleFile],
    files: Sequence[Path],
    *,
    spec: SampleSpec,
    solver: str,
    view: View,
    n_samples: int,
    batch_size: int | None,
) -> Baseline:
    """Return the real plugin's ``tf.data`` pipeline; it is opened here.

    Parameters
    ----------
    example_files : sequence of ExampleFile
        All combinations of some time steps and numbers.
    files : sequence of Path
        Where they are, and then the files of norms where the view asks for them.
    spec, solver, view, n_samples, batch_size
        As in `example_batches`.

    Raises
    ------
    MissingExtraError
        If TensorFlow, CliMetLab or the plugin is not installed.
    """
    require_plugin("maelstrom-radiation-tf", PLUGIN, install=INSTALL)
    watch = stopwatch()
    import_tensorflow("maelstrom-radiation-tf --pipeline climetlab")
    imported_s = watch()
    urls = [file.url() for file in example_files]
    if view.norm:
        urls += norm_urls(view.input_fields)
    batch_size = batch_size or UPSTREAM_BATCH_SIZE
    opened = open_through_plugin(
        PluginRequest(
            "maelstrom-radiation-tf",
            {
                "dataset": solver,
                "timestep": sorted({file.timestep for file in example_files}),
                "filenum": sorted({file.number for file in example_files}),
                **view.as_upstream(),
            },
            dict(zip(urls, files, strict=True)),
            opening={"batch_size": batch_size},
            opened_by="to_tfdataset",
            install=INSTALL,
        )
    )
    examples = files[: len(example_files)]
    stream = batch_stream(lambda _: opened, spec=spec, n_samples=n_samples, where=_told(examples))
    return Baseline(
        stream, batch_size, PLUGIN_SOURCE, files=tuple(files), setup_s=(("TensorFlow", imported_s),)
    )


def _told(files: Sequence[Path]) -> str:
    return str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
