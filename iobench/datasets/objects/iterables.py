"""Iterable datasets and ready loaders: one opaque stage, pass after pass."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.datasets.baseline import SamplePasses
from iobench.datasets.contract import SampleIndex
from iobench.datasets.objects.targets import in_one_line
from iobench.datasets.objects.values import NamedArrays, named_arrays, spec_of
from iobench.errors import OptionError, SampleError
from iobench.files.atomic import is_local

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.datasets.objects.targets import Opener

NOTHING: Final = object()


class ReadyBatches(msgspec.Struct, frozen=True):
    """A loader's own batches: of torch's ``DataLoader``, or of a loader of iobench's."""

    loader: Any
    # ``passes(epoch, begin)`` returns those of one pass; it calls ``begin`` with the loader for its
    # iterator
    passes: Callable[[int, Callable[[Any], Iterator[Any]]], Iterator[NamedArrays]]
    is_ours: bool  # of threads, and none of torch's
    workers: int = 0  # loading processes
    threads: int = 0  # that load; 0 where processes or the loop do
    prefetch: int = 0  # batches each may be ahead; of ours batches that are kept ready


class IterableObject:
    """Something that is gone through from its beginning: an iterable, or a ready loader.

    It is iterated in the training loop's own thread, as the user's own loop would do it; an object
    that says no length is gone through again and again as one pass without end. A loader's batches
    are handed on as they are.
    """

    fused = ("read", "decode", "preprocess")
    kind = "iterable dataset"
    files: tuple[Path, ...] = ()

    def __init__(self, opener: Opener, value: Any) -> None:
        self._opener, self._value = opener, value
        self._is_torch = is_data_loader(value)
        self._ring = ring = _own_loader(value)
        # Without a batch size of its own, torch's loader hands samples on.
        self._batched = ring is not None or (self._is_torch and value.batch_sampler is not None)
        self.title = "an iterable dataset, its steps cannot be separated"
        if self._is_torch:
            self.kind = "DataLoader"
            self.title = f"a ready DataLoader, workers: {value.num_workers}"
        if ring is not None:
            self.kind = "loader of iobench" if ring is value else self.kind
            through = "" if ring is value else " through its framework"
            figures = f"threads: {ring.threads}, buffers: {ring.depth}"
            self.title = f"a ready loader of iobench{through}, {figures}"
            sizes = getattr(ring.dataset, "file_sizes", {})
            self.files = tuple(file for file in sizes if is_local(file))
        self.batch_size: int | None = None
        self.passes: SamplePasses | None = None
        self.ready: ReadyBatches | None = None

    def samples(self) -> tuple[SampleIndex, NamedArrays]:
        """Return an index without samples, with the spec of the first one, and the first one."""
        name, ring = self._opener.name, self._ring
        where = f"the first {'batch' if self._batched else 'sample'} of {name}"
        with in_one_line(f"{where}: making it raised"):
            first = next(iter(self._value), NOTHING)
        if ring is not None:
            ring.set_epoch(0)  # as if nobody had asked
        if first is NOTHING:
            raise OptionError(f"{name}: is empty; give something that has samples")
        if self._goes_once and not self._opener.is_repeatable:
            raise OptionError(
                f"{name}: is an iterator, which can be gone through once; give what makes it"
            )
        arrays = named_arrays(first, where=where)
        spec = spec_of(arrays, where=where, batched=self._batched)
        if self._batched:
            size = _batch_size(self._value) if ring is None else ring.batch_size
            self.batch_size = size or len(next(iter(arrays.values())))
        if self._goes_once:
            self._value = self._opener.open()
        if self._is_torch and getattr(self._value, "_iterator", None) is not None:
            self._value._iterator = None  # workers that were started for the first batch alone
        value = self._value
        if self._batched and self._is_torch:
            n, prefetch = int(value.num_workers), int(value.prefetch_factor or 1)
            self.ready = ReadyBatches(
                value, self._pass, is_ours=False, workers=n, prefetch=prefetch if n else 0
            )
        elif self._batched and ring is value:
            ahead = max(1, int(ring.depth) - 2)
            self.ready = ReadyBatches(
                value, self._pass, is_ours=True, threads=int(ring.threads), prefetch=ahead
            )
        length = self._n_samples()
        in_processes = bool(self._is_torch and self._value.num_workers)
        passes = self._pass if length else self._pass_without_end
        self.passes = SamplePasses(spec, passes, length, self._batched, in_processes=in_processes)
        return SampleIndex(spec, range(0)), arrays

    def read(self, where: Any, *_: Any) -> Any:
        """Refuse: there is no sample by number."""
        raise OptionError(
            f"{self._opener.name}: is iterable only, profiled as it is (--format source); samples "
            "by number need __getitem__"
        )

    decode = preprocess = read

    @property
    def _goes_once(self) -> bool:
        return hasattr(self._value, "__next__")

    def _pass(
        self, epoch: int, begin: Callable[[Any], Iterator[Any]] = iter
    ) -> Iterator[NamedArrays]:
        value = self._value
        if epoch and self._goes_once:
            value = self._opener.open()
        for each in (value, getattr(value, "sampler", None)):
            set_epoch = getattr(each, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)
        what = "batch" if self._batched else "sample"
        for number, item in enumerate(begin(value)):
            yield named_arrays(item, where=f"{what} {number} of {self._opener.name}")

    def _pass_without_end(self, epoch: int) -> Iterator[NamedArrays]:
        while True:
            item = None
            for item in self._pass(epoch):
                yield item
            if item is None:
                raise SampleError(
                    f"{self._opener.name}: pass {epoch} has no samples; it can be gone through "
                    f"{epoch} times"
                )
            epoch += 1

    def _n_samples(self) -> int:
        """Return the samples of one pass; 0 where that is not sure."""
        value = self._value
        if self._ring is not None:
            return int(self._ring.n_samples)
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

    def __getstate__(self) -> dict[str, Any]:
        raise SampleError(f"{self._opener.name}: a stream stays in its process")


def _own_loader(value: Any) -> Any:
    """Return the loader of iobench's that something is, or whose batches it hands on, or None."""
    ring = sys.modules.get("iobench.loaders.ring.loader")
    if ring is None:
        return None
    if is_data_loader(value):
        value = getattr(value.dataset, "loader", None)
    elif not isinstance(value, ring.RingLoader):
        value = getattr(value, "__dict__", {}).get("_iobench_loader")
    return value if isinstance(value, ring.RingLoader) else None


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
