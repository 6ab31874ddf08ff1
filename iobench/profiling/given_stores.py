"""Finished stores that a profile is given: opened, and checked to hold the same samples."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.errors import IobenchError, OptionError, StorageError, StoreError
from iobench.files.urls import as_path
from iobench.masking import mask_values
from iobench.stores.finished_store import open_store
from iobench.stores.manifest import canonical_json, read_manifest
from iobench.stores.places import finished_stores
from iobench.stores.plan import fingerprint
from iobench.stores.sample_numbers import count_runs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from iobench.samples import SampleSpec
    from iobench.sources.opening import Source
    from iobench.stores.contract import Notice, Store
    from iobench.stores.manifest import Manifest
    from iobench.stores.plan import ConversionPlan, StoreRequest

SET_APART: Final = {"request", "fingerprints", "normalisation", "terms_of_use", "citation"}
"""Of what a store tells of its source: compared by themselves, or of no account for samples."""
MOST_LOOKED_AT: Final = 20
"""Finished stores of a dataset and format that are compared with what is wanted."""


class GivenStore(msgspec.Struct, frozen=True):
    """A finished store among the targets of a profile."""

    target: str  # as it was named
    label: str  # what reports call it: its name, with the folder above where several have one name
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
            if why := _why_other(one.manifest, given[0].manifest):
                raise StoreError(
                    f"{one.target}: holds other samples than {given[0].target}: {why}; stores that "
                    "take turns hold the same"
                )
        opened.pop_all()
    return given


def check_made_of(given: Sequence[GivenStore], source: Source) -> None:
    """Check that stores hold samples of the source beside them."""
    for one in given:
        if why := _why_not_made_of(one.manifest, source):
            raise StoreError(
                f"{one.target}: was not made of {source.dataset.name} as it is named here: {why}; "
                "name its own source, with the options it was converted with, or the store alone"
            )


def find_finished(
    request: StoreRequest, source: Source, *, any_shards: bool, notice: Notice
) -> Store | None:
    """Return the finished store of all samples that a request asks for; None where there is none.

    Such as ``iobench convert`` made in the folder of ``--store-dir``; others are to be named.
    """
    title = f"{request.dataset.name} as {request.fmt.name}"
    plan: ConversionPlan | None = None
    usual: list[Path] = []
    others: list[Path] = []
    for path in finished_stores(source.place, title)[:MOST_LOOKED_AT]:
        try:
            manifest = read_manifest(path)
        except (StoreError, StorageError):
            continue  # it went, or is being made again
        if manifest.n_samples != len(source.index) or not manifest.shards:
            continue
        if _why_not_made_of(manifest, source):
            continue
        plan = _spelled_alike(plan or request.plan(), manifest, request)
        if _is_of_plan(manifest, plan):
            usual.append(path)
        elif any_shards and _is_of_plan(manifest, plan, any_shards=True):
            others.append(path)
    for path in (*usual, *others):
        try:
            return open_store(path)
        except IobenchError as error:
            notice(f"the finished store {path} is not used: {error}")
    return None


def _spelled_alike(
    plan: ConversionPlan, manifest: Manifest, request: StoreRequest
) -> ConversionPlan:
    """Return the plan with the options of a store as that store spells them, if they are its own.

    What an option is without being given may be spelled out in one of them.
    """
    defaults: Mapping[str, str] = getattr(request.fmt, "option_defaults", {})
    if {**defaults, **manifest.options} != {**defaults, **plan.options}:
        return plan
    return replace(plan, options=dict(manifest.options))


def _is_of_plan(manifest: Manifest, plan: ConversionPlan, *, any_shards: bool = False) -> bool:
    """Tell whether a store was made by a plan, but for what is told of the source's way here."""
    # What else a manifest tells, such as versions, was of no account for what it holds.
    told = {
        name: value
        for name, value in manifest.provenance.items()
        if name in plan.provenance or name == "request"
    }
    same = replace(plan, provenance=told, normalisation=manifest.normalisation)
    if any_shards and len(manifest.shards) > 1:
        same = replace(same, shard_n_samples=manifest.shards[0].n_samples)
    return same.digest == manifest.plan


