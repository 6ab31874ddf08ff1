"""Finished stores among the targets of a profile, which hold samples of the same data."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

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

NOT_COMPARED: Final = {"request", "fingerprints", "normalisation", "terms_of_use", "citation"}
"""Facts of a source that are compared by themselves, or do not change samples."""


class ComparedStore(msgspec.Struct, frozen=True):
    """A store to be measured, named among the targets or made for this profile."""

    label: str  # its name in reports; as it was named where several have one name
    store: Store
    target: str | None = None  # as it was named; None of one made for the profile
    spelled: str | None = None  # how ``--format`` spells it, where that has options
    facts: Mapping[str, Any] = msgspec.field(default_factory=dict)  # of a probe, for ``run.json``


def open_given(targets: Sequence[str]) -> tuple[ComparedStore, ...]:
    """Return stores, opened, of which all hold samples of the same data."""
    with ExitStack() as opened:
        stores = []
        for target in targets:
            stores.append(open_store(as_path(target)))
            opened.callback(stores[-1].close)
        if len({str(store.path) for store in stores}) < len(stores):
            raise OptionError(f"{stores[0].path}: is named twice; name each store once")
        names = [store.path.name for store in stores]
        labels = names if len({*names}) == len(names) else targets
        for target, store in zip(targets, stores, strict=True):
            if not len(store):
                raise StoreError(f"{target}: holds no sample")
            if why := _difference(_identity_of(store), _identity_of(stores[0])):
                raise StoreError(
                    f"{target}: holds other samples than {targets[0]}: {why}; stores that take "
                    "turns hold the same"
                )
        opened.pop_all()
    return tuple(map(ComparedStore, labels, stores, targets))


def check_source(given: Sequence[ComparedStore], source: Source) -> None:
    """Check that stores hold samples of the source beside them."""
    if not given:
        return
    index = source.index
    facts = json.loads(canonical_json(mask_values(index.provenance)))
    facts["fingerprints"] = list(map(fingerprint, source.files))
    now = _identity(source.dataset.name, index.spec, facts, facts.get("normalisation", {}))
    for one in given:
        why = _difference(_identity_of(one.store), now)
        if not why and (last := int(np.max(one.store.manifest.samples))) >= len(index):
            why = f"it holds sample {last}, and there are {len(index)} now"
        if why:
            raise StoreError(
                f"{one.target}: was not made of {source.dataset.name} as it is named here: {why}; "
                "name its own source, with the options it was converted with, or the store alone"
            )


def _identity_of(store: Store) -> dict[str, Any]:
    manifest = store.manifest
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
        **{f"file {number}": file for number, file in enumerate(facts.get("fingerprints", ()))},
        **{
            name: value
            for name, value in facts.items()
            if name not in NOT_COMPARED and not name.endswith(("version", "versions"))
        },
    }


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return the first difference of two identities, in words; empty where there is none."""
    for name in dict.fromkeys([*one, *other]):
        if one.get(name) != other.get(name):
            mine, theirs = (json.dumps(each.get(name))[:60] for each in (one, other))
            return f"{name}: {mine}, not {theirs}"
    return ""
