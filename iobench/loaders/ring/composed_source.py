"""What samples are made of a store's or dataset's: patches, normalised, windows, a split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iobench.datasets.selection import place_index_windows, select_split
from iobench.errors import OptionError, parameters_named
from iobench.loaders.ring.normalising import NormalisedSource, means_of
from iobench.loaders.ring.patch_reads import patches_of
from iobench.loaders.ring.patch_source import PatchSizes, PatchSource
from iobench.loaders.ring.wrapped_source import SelectedSamples
from iobench.loaders.windowed import WindowSource
from iobench.samples import Window
from iobench.stores.sample_numbers import places_among

if TYPE_CHECKING:
    from iobench.datasets.contract import SampleIndex
    from iobench.loaders.ring.contract import BatchSource
    from iobench.windows import WindowPlacement


@dataclass(frozen=True, slots=True, eq=False)
class SampleFacts:
    """What is known of the samples of a source besides their arrays."""

    index: Callable[[], SampleIndex] | None = None  # returns the index they are in
    held: Sequence[int] = ()  # which samples of that index they are, in order
    # which samples of the dataset they are, whose windows somebody placed
    placed: Sequence[int] = ()
    # of their values, as `Manifest.statistics`; None where nobody keeps them
    statistics: Mapping[str, Any] | None = None
    # what was done to them already, as `Manifest.normalisation`
    normalisation: Mapping[str, Any] | None = None


def composed(source: BatchSource, options: Mapping[str, Any], facts: SampleFacts) -> BatchSource:
    """Return the samples that a loader's options ask for, made of those of a source.

    Items are cut and normalised before they are stacked to windows: each once.
    """
    patch = options.get("patch")
    at = options.get("patch_at") or "random"
    if patch is None and at != "random":
        raise OptionError(f"patch_at={at!r} goes with patch")
    sizes = None
    if patch is not None:
        sizes = PatchSizes(patch, source.spec)
        source = patches_of(source, sizes)
    normalise = options.get("normalise", False)
    if normalise is not False and normalise is not None:
        means = means_of(normalise, source.spec, facts.statistics, facts.normalisation or {})
        source = NormalisedSource(source, means) if means else source
    with parameters_named():
        source = _chosen(source, options.get("window"), options.get("split"), facts)
    if sizes is not None:
        source = PatchSource(source, sizes, at, int(options.get("seed", 0)))
    return source


def _chosen(
    source: BatchSource,
    window: str | Window | WindowPlacement | None,
    split: str | None,
    facts: SampleFacts,
) -> BatchSource:
    """Return windows of samples, or those of a split, or all."""
    if window is None and split is None:
        return source
    if split is not None and not isinstance(split, str):
        raise OptionError(f"split={split!r}: expected the name of one split")
    if not (window is None or isinstance(window, (str, Window)) or hasattr(window, "among")):
        raise OptionError(f"window={window!r}: expected offsets, as '-1,0:1', or a Window")
    if facts.index is None:
        name = "window" if window is not None else "split"
        raise OptionError(
            f"{name}={window or split!r} is for stores and datasets; WindowSource takes any source"
        )
    if isinstance(window, str):
        window = Window.parse(window)
    if window is None:
        assert split is not None
        places = places_among(facts.held, select_split(facts.index(), split))
        return SelectedSamples(source, places[places >= 0])
    if isinstance(window, Window):
        placed = place_index_windows(facts.index(), window, split=split)
        return WindowSource(source, placed.among(facts.held), window)
    if split is not None:
        raise OptionError(
            f"split={split!r}: a window that is placed already says which samples; give it as text"
        )
    return WindowSource(source, window.among(facts.placed), window.window)
