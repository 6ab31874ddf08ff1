"""Python objects as datasets, by what they can do: map-style, iterable, loader, xarray's."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from iobench.datasets.contract import SampleIndex, SamplePasses
from iobench.datasets.objects.targets import find_opener, in_one_line
from iobench.datasets.objects.values import NamedArrays, named_arrays, spec_of
from iobench.errors import OptionError, SampleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from iobench.datasets.contract import Locator, PublishedStep
    from iobench.datasets.objects.targets import Opener
    from iobench.samples import SampleSpec

STEPS: Final = ("read", "decode", "preprocess")
NOTHING: Final = object()


class ObjectDataset:
    """A Python object as a dataset; `object_dataset` makes that of a subclass for its kind.

    Forked processes share the object, as torch's workers do; pickled it is made anew where it has
    a name.
    """

    kind = ""
    title = ""
    fused: tuple[str, ...] = STEPS
    published: PublishedStep | None = None
    passes: SamplePasses | None = None  # of what is iterable only
    loader: Any = None  # torch's own, whose batches are handed on
    batch_size: int | None = None
    own_files: tuple[Path, ...] = ()
    facts: Mapping[str, Any] = {}

    def __init__(self, opener: Opener, value: Any) -> None:
        self.name = opener.name
        self._opener, self._value = opener, value

    def files(self, locator: Locator) -> list[Path]:
        """Return the object's files, as far as they are known."""
        return list(self.own_files)

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return the samples; the first is made, and says what they are."""
        index, first = self._samples()
        digest = hashlib.blake2b(digest_size=16)  # other code or other data make another one
        for name, array in first.items():
            digest.update(f"{name} {array.dtype.str} {array.shape} ".encode() + array.tobytes())
        facts = {
            "kind": self.kind,
            **self.facts,
            "skipped": dict(first.left_out),
            "files": [{"name": f.name, "nbytes": f.stat().st_size} for f in files],
            "first_sample": digest.hexdigest(),
        }
        return replace(index, provenance=facts)

    def _samples(self) -> tuple[SampleIndex, NamedArrays]:
        """Return the samples, and the first one."""
        raise NotImplementedError

    def read(self, where: Any) -> Any:
        """Return what can be had by itself, up to the whole sample; see ``fused``."""
        raise NotImplementedError

    def decode(self, raw: Any, where: Any) -> Any:
        """Return the sample's arrays."""
        return raw

    def preprocess(self, arrays: Any, where: Any) -> Any:
        """Return the sample."""
        return arrays

    @property
    def _object(self) -> Any:
        if self._value is None:
            self._value = self._opener.make()[0]
        return self._value

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_value": None if self._opener.is_repeatable else self._value}


class IndexedObject(ObjectDataset):
    """A map-style dataset; in steps where it has methods ``read``, ``decode``, ``preprocess``."""

    kind = "map-style dataset"

    def __init__(self, opener: Opener, value: Any) -> None:
        super().__init__(opener, value)
        self._in_steps = all(callable(getattr(value, step, None)) for step in STEPS)
        self.fused = () if self._in_steps else STEPS
        separable = "its own steps" if self._in_steps else "its steps cannot be separated"
        self.title = f"a {self.kind}, {separable}"
        self._spec: SampleSpec | None = None

    def _samples(self) -> tuple[SampleIndex, NamedArrays]:
        value = self._object
        with in_one_line(f"{self.name}: len() raised"):
            length = len(value)
        if length < 1:
            raise OptionError(f"{self.name}: its length is {length}; give one that has samples")
        where = f"{self.name}[0]"
        with in_one_line(f"{where} raised"):
            sample = value.preprocess(value.decode(value.read(0))) if self._in_steps else value[0]
            first = named_arrays(sample, where=where)
            is_both = self._in_steps and hasattr(value, "__getitem__")
            whole = named_arrays(value[0], where=where) if is_both else first
        self._spec = spec_of(first, where=where)
        self._spec.check(whole, where=f"{where}, beside read, decode and preprocess")
        return SampleIndex(self._spec, range(length)), first

    def read(self, where: int) -> Any:
        """Return what the dataset's ``read`` does, or the whole sample."""
        value = self._object
        return value.read(where) if self._in_steps else self._checked(value[where], where)

    def decode(self, raw: Any, where: int) -> Any:
        """Return what the dataset's ``decode`` does."""
        return self._object.decode(raw)

    def preprocess(self, arrays: Any, where: int) -> Any:
        """Return the sample as the dataset's ``preprocess`` makes it."""
        return self._checked(self._object.preprocess(arrays), where)

    def _checked(self, value: Any, number: int) -> NamedArrays:
        if self._spec is None:
            raise SampleError(f"{self.name}: call samples() before read()")
        where = f"{self.name}[{number}]"
        arrays = named_arrays(value, where=where)
        self._spec.check(arrays, where=where)
        return arrays


