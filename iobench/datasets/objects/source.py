"""Python objects as a `Dataset`: by what they can do, opened when they are needed."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from iobench.datasets.contract import SampleIndex
from iobench.datasets.download import Downloads, PluginCall
from iobench.datasets.file_variables import Selection
from iobench.datasets.objects.iterables import (
    IterableObject,
    ReadyBatches,
    is_data_loader,
    is_iterable_only,
)
from iobench.datasets.objects.labelled import LabelledObject, as_dataset
from iobench.datasets.objects.targets import (
    CLIMETLAB,
    ClimetlabObject,
    HeldObject,
    NamedObject,
    in_one_line,
)
from iobench.datasets.objects.values import NamedArrays, named_arrays, spec_of
from iobench.datasets.setup_processes import stopwatch
from iobench.errors import OptionError, SampleError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.datasets.baseline import SamplePasses
    from iobench.datasets.contract import Arrays, Locator, PublishedStep, Raw, Where
    from iobench.datasets.objects.targets import Opener
    from iobench.samples import Sample, SampleSpec

STEPS: Final = ("read", "decode", "preprocess")


class IndexedObject:
    """A map-style dataset; in steps where it has methods ``read``, ``decode``, ``preprocess``.

    Forked processes share it, as torch's workers do; pickled it is made anew by its name.
    """

    kind = "map-style dataset"
    files: tuple[Path, ...] = ()

    def __init__(self, opener: Opener, value: Any) -> None:
        self._opener = opener
        self._value: Any = value
        self._in_steps = all(callable(getattr(value, step, None)) for step in STEPS)
        self.fused = () if self._in_steps else STEPS
        separable = "its own steps" if self._in_steps else "its steps cannot be separated"
        self.title = f"a {self.kind}, {separable}"
        self._spec: SampleSpec | None = None

    def samples(self) -> tuple[SampleIndex, NamedArrays]:
        """Return one sample for each number, and the first."""
        name, value = self._opener.name, self._value
        with in_one_line(f"{name}: len() raised"):
            length = len(value)
        if length < 1:
            raise OptionError(f"{name}: its length is {length}; give a dataset that has samples")
        where, has_items = f"{name}[0]", hasattr(value, "__getitem__")
        with in_one_line(f"{where} raised"):
            stepped = value.preprocess(value.decode(value.read(0))) if self._in_steps else None
            first = named_arrays(stepped if self._in_steps else value[0], where=where)
            whole = named_arrays(value[0], where=where) if self._in_steps and has_items else first
        self._spec = spec_of(first, where=where)
        self._spec.check(whole, where=f"{where}, beside read, decode and preprocess")
        return SampleIndex(self._spec, range(length)), first

    def read(self, where: int) -> Any:
        """Return what the dataset's ``read`` does, or the whole sample."""
        value = self._object
        return value.read(where) if self._in_steps else self._checked(value[where], where)

    def decode(self, raw: Any) -> Any:
        """Return what the dataset's ``decode`` does."""
        return self._object.decode(raw)

    def preprocess(self, arrays: Any, where: int) -> Sample:
        """Return the sample as the dataset's ``preprocess`` makes it."""
        return self._checked(self._object.preprocess(arrays), where)

    @property
    def _object(self) -> Any:
        if self._value is None:
            self._value = self._opener.open()
        return self._value

    def _checked(self, value: Any, number: int) -> Sample:
        if self._spec is None:
            raise SampleError(f"{self._opener.name}: call samples() before read()")
        where = f"{self._opener.name}[{number}]"
        arrays = named_arrays(value, where=where)
        self._spec.check(arrays, where=where)
        return arrays

    def __getstate__(self) -> dict[str, Any]:
        value = None if self._opener.is_repeatable else self._value
        return {**self.__dict__, "_value": value}


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
