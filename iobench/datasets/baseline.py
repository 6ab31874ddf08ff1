"""How a dataset's samples are loaded without iobench's reader, to be measured beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.datasets.contract import Dataset, SampleIndex
    from iobench.samples import SampleSpec

PIPELINES: Final = ("own", "upstream", "climetlab")
"""What ``--pipeline`` chooses from: our readers; a plain loop of xarray or tf.data; the real
CliMetLab plugin."""


class SamplePasses(msgspec.Struct, frozen=True):
    """Samples, or whole batches, that can only be iterated over, pass after pass.

    Parameters
    ----------
    spec : SampleSpec
        Of one sample.
    items : callable
        ``items(epoch)`` returns an iterable of one pass: each item is a dict of arrays as the spec
        says or, where ``batched``, the same with a leading axis.
    n_samples_all : int
        Samples of one pass; 0 where that is not known, and the pass has no end.
    batched : bool
        Whether items are batches; the last of a pass may be shorter.
    in_processes : bool
        Whether processes that cannot be observed make the items.
    framework : str
        ``"tensorflow"`` where tf.data makes the items, whose threads are then observed.
    """

    spec: SampleSpec
    items: Callable[[int], Iterable[Any]]
    n_samples_all: int = 0
    batched: bool = False
    in_processes: bool = False
    framework: str = ""


class MapStyle(msgspec.Struct, frozen=True):
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
        Of the loader; 0: as many as our own reader has.
    """

    dataset: Dataset
    index: SampleIndex
    framework: str = "workers"
    workers: int = 0
    prefetch: int = 0


class Baseline(msgspec.Struct, frozen=True):
    """One way to load a dataset's samples beside our reader.

    Parameters
    ----------
    source : str
        What it does, and what of it is assumed; one or two sentences for reports.
    trial_s : float
        Seconds in which another process tried it, no part of its own set-up.
    """

    pipeline: SamplePasses | MapStyle
    source: str
    trial_s: float = 0.0


@runtime_checkable
class UpstreamBaseline(Protocol):
    """Optional face of a dataset: ``--pipeline upstream``."""

    def upstream(
        self, files: Sequence[Path], index: SampleIndex, *, batch_size: int | None
    ) -> Baseline:
        """Return a plain loop over these files.

        ``files`` and ``index`` are what ``files`` and ``samples`` returned. ``batch_size`` is for
        pipelines that make batches themselves.
        """
        ...


@runtime_checkable
class PluginBaseline(Protocol):
    """Optional face of a dataset: ``--pipeline climetlab``."""

    def through_plugin(self, files: Sequence[Path], index: SampleIndex) -> Baseline:
        """Return how the samples are taken out of what the real plugin's ``to_xarray`` returns.

        Raises
        ------
        MissingExtraError
            If the plugin is not installed; says what installs it.
        """
        ...


def pipelines_of(dataset: Dataset) -> tuple[str, ...]:
    """Return which of `PIPELINES` a dataset has; ``own`` is always one of them."""
    faces = {"upstream": UpstreamBaseline, "climetlab": PluginBaseline}
    return ("own", *(name for name, face in faces.items() if isinstance(dataset, face)))