class IterableObject(ObjectDataset):
    """Something that is gone through from its beginning: an iterable, or a ready DataLoader.

    It is iterated in the training loop's own thread, as the user's own loop would do it; an object
    that says no length is gone through again and again as one pass without end. A loader's batches
    are handed on as they are.
    """

    kind = "iterable dataset"
    title = "an iterable dataset, its steps cannot be separated"

    def __init__(self, opener: Opener, value: Any) -> None:
        super().__init__(opener, value)
        self._is_torch = is_data_loader(value)
        # Without a batch size of its own, torch's loader hands samples on.
        self._batched = self._is_torch and value.batch_sampler is not None
        if self._is_torch:
            self.kind = "DataLoader"
            self.title = f"a ready DataLoader, workers: {value.num_workers}"

    def _samples(self) -> tuple[SampleIndex, NamedArrays]:
        """Return an index without samples, with the spec of the first one, and the first one."""
        where = f"the first {'batch' if self._batched else 'sample'} of {self.name}"
        with in_one_line(f"{where}: making it raised"):
            first = next(iter(self._value), NOTHING)
        if first is NOTHING:
            raise OptionError(f"{self.name}: is empty; give something that has samples")
        if self._goes_once and not self._opener.is_repeatable:
            raise OptionError(
                f"{self.name}: is an iterator, which can be gone through once; give what makes it"
            )
        arrays = named_arrays(first, where=where)
        spec = spec_of(arrays, where=where, batched=self._batched)
        if self._goes_once:
            self._value = self._opener.make()[0]
        value = self._value
        if self._batched:
            self.batch_size = _batch_size(value) or len(next(iter(arrays.values())))
            self.loader = value
        if self._is_torch and getattr(value, "_iterator", None) is not None:
            value._iterator = None  # workers that were started for the first batch alone
        length = self._n_samples()
        self.passes = SamplePasses(
            spec,
            self.one_pass if length else self._pass_without_end,
            length,
            self._batched,
            in_processes=bool(self._is_torch and value.num_workers),
        )
        return SampleIndex(spec, range(0)), arrays

    def read(self, where: Any) -> Any:
        """Refuse: there is no sample by number."""
        raise OptionError(
            f"{self.name}: is iterable only, profiled as it is (--format source); samples by "
            "number need __getitem__"
        )

    @property
    def _goes_once(self) -> bool:
        return hasattr(self._value, "__next__")

    def one_pass(
        self, epoch: int, begin: Callable[[Any], Iterator[Any]] = iter
    ) -> Iterator[NamedArrays]:
        """Yield the items of one pass; ``begin`` makes the iterator of the object."""
        value = self._value
        if epoch and self._goes_once:
            value = self._opener.make()[0]
        for each in (value, getattr(value, "sampler", None)):
            set_epoch = getattr(each, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)
        what = "batch" if self._batched else "sample"
        for number, item in enumerate(begin(value)):
            yield named_arrays(item, where=f"{what} {number} of {self.name}")

    def _pass_without_end(self, epoch: int) -> Iterator[NamedArrays]:
        while True:
            item = None
            for item in self.one_pass(epoch):
                yield item
            if item is None:
                raise SampleError(
                    f"{self.name}: pass {epoch} has no samples; it can be gone through {epoch} "
                    "times"
                )
            epoch += 1

    def _n_samples(self) -> int:
        """Return the samples of one pass; 0 where that is not sure."""
        value = self._value
        if not self._is_torch:
            return _length(value)
        if not hasattr(value.dataset, "__getitem__") or is_iterable_only(value.dataset):
            return 0  # each worker may go through all of it
        if not self._batched:
            return _length(value.sampler)
        size = _batch_size(value)
        if type(value.batch_sampler).__module__ != "torch.utils.data.sampler" or not size:
            return 0
        samples = _length(value.batch_sampler.sampler)
        return samples - samples % size if value.batch_sampler.drop_last else samples


