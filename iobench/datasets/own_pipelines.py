"""How an application loads today, described so that it can be run and timed beside iobench.

Two shapes cover them: a `Stream`, whose stages hand items on through threads (``tf.data`` with
Python functions, a generator, a pool that reads ahead), and a `MapStyle` dataset behind a loader
with worker processes (torch's ``DataLoader``). A description holds functions and numbers only; who
runs it does the timing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from iobench.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.datasets.contract import Dataset, Locator, SampleIndex
    from iobench.samples import SampleSpec

PIPELINES: Final = ("own", "upstream", "climetlab")
"""What ``--pipeline`` chooses from: our readers; the application's own loading code,
reimplemented; the real CliMetLab plugin."""


@frozen
class StreamStage:
    """One stage of a stream.

    Parameters
    ----------
    name : str
        ``read``, ``decode``, ``preprocess`` or several fused, as ``read+decode``.
    run : callable
        Takes an item, returns what takes its place; where ``spreads`` is set an iterable of
        several, whose making is timed item by item.
    threads : int
        That run it at once; items keep their order.
    ahead : int
        Finished items it keeps ready for the next stage before it stops, at least 1: a thread
        begins while fewer lie ready, and finishes what it began.
    spreads : bool
        Whether one item becomes several: samples, or batches where the stream is ``batched``. One
        stage of a stream at most, for ``n_samples`` tells of the source's items only.
    """

    name: str
    run: Callable[[Any], Any]
    threads: int = 1
    ahead: int = 1
    spreads: bool = False


@frozen
class Stream:
    """Items that pass through stages, each in threads of its own, and become batches.

    Parameters
    ----------
    spec : SampleSpec
        Of one sample.
    items : callable
        ``items(epoch)`` returns the items of one pass in the application's order, which depends
        on nothing but the epoch.
    stages : tuple of StreamStage
        In order. What leaves the last one is a sample (a dict of arrays as the spec says), or,
        where ``batched``, a batch (the same with a leading axis).
    n_samples : callable
        How many samples an item of the source becomes; what tells which batch its work is for. 1
        where no stage spreads, but for a ``batched`` stream: there the samples of its batch, or
        of its batches if a stage spreads (all full but the item's last).
    n_samples_all : int
        Samples of one pass: the sum of ``n_samples`` over its items.
    makes : str
        Name of the work of ``items`` itself where taking the next item costs something, as
        ``read+decode+preprocess``; empty where it does not.
    shuffle : int
        Samples the shuffle buffer is filled to before each is drawn, as ``tf.data`` does; 0 (or 1)
        for none. It is drained at the end of a pass. None where ``batched``.
    batched : bool
        Whether stages hand on whole batches, of the size the loader was asked for; the last of a
        pass may be shorter.
    ahead : int
        Batches kept ready; 0: the training loop's own thread makes them of finished samples (and
        does all of the work where there is no stage).
    framework : str
        ``"tensorflow"`` where ``items`` are made by tf.data, whose threads can then be seen; the
        stream is ``batched`` and has no stages.
    """

    spec: SampleSpec
    items: Callable[[int], Iterable[Any]]
    stages: tuple[StreamStage, ...]
    n_samples: Callable[[Any], int]
    n_samples_all: int
    makes: str = ""
    shuffle: int = 0
    batched: bool = False
    ahead: int = 1
    framework: str = ""


def stream_samples(stream: Stream, epoch: int = 0) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the samples of one pass, made one by one without threads, in order, not shuffled.

    Batches of a ``batched`` stream are taken apart. What a loader of the stream delivers has to
    equal these; errors pass through as they are.
    """
    items: Iterator[Any] = iter(stream.items(epoch))
    for stage in stream.stages:
        made = map(stage.run, items)
        items = itertools.chain.from_iterable(made) if stage.spreads else made
    for item in items:
        if not stream.batched:
            yield item
            continue
        for row in range(len(next(iter(item.values())))):
            yield {name: array[row] for name, array in item.items()}


@frozen
class MapStyle:
    """A dataset whose samples are made one by one, and the loader it stands behind.

    Parameters
    ----------
    dataset : Dataset
        Its ``files`` and ``samples`` have been called where that is needed.
    index : SampleIndex
        Its samples.
    framework : str
        As in ``--framework``.
    workers, prefetch : int
        Of the loader.
    """

    dataset: Dataset
    index: SampleIndex
    framework: str = "torch"
    workers: int = 2
    prefetch: int = 2


@frozen
class Baseline:
    """One application's loading as it is today.

    Parameters
    ----------
    batch_size : int
        As upstream.
    source : str
        Where it is described, and what of it is assumed; one or two sentences for reports.
    files : tuple of Path
        What it reads, for the page cache; the source files where it is empty.
    setup_s : tuple of (str, float)
        Seconds spent before the first sample could be asked for, by what for.
    """

    pipeline: Stream | MapStyle
    batch_size: int
    source: str
    files: tuple[Path, ...] = ()
    setup_s: tuple[tuple[str, float], ...] = ()


@runtime_checkable
class UpstreamBaseline(Protocol):
    """Optional face of a dataset: ``--pipeline upstream``."""

    def upstream(
        self, files: Sequence[Path], index: SampleIndex, locator: Locator, *, batch_size: int | None
    ) -> Baseline:
        """Return how the application's own training code loads these files.

        ``files`` and ``index`` are what ``files`` and ``samples`` returned. ``batch_size`` is what
        the user asked for, None for upstream's. Files that upstream's preparation would have made
        are written below ``locator.cache_dir``.
        """
        ...


@runtime_checkable
class PluginBaseline(Protocol):
    """Optional face of a dataset: ``--pipeline climetlab``."""

    def through_plugin(
        self, files: Sequence[Path], index: SampleIndex, locator: Locator, *, batch_size: int | None
    ) -> Baseline:
        """Return how these samples are made from what the real plugin's ``to_xarray`` gives.

        ``batch_size`` is for plugins that hand out batches themselves.

        Raises
        ------
        MissingExtraError
            If the plugin cannot be imported; says what installs it.
        """
        ...


def pipelines_of(dataset: Dataset) -> tuple[str, ...]:
    """Return which of `PIPELINES` a dataset has; ``own`` is always one of them."""
    faces = {"upstream": UpstreamBaseline, "climetlab": PluginBaseline}
    return ("own", *(name for name, face in faces.items() if isinstance(dataset, face)))
