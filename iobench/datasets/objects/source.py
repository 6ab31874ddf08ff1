"""Python objects as a `Dataset`: by what they can do, opened when they are needed."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from iobench.datasets.download import Downloads, PluginCall
from iobench.datasets.file_variables import Selection
from iobench.datasets.objects.indexed import IndexedObject
from iobench.datasets.objects.iterables import (
    IterableObject,
    ReadyBatches,
    is_data_loader,
    is_iterable_only,
)
from iobench.datasets.objects.labelled import LabelledObject, as_dataset
from iobench.datasets.objects.targets import CLIMETLAB, HeldObject, NamedObject
from iobench.datasets.objects.through_climetlab import ClimetlabObject
from iobench.datasets.setup_processes import stopwatch
from iobench.errors import OptionError, SampleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.datasets.baseline import SamplePasses
    from iobench.datasets.contract import (
        Arrays,
        Locator,
        PublishedStep,
        Raw,
        SampleIndex,
        Where,
    )
    from iobench.datasets.objects.targets import Opener
    from iobench.samples import Sample

Part = IndexedObject | LabelledObject | IterableObject


class ObjectDataset:
    """A Python object as a dataset; made by `object_dataset`.

    ``title``, ``fused``, ``passes``, ``ready`` and ``batch_size`` are known once ``files`` and
    ``samples`` have run.
    """

    published: PublishedStep | None = None

    def __init__(self, opener: Opener, selection: Selection) -> None:
        self.name = opener.name
        self.title = ""
        self.fused: tuple[str, ...] = ()
        self.passes: SamplePasses | None = None
        self.batch_size: int | None = None
        self.ready: ReadyBatches | None = None
        self._opener = opener
        self._selection = selection
        self._part: Part | None = None

    def files(self, locator: Locator) -> list[Path]:
        """Open the object and return its files, as far as they are known."""
        if self._part is None:
            self._part = _part_of(self._opener, self._selection)
            self.title, self.fused = self._part.title, self._part.fused
        return list(self._part.files)

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return the samples; the first is made, and says what they are."""
        self.files(locator)
        part = self._opened
        watch = stopwatch()
        index, first = part.samples()
        if isinstance(part, IterableObject):
            self.passes, self.batch_size, self.ready = part.passes, part.batch_size, part.ready
        facts = {
            "kind": part.kind,
            **self._opener.facts,
            "skipped": dict(first.left_out),
            "files": [{"name": f.name, "nbytes": f.stat().st_size} for f in files],
            "first_sample": _fingerprint(first),
        }
        if self._selection.sample_dim is not None:
            facts["sample_dim"] = self._selection.sample_dim
        return replace(index, provenance=facts, setup={"first sample": watch()})

    def downloads(self) -> Downloads:
        """Return what to ask CliMetLab for; nobody knows which files that are."""
        opener = self._opener
        if not isinstance(opener, ClimetlabObject):
            raise OptionError(f"--download: is for CliMetLab's datasets, not for {self.name}")
        return Downloads((PluginCall(opener.dataset, opener.arguments, to_xarray=True),))

    def read(self, where: Where) -> Raw:
        """Return what can be had by itself, up to the whole sample; see ``fused``."""
        return self._opened.read(where)

    def decode(self, raw: Raw, where: Where) -> Arrays:
        """Return the sample's arrays."""
        arrays: Arrays = self._opened.decode(raw)
        return arrays

    def preprocess(self, arrays: Arrays, where: Where) -> Sample:
        """Return the sample."""
        sample: Sample = self._opened.preprocess(arrays, where)
        return sample

    @property
    def _opened(self) -> Part:
        if self._part is None:
            raise SampleError(f"{self.name}: call samples() before read()")
        return self._part


def object_dataset(
    target: str | object,
    *,
    options: Mapping[str, Any] | None = None,
    sample_dim: str | None = None,
    variables: Sequence[str] | None = None,
    target_variables: Sequence[str] | None = None,
) -> ObjectDataset:
    """Make a dataset of a Python object."""
    named = dict(options or {})
    opener: Opener
    if not isinstance(target, str):
        if named:
            raise OptionError(
                f"options {', '.join(named)}: the {type(target).__name__} is made already; give "
                "them to what makes it"
            )
        opener = HeldObject(target)
    elif target.startswith(CLIMETLAB):
        opener = ClimetlabObject(target.removeprefix(CLIMETLAB), named)
    else:
        opener = NamedObject(target, named)
    targets = tuple(target_variables or ())
    chosen = tuple(dict.fromkeys((*(variables or ()), *targets))) if variables else ()
    return ObjectDataset(opener, Selection(sample_dim, chosen, targets))


def _part_of(opener: Opener, selection: Selection) -> Part:
    """Return the object by what it can do."""
    value = as_dataset(opener.open())
    xarray = sys.modules.get("xarray")
    if xarray is not None and isinstance(value, xarray.Dataset):
        return LabelledObject(opener, value, selection)
    if selection.sample_dim or selection.variables or selection.targets:
        raise OptionError(
            f"--sample-dim and --variables need an xarray.Dataset; {opener.name} is of type "
            f"{type(value).__name__}"
        )
    if not isinstance(value, str | bytes | Mapping):
        if is_data_loader(value):
            return IterableObject(opener, value)
        has_length, by_number = hasattr(value, "__len__"), hasattr(value, "__getitem__")
        in_steps = all(callable(getattr(value, step, None)) for step in ("read", "decode"))
        if has_length and (by_number or in_steps) and not is_iterable_only(value):
            return IndexedObject(opener, value)
        if hasattr(value, "__iter__"):
            return IterableObject(opener, value)
    raise OptionError(
        f"{opener.name}: is of type {type(value).__name__}; expected a dataset with __len__ and "
        "__getitem__, one with __iter__, an xarray.Dataset or a torch DataLoader"
    )


def _fingerprint(first: Mapping[str, Any]) -> str:
    """Return a digest of the first sample: other code or other data make another one."""
    digest = hashlib.blake2b(digest_size=16)
    for name, array in first.items():
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()