def _why_not_made_of(manifest: Manifest, source: Source) -> str:
    """Return in words why a store does not hold the samples of a source; empty where it does."""
    index, name = source.index, source.dataset.name
    if manifest.dataset != name:
        return f"it is of {manifest.dataset}"
    if why := _why_other_spec(manifest.spec.unpacked, index.spec):
        return why
    told = json.loads(canonical_json(mask_values(index.provenance)))
    scaled = told.get("normalisation", {})
    if why := _why_other_facts((manifest.provenance, manifest.normalisation), (told, scaled)):
        return why
    beyond = max((first + count - 1 for first, count in count_runs(manifest.samples)), default=-1)
    if beyond >= len(index):
        return f"it holds sample {beyond}, and there are {len(index)} now"
    known = list(manifest.provenance.get("fingerprints", ()))
    whole = any("blake2b" in each for each in known)
    return _why_other_files(known, [fingerprint(file, whole=whole) for file in source.files])


def _why_other(one: Manifest, other: Manifest) -> str:
    if one.dataset != other.dataset:
        return f"it is of {one.dataset}, not of {other.dataset}"
    return (
        _why_other_spec(one.spec.unpacked, other.spec.unpacked)
        or _why_other_facts(*((each.provenance, each.normalisation) for each in (one, other)))
        or _why_other_files(*(each.provenance.get("fingerprints", ()) for each in (one, other)))
    )


def _why_other_spec(one: SampleSpec, other: SampleSpec) -> str:
    if one.names != other.names:
        return f"it holds {', '.join(one.names)}, not {', '.join(other.names)}"
    for mine in one:
        if mine.shape != other[mine.name].shape:
            return f"its {mine.name} has shape {mine.shape}, not {other[mine.name].shape}"
    return ""


def _why_other_facts(
    one: tuple[Mapping[str, Any], Mapping[str, Any]],
    other: tuple[Mapping[str, Any], Mapping[str, Any]],
) -> str:
    """Compare what is told of two sources, of their normalisation, and of how samples were cut."""
    for told in (_facts, _cut):
        mine, theirs = told(one[0]), told(other[0])
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) != theirs.get(name):
                return f"{name} is {_short(mine.get(name))}, not {_short(theirs.get(name))}"
    return "" if one[1] == other[1] else "its values are normalised otherwise"


def _facts(provenance: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in provenance.items()
        if name not in SET_APART and not name.endswith(("version", "versions"))
    }


def _cut(provenance: Mapping[str, Any]) -> dict[str, Any]:
    told = provenance.get("request", {})
    return {"stage": told.get("stage", "preprocessed")}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _why_other_files(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> str:
    """Compare fingerprints of source files; where they are of different bytes, names and sizes."""
    if not one or not other:
        return ""
    mine, theirs = ([each.get("name") for each in files] for files in (one, other))
    if mine != theirs:
        return (
            f"its source is {len(mine)} files, {mine[0]} and so on, not {len(theirs)}, "
            f"{theirs[0]} and so on"
        )
    for first, second in zip(one, other, strict=True):
        shared = first.keys() & second.keys()
        if any(first[key] != second[key] for key in shared):
            return f"its source file {first.get('name')} was another one"
    return ""


def _labels(stores: Sequence[Store]) -> list[str]:
    """Return what stores are called, told apart by the folders above them where need be."""
    paths = [str(store.path).replace(os.sep, "/").split("/") for store in stores]
    for depth in range(1, 1 + max(map(len, paths), default=1)):
        labels = ["/".join(parts[-depth:]) for parts in paths]
        if len(set(labels)) == len(labels):
            return labels
    raise OptionError(f"{stores[0].path}: is named twice; name each store once")
