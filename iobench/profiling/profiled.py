"""What a profile is of: samples of a source, or those that finished stores hold."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from iobench.datasets.contract import SampleIndex
from iobench.datasets.selection import split_index
from iobench.errors import IobenchError
from iobench.registry import dataset_names, find_dataset
from iobench.stores.sample_numbers import places_among

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.datasets.contract import PublishedStep
    from iobench.profiling.config import RunConfig
    from iobench.profiling.given_stores import GivenStore
    from iobench.sources.opening import Source


class ProfiledSamples(msgspec.Struct, frozen=True, kw_only=True):
    """The samples that are loaded, whatever they lie in."""

    name: str
    title: str  # of the dataset
    index: SampleIndex  # the samples, with their splits and what windows are laid over
    published: PublishedStep | None  # the training step published of the dataset
    kind: str | None = None  # of users' own files what they are
    stand_in: bool = False
    tiny: bool = False  # whether they are generated, and the small ones of the tests
    files_hint: str = ""  # where the original files are from
    setup_s: Mapping[str, float] = msgspec.field(default_factory=dict)  # seconds spent once
    source: Source | None = None  # None where all there is are stores
    # what the samples of the index are in the dataset; None where they have the same numbers
    numbers: Sequence[int] | None = None

    def held(self, samples: Sequence[int], numbers: Sequence[int]) -> list[int]:
        """Return those of some samples of the index that a store of these numbers holds."""
        places = self.places(samples, numbers).tolist()
        return [sample for sample, place in zip(samples, places, strict=True) if place >= 0]

    def places(self, samples: Sequence[int], numbers: Sequence[int]) -> NDArray[np.int64]:
        """Return where samples of the index lie in a store of these numbers; -1 where nowhere."""
        wanted = np.asarray(samples, dtype=np.int64)
        if self.numbers is not None:
            own = np.fromiter(self.numbers, dtype=np.int64, count=len(self.numbers))
            wanted = own[wanted]
        return places_among(numbers, wanted)


def samples_of_source(source: Source) -> ProfiledSamples:
    """Return the samples of a source."""
    dataset = source.dataset
    return ProfiledSamples(
        name=dataset.name,
        title=dataset.title,
        index=source.index,
        published=dataset.published,
        kind=source.index.provenance.get("kind"),
        stand_in=source.stand_in,
        tiny=source.tiny,
        files_hint=str(source.files[0].parent) if source.files else "",
        setup_s=source.setup_s,
        source=source,
    )


def samples_of_stores(given: Sequence[GivenStore], config: RunConfig) -> ProfiledSamples:
    """Return the samples of stores, those of the first one; their source need not be there."""
    first = given[0]
    manifest, provenance = first.manifest, first.manifest.provenance
    told = provenance.get("request", {})
    published, title = None, ""
    if manifest.dataset in dataset_names():
        # It may need options that nobody gave here, or a package that is not installed.
        with suppress(IobenchError):
            dataset = find_dataset(manifest.dataset)
            published, title = dataset.published, dataset.title
    tiny = bool(told.get("tiny", False))
    return ProfiledSamples(
        name=manifest.dataset,
        title=title,
        index=_index(first, config),
        published=published,
        stand_in=bool(provenance.get("stand_in", False)) or tiny or "scale" in told,
        tiny=tiny,
        numbers=manifest.samples,
    )


def _index(given: GivenStore, config: RunConfig) -> SampleIndex:
    store = given.store
    if config.window or config.split or config.split_by or config.evaluate:
        return split_index(store.index(), config.splits_by, allow_gaps=config.allow_gaps)
    provenance = given.manifest.provenance
    return SampleIndex(store.spec, range(len(store)), provenance=provenance)