def object_dataset(
    target: str | object,
    options: Mapping[str, Any] | None = None,
    *,
    sample_dim: str | None = None,
    variables: Sequence[str] | None = None,
) -> ObjectDataset:
    """Make a dataset of a Python object, by what that can do."""
    opener = find_opener(target, options or {})
    value, facts = opener.make()
    dataset = _dataset_of(opener, value, sample_dim, tuple(variables or ()))
    dataset.facts = facts if sample_dim is None else {**facts, "sample_dim": sample_dim}
    return dataset


def _dataset_of(
    opener: Opener, value: Any, sample_dim: str | None, variables: tuple[str, ...]
) -> ObjectDataset:
    kind = type(value).__name__
    xarray = sys.modules.get("xarray")
    if xarray is not None and isinstance(value, xarray.Dataset | xarray.DataArray):
        from iobench.datasets.objects.labelled import LabelledObject

        return LabelledObject(opener, value, sample_dim, variables)
    if sample_dim or variables:
        raise OptionError(
            f"--sample-dim and --variables need an xarray.Dataset; {opener.name} is of type {kind}"
        )
    if _hands_on_own_batches(value):
        raise OptionError(
            f"{opener.name}: is a loader of iobench; name its store or dataset, or measure the "
            "script with iobench run"
        )
    if not isinstance(value, str | bytes | Mapping):
        if is_data_loader(value):
            return IterableObject(opener, value)
        has_length, by_number = hasattr(value, "__len__"), hasattr(value, "__getitem__")
        in_steps = all(callable(getattr(value, step, None)) for step in STEPS)
        if has_length and (by_number or in_steps) and not is_iterable_only(value):
            return IndexedObject(opener, value)
        if hasattr(value, "__iter__"):
            return IterableObject(opener, value)
    raise OptionError(
        f"{opener.name}: is of type {kind}; expected a dataset with __len__ and __getitem__, one "
        "with __iter__, an xarray.Dataset or a torch DataLoader"
    )


def _hands_on_own_batches(value: Any) -> bool:
    """Return whether something is a loader of iobench's, or torch's or TensorFlow's of one."""
    ring = sys.modules.get("iobench.loaders.ring.loader")
    if ring is None:
        return False
    of_torch = getattr(getattr(value, "dataset", None), "loader", None)
    of_tensorflow = getattr(value, "__dict__", {}).get("_iobench_loader")
    return any(isinstance(each, ring.RingLoader) for each in (value, of_torch, of_tensorflow))


def is_data_loader(value: Any) -> bool:
    """Return whether it is torch's ``DataLoader``, without importing torch."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(value, data.DataLoader)


def is_iterable_only(value: Any) -> bool:
    """Return whether it is torch's ``IterableDataset``, whose ``__getitem__`` only raises."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(value, data.IterableDataset)


def _batch_size(loader: Any) -> int | None:
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    return size if isinstance(size, int) else None


def _length(value: Any) -> int:
    """Return what ``len`` says, 0 where it says nothing."""
    try:
        return len(value)
    except (TypeError, NotImplementedError):
        return 0
