"""What a dataset is to iobench: where its files are, what its samples are, three steps to one.

A dataset never sees the recorder: whoever calls ``read``, ``decode`` and ``preprocess`` times
them. See ``plugins/README.md`` for how to write one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Protocol,
    TypeVar,
    overload,
    runtime_checkable,
)

import msgspec
from numpy.typing import NDArray

from iobench.coordinates import SampleLabels
from iobench.errors import OptionError, UnknownNameError

if TYPE_CHECKING:
    from iobench.datasets.locate import Locator
    from iobench.samples import Sample, SampleSpec

T = TypeVar("T")
Where = Any
"""Where a sample's bytes are: any small picklable value that the dataset's ``read`` understands."""
Raw = Any
"""Bytes-like objects, as read from storage, in the order ``decode`` expects; where samples share
what is decoded, `iobench.samples.SharedBytes` of them."""
Arrays = Mapping[str, NDArray[Any]]
Progress = Callable[[int, int], None]  # called with (done, total) as long work goes on


def no_progress(done: int, total: int) -> None:
    """Show nothing."""


class PublishedStep(msgspec.Struct, frozen=True):
    """One training step as published, of ``batches_per_step`` batches: the default compute."""

    forward_ns: int
    backward_ns: int
    batch_size: int
    source: str
    # min, mean, median, max and standard deviation of exposed I/O, in seconds
    exposed_io_s: tuple[float, float, float, float, float] | None = None
    # of the sample it was published for, 0 where unknown: samples of another size scale the time
    sample_nbytes: int = 0
    # further rows of the same five figures, by source and by key: ``batch``, ``I/O``
    tables: Mapping[str, Mapping[str, tuple[float, float, float, float, float]]] = msgspec.field(
        default_factory=dict
    )
    batches_per_step: int = 1


class SampleAxis(msgspec.Struct, frozen=True):
    """A dimension that samples are along, and where each of them lies on it, as `SampleIndex`.

    Samples of one row differ in this dimension alone.
    """

    name: str  # ``""`` where the dataset does not say
    positions: Sequence[float] = ()
    units: str = ""
    rows: Sequence[int] = ()


class LazySequence(Sequence[T], Generic[T]):
    """A sequence whose items follow from their numbers: millions of samples fit in a pickle."""

    __slots__ = ("_compute", "_length")

    def __init__(self, length: int, compute: Callable[[int], T]) -> None:
        self._length = length
        self._compute = compute

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        numbers = range(self._length)[index]
        if isinstance(numbers, range):
            return [self._compute(number) for number in numbers]
        return self._compute(numbers)


class SampleIndex(msgspec.Struct, frozen=True):
    """The samples of a dataset."""

    spec: SampleSpec  # what ``preprocess`` returns for each of them
    where: Sequence[Where]  # one entry per sample, given to ``read``
    splits: Mapping[str, Sequence[int]] = msgspec.field(default_factory=dict)  # sample numbers
    coordinate: Sequence[str] = ()  # one name per sample (a date, a time step), for messages
    # Where each sample lies along the sample dimension, which windows are laid over: seconds since
    # 1970 (or months: `time_positions`), numbers of another coordinate, or counts. Strictly
    # ascending or descending within a row; empty where the samples are in none.
    positions: Sequence[float] = ()
    position_units: str = ""  # ``"seconds"``, ``"months"``, the coordinate's own, or nothing
    # Which row each sample lies in, where there are several, as of forecasts that each have the
    # same lead times. A window stays within one.
    rows: Sequence[int] = ()
    axes: Sequence[SampleAxis] = ()  # instead, of several dimensions, the slowest first
    # JSON-ready facts about the source that a store made from it keeps
    provenance: Mapping[str, Any] = msgspec.field(default_factory=dict)
    meteorology: SampleLabels = msgspec.field(default_factory=SampleLabels)  # a store keeps it

    def __len__(self) -> int:
        return len(self.where)

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions that samples are along, the slowest first; empty where nobody says."""
        if self.axes:
            return tuple(axis.name for axis in self.axes)
        named = str(self.provenance.get("sample_dim") or "")
        return self.meteorology.sample_dims or tuple(filter(None, named.split(",")))

    def along(self, dim: str = "") -> SampleAxis:
        """Return where samples lie along one of their dimensions, the only one by default."""
        dims = self.dims
        if not dim and len(dims) > 1:
            raise OptionError(f"samples are along {', '.join(dims)}: name one of them")
        if dim and dim not in dims:
            there = f"they are along {', '.join(dims)}" if dims else f"leave {dim}= out"
            raise UnknownNameError(f"samples are not along {dim!r}; {there}")
        if self.axes:
            return self.axes[dims.index(dim) if dim else 0]
        name = dims[0] if dims else ""
        return SampleAxis(name, self.positions, self.position_units, self.rows)


