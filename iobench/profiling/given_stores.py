"""Finished stores among the targets of a profile, which hold samples of the same data."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.errors import OptionError, StoreError
from iobench.files.urls import as_path
from iobench.masking import mask_values
from iobench.stores.finished_store import open_store
from iobench.stores.manifest import canonical_json
from iobench.stores.plan import fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iobench.samples import SampleSpec
    from iobench.sources.opening import Source
    from iobench.stores.contract import Store
    from iobench.stores.manifest import Manifest

NOT_COMPARED: Final = {"request", "fingerprints", "normalisation", "terms_of_use", "citation"}
"""Facts of a source that are compared by themselves, or do not change samples."""


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
    if not given:
        return
    index = source.index
    facts = json.loads(canonical_json(mask_values(index.provenance)))
    facts["fingerprints"] = list(map(fingerprint, source.files))
    now = _identity(source.dataset.name, index.spec, facts, facts.get("normalisation", {}))
    for one in given:
        why = _difference(_of_manifest(one.manifest), now)
        if not why and (last := max(one.manifest.samples)) >= len(index):
            why = f"it holds sample {last}, and there are {len(index)} now"
        if why:
            raise StoreError(
                f"{one.target}: was not made of {source.dataset.name} as it is named here: {why}; "
                "name its own source, with the options it was converted with, or the store alone"
            )


def _of_manifest(manifest: Manifest) -> dict[str, Any]:
    spec = manifest.spec.unpacked
    return _identity(manifest.dataset, spec, manifest.provenance, manifest.normalisation)


def _identity(
    dataset: str, spec: SampleSpec, facts: Mapping[str, Any], normalisation: Mapping[str, Any]
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
        "files": list(facts.get("fingerprints", ())),
    }


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return the first difference of two identities, in words; empty where there is none."""
    for name in dict.fromkeys([*one, *other]):
        mine, theirs = one.get(name), other.get(name)
        if name == "files":
            if not mine or not theirs:
                continue  # those of one are not known
            pairs = zip(mine, theirs, strict=False)
            mine, theirs = next((pair for pair in pairs if pair[0] != pair[1]), (mine, theirs))
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
