"""Stores that a profile measures: named among its targets, or probes made for it."""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.cpus import available_cpus
from iobench.datasets.setup_processes import stopwatch
from iobench.errors import OptionError, StoreClaimedError, StoreError
from iobench.files.urls import as_path
from iobench.masking import mask_values, mask_words
from iobench.registry import find_converter, find_format
from iobench.stores.finished_store import open_store
from iobench.stores.manifest import canonical_json
from iobench.stores.places import choose_place, conversion_s, note_conversion
from iobench.stores.plan import StoreRequest, fingerprint
from iobench.stores.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from iobench.profiling.config import RunConfig
    from iobench.profiling.format_choice import FormatChoice
    from iobench.samples import SampleSpec
    from iobench.sources.opening import Source
    from iobench.sources.request import Screen
    from iobench.stores.contract import Store

NOT_COMPARED: Final = {"request", "fingerprints", "normalisation", "terms_of_use", "citation"}
"""Facts of a source that are compared by themselves, or do not change samples."""
PROBE_NBYTES: Final = 2 << 30
PROBE_SHARD_NBYTES: Final = 256 << 20
"""What an interrupted probe loses at the most."""
PROBE_S: Final = 60.0
PROBE_MEMORY_NBYTES: Final = 256 << 20
"""Or as much as a sample needs."""
LARGEST_ERRORS: Final = ("max_absolute_error", "max_relative_error")


class ComparedStore(msgspec.Struct, frozen=True):
    """A store to be measured."""

    label: str  # its name in reports; as it was named where several have one name
    store: Store
    target: str | None = None  # as it was named; None of one made for the profile
    spelled: str | None = None  # how ``--format`` spells it, where that has options
    facts: Mapping[str, Any] = {}  # of a probe, for ``run.json``

    def document(self, n_samples_all: int | None) -> dict[str, Any]:
        """Return what ``run.json`` says of it."""
        manifest = self.store.manifest
        return {
            "path": str(self.store.path),
            "target": None if self.target is None else mask_words([self.target])[0],
            "probe": False,
            "reused": True,
            "convert_s": None,
            "nbytes": manifest.nbytes,
            "n_samples": len(self.store),
            "options": dict(manifest.options),
            "lossy": {
                name: {key: errors[key] for key in LARGEST_ERRORS if key in errors}
                for name, errors in manifest.lossy.items()
            },
            "n_samples_all": len(self.store) if n_samples_all is None else n_samples_all,
            **self.facts,
        }


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


def open_probe(
    choice: FormatChoice, config: RunConfig, source: Source, samples: Sequence[int], screen: Screen
) -> ComparedStore:
    """Return the store of some samples that an item of ``--format`` asks for, converted if need be.

    ``samples`` are in an order of which every beginning is spread over the files.
    """
    request = StoreRequest(
        source.dataset,
        source.index,
        find_format(choice.name),
        source.place,
        samples=samples,
        options=choice.format_options,
        files=source.files,
        shard_nbytes=choice.shard_nbytes or PROBE_SHARD_NBYTES,
        limit_nbytes=PROBE_NBYTES,
        limit_s=PROBE_S,
        encoding=choice.encoding,
        workers=available_cpus(),
        memory_nbytes=max(PROBE_MEMORY_NBYTES, 3 * source.index.spec.nbytes),
    )
    request.check_container()
    path = source.place / "stores" / request.plan().name
    notice = choose_place(store_dir=config.store_dir).notice
    if notice and not source.stand_in and not path.exists():
        screen.note(notice)
    tally, watch = Tally(), stopwatch()
    with _removable(path), screen.progress(f"converting a probe to {choice.spelled}") as move:
        store = find_converter()(
            replace(request, path=path), progress=move, notice=screen.note, tally=tally
        )
    assert store is not None, "a probe has one part"
    took_s = watch()
    if tally.n_written and not tally.n_resumed:  # one run made it all
        note_conversion(path, took_s)
    facts = {
        "reused": not tally.n_written,
        "convert_s": took_s if tally.n_written else conversion_s(path),
        "probe": len(store) < len(source.index),
    }
    spelled = choice.spelled if choice.options else None
    return ComparedStore(choice.spelled, store, spelled=spelled, facts=facts)


@contextmanager
def _removable(path: Path) -> Iterator[None]:
    """Say of a damaged store how to be rid of it, so that the same command makes it anew."""
    try:
        yield
    except StoreClaimedError:
        raise
    except StoreError as error:
        raise StoreError(f"{error} ('iobench cache --remove {path}' removes it)") from error