class Dataset(Protocol):
    """What one sample is and how to get it. Picklable; deterministic.

    ``files`` and ``samples`` are called once, in that order, in the main process; what they learn
    travels to the workers inside the pickle. The entry point is a factory that takes the user's
    options as keyword arguments of type str and raises ``OptionError`` for wrong ones.

    A class may also have

    - ``source_name``: instead of ``name`` what the plan of a store has, where names depend on the
      place;
    - ``keeps_decoded``: samples are what ``decode`` returns, which takes ``out`` as well: rows of a
      batch by name, to be filled. ``read_to(address, out)`` may read numbers there as they lie;
    - ``thread_safe``: threads may call the three steps at once, and a conversion uses all cores;
    - ``chunks_of(address)``: returns the chunks that a sample takes, each with its variable, an
      `iobench.chunks.sampled_variable.SampledVariable` that is the same object for all samples of a
      file; none where samples are made one by one. Addresses begin with the number of a file and
      the index along each sample dimension. A conversion decodes each chunk once;
    - ``upstream(files, index, *, batch_size)``: returns the `Baseline` of ``--pipeline upstream``
      over what ``files`` and ``samples`` returned; ``batch_size`` is for what makes batches;
    - ``chunk_cache``: the `DecodedChunks` it reads through, told the order of samples by loaders.
    """

    name: str  # as given on the command line
    title: str  # one line saying what it is, ``""`` for users' own files
    # adjacent steps this source cannot separate, e.g. ``("read", "decode")``: the first of them
    # does the work of all and the others are not called
    fused: tuple[str, ...]
    published: PublishedStep | None

    def files(self, locator: Locator) -> list[Path]:
        """Return the existing files the samples need, or raise MissingFileError listing all."""
        ...

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return the samples these files hold; raise FileFormatError rather than skip one."""
        ...

    def read(self, where: Where) -> Raw:
        """Return the sample's bytes from storage, undecoded."""
        ...

    def decode(self, raw: Raw, where: Where) -> Arrays:
        """Return the arrays these bytes hold; ``where`` is what ``read`` was given for them."""
        ...

    def preprocess(self, arrays: Arrays, where: Where) -> Sample:
        """Return the sample, as the spec says."""
        ...


STEPS: Final = ("read", "decode", "preprocess")


def sample_steps(dataset: Dataset) -> list[tuple[str, Callable[..., Any]]]:
    """Return what makes a sample, in order, each with its name; fused ones as ``read+decode``."""
    fused = tuple(dataset.fused)
    names = [name for name in STEPS if name not in fused[1:]]
    return [("+".join(fused) if name in fused else name, getattr(dataset, name)) for name in names]


def make_sample(dataset: Dataset, where: Where) -> Sample:
    """Return one sample of a dataset, through all its steps."""
    given: tuple[Any, ...] = (where,)
    for _, step in sample_steps(dataset):
        given = (step(*given), where)
    sample: Sample = given[0]
    return sample


@runtime_checkable
class Synthesizer(Protocol):
    """Optional second face of a dataset: writes a faithful stand-in for files not at hand.

    It may have a ``stand_in_name``: instead of ``name`` what stand-ins are told apart by.
    """

    name: str
    synthesis_version: int  # counts up when the same seed gives other bytes: older ones are left

    def stand_in_files(
        self, *, scale: float | None, tiny: bool, seed: int
    ) -> Mapping[str, Callable[[Path], None]]:
        """Return what writes each file, picklable, by its path in the mirror layout, with ``/``.

        ``scale`` is the share of samples (dates, years, files), None the profile's default; the
        sample's own bytes stay. ``tiny`` takes the small sizes meant for tests. Same arguments,
        same bytes.
        """
        ...


PIPELINES: Final = ("own", "upstream")
"""What ``--pipeline`` chooses from: our readers; a plain loop of xarray or tf.data."""


class SamplePasses(msgspec.Struct, frozen=True):
    """Samples, or whole batches, that can only be iterated over, pass after pass."""

    spec: SampleSpec  # of one sample
    # ``items(epoch)`` returns an iterable of one pass: each item is a dict of arrays as the spec
    # says or, where ``batched``, the same with a leading axis
    items: Callable[[int], Iterable[Any]]
    # samples of one pass; 0 where that is not known, and the pass has no end
    n_samples_all: int = 0
    batched: bool = False  # whether items are batches; the last of a pass may be shorter
    # ``"tensorflow"`` where tf.data makes the items, whose threads are then observed
    framework: str = ""


class Baseline(msgspec.Struct, frozen=True):
    """One way to load a dataset's samples beside our reader."""

    pipeline: SamplePasses | Dataset  # a dataset makes the samples of our reader's index
    source: str  # what it does, and what of it is assumed; one or two sentences for reports
