"""Which samples a profile is of, and which of them a run loads: of a split, of windows.

Finished stores that it is given are checked to hold the same samples.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.datasets.contract import SampleIndex
from iobench.datasets.selection import (
    chosen_splits,
    place_index_windows,
    select_splits,
    split_index,
)
from iobench.errors import IobenchError, OptionError, StoreError, UnknownNameError
from iobench.files.urls import as_path
from iobench.loaders.ring.sample_source import SampleSource
from iobench.loaders.ring.store_source import source_of_store
from iobench.loaders.windowed import windowed_pipeline
from iobench.masking import mask_values
from iobench.profiling.config import DEFAULT_BATCHES
from iobench.registry import dataset_names, find_dataset
from iobench.samples import Window
from iobench.stores.finished_store import open_store
from iobench.stores.manifest import canonical_json
from iobench.stores.plan import fingerprint, probe_samples
from iobench.stores.sample_numbers import count_runs, places_among

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from iobench.datasets.contract import PublishedStep
    from iobench.loaders.pipeline import Pipeline
    from iobench.loaders.ring.contract import BatchSource
    from iobench.profiling.config import RunConfig
    from iobench.samples import SampleSpec
    from iobench.sources.opening import Source
    from iobench.sources.request import Screen
    from iobench.stores.contract import Store
    from iobench.stores.manifest import Manifest
    from iobench.windows import WindowPlacement


NOT_COMPARED: Final = {"request", "fingerprints", "normalisation", "terms_of_use", "citation"}
"""Facts of a source that are compared by themselves, or do not change samples."""


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
        selected = np.asarray(samples, dtype=np.int64)
        if self.numbers is not None:
            own = np.fromiter(self.numbers, dtype=np.int64, count=len(self.numbers))
            selected = own[selected]
        return places_among(numbers, selected)


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
    """Return the samples of stores, those of the first one; their source need not exist."""
    store, manifest = given[0].store, given[0].manifest
    facts = manifest.provenance
    request = facts.get("request", {})
    published, title = None, ""
    if manifest.dataset in dataset_names():
        # It may need options that nobody gave here, or a package that is not installed.
        with suppress(IobenchError):
            dataset = find_dataset(manifest.dataset)
            published, title = dataset.published, dataset.title
    if config.window or config.split or config.split_by or config.evaluate:
        index = split_index(store.index(), config.splits_by)
    else:
        index = SampleIndex(store.spec, range(len(store)), provenance=facts)
    tiny = bool(request.get("tiny", False))
    return ProfiledSamples(
        name=manifest.dataset,
        title=title,
        index=index,
        published=published,
        stand_in=bool(facts.get("stand_in", False)) or tiny or "scale" in request,
        tiny=tiny,
        numbers=manifest.samples,
    )


class SampleSelection(msgspec.Struct, frozen=True):
    """The samples a run needs, and the windows over them where those are what it loads."""

    samples: list[int]
    placement: WindowPlacement | None = None

    @property
    def windows(self) -> dict[str, Any] | None:
        """Where windows were laid, as JSON-ready values."""
        return None if self.placement is None else self.placement.to_dict()

    def over(
        self, items: Pipeline, samples: Sequence[int], places: ArrayLike | None = None
    ) -> Pipeline:
        """Return what is loaded, from a pipeline that has these samples at these places."""
        if self.placement is None:
            return items
        table = self._among(self.placement, samples, places)
        return windowed_pipeline(items, table, self.placement.window)

    def over_store(self, store: Store, samples: Sequence[int], places: ArrayLike) -> BatchSource:
        """Return what the ring fills batches with, from a store that has samples at places."""
        extents = source_of_store(store)
        if self.placement is None:
            return extents
        table = self._among(self.placement, samples, places)
        return SampleSource(extents, table, window=self.placement.window)

    @staticmethod
    def _among(
        placement: WindowPlacement, samples: Sequence[int], places: ArrayLike | None
    ) -> NDArray[np.int64]:
        windows = placement.among(samples)
        if not len(windows):
            raise OptionError(
                f"--window={placement.window.spelled}: no window lies whole within the "
                f"{len(samples)} available samples; take more batches, or --format source"
            )
        return windows if places is None else np.asarray(places, dtype=np.int64)[windows]


def choose_samples(
    config: RunConfig, index: SampleIndex, batch_size: int, screen: Screen
) -> SampleSelection:
    """Return what a run needs, in an order of which every beginning is spread evenly."""
    splits = chosen_splits(config.split, config.splits_by)
    if config.evaluate is not None:
        try:
            select_splits(index, (config.evaluate,))
        except UnknownNameError as error:
            raise UnknownNameError(str(error).replace("--split", "--evaluate", 1)) from None
        splits = (config.training_split, config.evaluate)
    placement = None
    available: Sequence[int] = range(len(index))
    if config.window is not None:
        window = Window.parse(config.window)
        placement = place_index_windows(index, window, split=splits)
        available = range(len(placement))
        screen.note(
            f"window {window.spelled}: {len(placement)} samples; none at {placement.n_at_ends} "
            f"ends, {placement.n_at_gaps} gaps and {placement.n_at_split} edges of the split"
        )
    elif splits:
        available = list(select_splits(index, splits))
    selected = len(available)
    if config.epochs is None and (config.batches or config.duration_s is None):
        selected = min(selected, (config.batches or DEFAULT_BATCHES) * batch_size)
    chosen = [available[place] for place in probe_samples(len(available), selected)]
    return SampleSelection(chosen if placement is None else placement.samples(chosen), placement)


# -- finished stores among the targets ---


class GivenStore(msgspec.Struct, frozen=True):
    """A finished store among the targets of a profile."""

    target: str  # as it was named
    label: str  # its name in reports, with folders above it where several have one name
    store: Store

    @property
    def manifest(self) -> Manifest:
        """What it says of itself."""
        return self.store.manifest


def open_given(targets: Sequence[str]) -> tuple[GivenStore, ...]:
    """Return stores, opened, of which all hold samples of the same data."""
    with ExitStack() as opened:
        stores = []
        for target in targets:
            stores.append(open_store(as_path(target)))
            opened.callback(stores[-1].close)
        given = tuple(map(GivenStore, targets, _labels(stores), stores))
        for one in given:
            if not len(one.store):
                raise StoreError(f"{one.target}: holds no sample")
            if why := _difference(_of_manifest(one.manifest), _of_manifest(given[0].manifest)):
                raise StoreError(
                    f"{one.target}: holds other samples than {given[0].target}: {why}; stores that "
                    "take turns hold the same"
                )
        opened.pop_all()
    return given


def check_source(given: Sequence[GivenStore], source: Source) -> None:
    """Check that stores hold samples of the source beside them."""
    index = source.index
    facts = json.loads(canonical_json(mask_values(index.provenance)))
    for one in given:
        known = one.manifest.provenance.get("fingerprints", ())
        whole = any("blake2b" in each for each in known)
        files = [fingerprint(file, whole=whole) for file in source.files]
        normalisation = facts.get("normalisation", {})
        now = _identity(source.dataset.name, index.spec, facts, normalisation, files)
        why = _difference(_of_manifest(one.manifest), now)
        last = max((first + n - 1 for first, n in count_runs(one.manifest.samples)), default=-1)
        if not why and last >= len(index):
            why = f"it holds sample {last}, and there are {len(index)} now"
        if why:
            raise StoreError(
                f"{one.target}: was not made of {source.dataset.name} as it is named here: {why}; "
                "name its own source, with the options it was converted with, or the store alone"
            )


def _of_manifest(manifest: Manifest) -> dict[str, Any]:
    facts, spec = manifest.provenance, manifest.spec.unpacked
    files = facts.get("fingerprints", ())
    return _identity(manifest.dataset, spec, facts, manifest.normalisation, files)


def _identity(
    dataset: str,
    spec: SampleSpec,
    facts: Mapping[str, Any],
    normalisation: Mapping[str, Any],
    files: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return what tells samples of one source from those of another, by name."""
    return {
        # Of files, and of objects, the facts tell which they are, wherever they lie.
        **({} if "kind" in facts else {"dataset": dataset}),
        "variables": {variable.name: list(variable.shape) for variable in spec},
        "stage": facts.get("request", {}).get("stage", "preprocessed"),
        "normalisation": dict(normalisation),
        **{
            name: value
            for name, value in facts.items()
            if name not in NOT_COMPARED and not name.endswith(("version", "versions"))
        },
        "files": files,
    }


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return the first difference of two identities, in words; empty where there is none."""
    names = dict.fromkeys([*one, *other])
    pairs = [(name, one.get(name), other.get(name)) for name in names if name != "files"]
    if one["files"] and other["files"]:  # else those of one are not known
        # By what both have: a fingerprint may be of the beginning and the end of a file alone.
        shared = [key for key in one["files"][0] if key in other["files"][0]]  # the name first
        sides = ([{key: each.get(key) for key in shared} for each in side["files"]]
                 for side in (one, other))  # fmt: skip
        pairs += [("files", mine, theirs) for mine, theirs in zip_longest(*sides)]
    for name, mine, theirs in pairs:
        if mine != theirs:
            return f"{name}: {_short(mine)}, not {_short(theirs)}"
    return ""


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _labels(stores: Sequence[Store]) -> list[str]:
    """Return names of stores, with the folders above them where they would be the same."""
    paths = [str(store.path).replace(os.sep, "/").split("/") for store in stores]
    for depth in range(1, 1 + max(map(len, paths), default=1)):
        labels = ["/".join(parts[-depth:]) for parts in paths]
        if len(set(labels)) == len(labels):
            return labels
    raise OptionError(f"{stores[0].path}: is named twice; name each store once")
