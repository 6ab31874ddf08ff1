"""What a dataset is to iobench: where its files are, what its samples are, three steps to one.

A dataset never sees the recorder: whoever calls ``read``, ``decode`` and ``preprocess`` times
them. See ``plugins/README.md`` for how to write one.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import msgspec
from numpy.typing import NDArray

from iobench.coordinates import SampleLabels
from iobench.errors import IobenchError, OptionError, UnknownNameError

if TYPE_CHECKING:
    from iobench.chunks.chunked_fields import SharedChunks
    from iobench.chunks.chunked_variable import Place
    from iobench.chunks.sampled_variable import SampledVariable
    from iobench.samples import Sample, SampleSpec

Where = Any
"""Where a sample's bytes are: any small picklable value that the dataset's ``read`` understands."""
Raw = Any
"""Bytes-like objects, as read from storage, in the order ``decode`` expects; where samples share
what is decoded, `iobench.samples.SharedBytes` of them."""
Arrays = Mapping[str, NDArray[Any]]
RunJobs = Callable[[Iterable[Callable[[], None]]], None]
"""Runs jobs that may run at once, in threads or not; returns when all are done, raises what one
raised. The jobs are taken as they come: an iterable of a million is not listed first."""
Progress = Callable[[int, int], None]
"""Called with (done, total) as long work goes on."""


def no_progress(done: int, total: int) -> None:
    """Show nothing."""


class PublishedStep(msgspec.Struct, frozen=True):
    """One training step as published: the default compute stage of a profile.

    ``forward_ns`` and ``backward_ns`` are for one step, of ``batches_per_step`` batches of
    ``batch_size`` samples.
    """

    forward_ns: int
    backward_ns: int
    batch_size: int
    source: str
    # min, mean, median, max and standard deviation of exposed I/O, in seconds
    exposed_io_s: tuple[float, float, float, float, float] | None = None
    # of the sample it was published for, 0 where unknown: samples of another size scale the time
    sample_nbytes: int = 0
    # further rows of the same five figures, by source and by key (``epoch``, ``batch``,
    # ``forward``, ``backward``, ``I/O``)
    tables: Mapping[str, Mapping[str, tuple[float, float, float, float, float]]] = msgspec.field(
        default_factory=dict
    )
    batches_per_step: int = 1
    evaluation_ns: int = 0  # of a batch of an evaluation, 0 where unknown


class SampleAxis(msgspec.Struct, frozen=True):
    """A dimension that samples are along, and where each of them lies on it, as `SampleIndex`.

    Samples of one row differ in this dimension alone.
    """

    name: str  # ``""`` where the dataset does not say
    positions: Sequence[float] = ()
    units: str = ""
    rows: Sequence[int] = ()


class SampleIndex(msgspec.Struct, frozen=True):
    """The samples of a dataset.

    Parameters
    ----------
    spec : SampleSpec
        What ``preprocess`` returns for each of them.
    where : sequence of Where
        One entry per sample, given to ``read``.
    splits : mapping of str to sequence of int
        Sample numbers by split name, e.g. ``{"train": range(18)}``; may be empty.
    coordinate : sequence of str
        One name per sample (a date, a time step), for messages.
    positions : sequence of float
        Where each sample lies along the sample dimension; what windows are laid over. Of a time,
        seconds since 1970 (or months, where steps are months or years: `time_positions`); of
        another coordinate, its numbers; counts where there is none. Strictly ascending or strictly
        descending within a row. Empty where the samples are in no such row.
    position_units : str
        The unit of all positions: ``"seconds"``, ``"months"``, the coordinate's own, or nothing.
    rows : sequence of int
        Which row each sample lies in, where there are several: forecasts that each have the same
        lead times, runs that overlap. A window stays within one. Empty: all in one.
    axes : sequence of SampleAxis
        Where samples are along several dimensions, each of these, the slowest first; ``positions``
        and ``rows`` are empty then. See `along`.
    provenance : mapping
        JSON-ready facts about the source that a store made from it keeps: files with size and
        mtime excluded, schema, options, normalisation.
    meteorology : SampleLabels
        Coordinates and attributes; what the samples are along. A store keeps it.
    """

    spec: SampleSpec
    where: Sequence[Where]
    splits: Mapping[str, Sequence[int]] = msgspec.field(default_factory=dict)
    coordinate: Sequence[str] = ()
    positions: Sequence[float] = ()
    position_units: str = ""
    rows: Sequence[int] = ()
    axes: Sequence[SampleAxis] = ()
    provenance: Mapping[str, Any] = msgspec.field(default_factory=dict)
    meteorology: SampleLabels = msgspec.field(default_factory=SampleLabels)

    def __len__(self) -> int:
        return len(self.where)

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions that samples are along, the slowest first; empty where nobody says."""
        if self.axes:
            return tuple(axis.name for axis in self.axes)
        named = self.provenance.get("sample_dim")
        told = tuple(named.split(",")) if isinstance(named, str) else ()
        return self.meteorology.sample_dims or told

    def along(self, dim: str = "") -> SampleAxis:
        """Return where samples lie along one of their dimensions, the only one by default."""
        dims = self.dims
        if not dim and len(dims) > 1:
            raise OptionError(f"samples are along {', '.join(dims)}: name one of them")
        if dim and not dims:
            raise UnknownNameError(
                f"the sample dimension of this dataset is unknown; leave {dim}= out"
            )
        if dim and dim not in dims:
            near = difflib.get_close_matches(dim, dims, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UnknownNameError(
                f"samples are not along {dim!r}; {hint}they are along {', '.join(dims)}"
            )
        if self.axes:
            return self.axes[dims.index(dim) if dim else 0]
        name = dims[0] if dims else ""
        return SampleAxis(name, self.positions, self.position_units, self.rows)


@runtime_checkable
class Locator(Protocol):
    """Finds files by the URL they are published under."""

    stand_in: bool
    cache_dir: Path
    """Where what is learnt of files is kept (`iobench.datasets.catalogued`)."""
    progress: Progress

    def find(self, urls: Sequence[str]) -> list[Path | None]:
        """Return for each URL the local file that holds it, or None."""
        ...

    def searched(self) -> str:
        """Return where ``find`` looks, in words, for error messages."""
        ...


class Dataset(Protocol):
    """What one sample is and how to get it. Picklable; deterministic.

    ``files`` and ``samples`` are called once, in that order, in the main process; what they learn
    travels to the workers inside the pickle (large arrays as paths, not values). The entry point
    is a factory that takes the user's options as keyword arguments of type str and raises
    ``OptionError`` or ``UnknownNameError`` for wrong ones.

    Attributes
    ----------
    name : str
        As given on the command line.
    title : str
        One line saying what it is, ``""`` for users' own files.
    fused : tuple of str
        Names of adjacent steps this source cannot separate, e.g. ``("read", "decode")``: the
        first of them does the work of all and the others are not called. Empty: all separate.
    published : PublishedStep or None
        The published step time, if any.
    source_name : str, optional
        Instead of ``name`` what the plan of a store has, where names depend on the place.
    keeps_decoded : bool, optional
        True: samples are what ``decode`` returns, which takes ``out`` as well: rows of a batch by
        name, to be filled.
    thread_safe : bool, optional
        True: threads may call the three steps at once, and a conversion uses all cores. Without
        it they are called by one thread at a time.
    """

    name: str
    title: str
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


STEPS: Final = {
    "read": "where",
    "decode": "raw, where",
    "preprocess": "arrays, where",
}
"""The arguments of the methods that make samples."""
_checked: set[type] = set()


def check_steps(dataset: Dataset) -> None:
    """Raise IobenchError where a dataset's methods do not take what they are given."""
    kind = type(dataset)
    if kind in _checked:
        return
    for name, arguments in STEPS.items():
        if (method := getattr(dataset, name, None)) is None:
            continue
        signature = inspect.signature(method)
        try:
            signature.bind(*arguments.split(", "))
        except TypeError as error:
            raise IobenchError(
                f"{kind.__module__}.{kind.__qualname__}: {name}{signature} is not what iobench "
                f"calls; write def {name}(self, {arguments}), as plugins/README.md shows"
            ) from error
    _checked.add(kind)


def sample_steps(dataset: Dataset) -> list[tuple[str, Callable[..., Any]]]:
    """Return what makes a sample, in order, each with its name; fused ones as ``read+decode``.

    The first takes where the sample is; the others what the one before returned, and where.
    """
    check_steps(dataset)
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
class ChunkedDataset(Protocol):
    """Optional face of a dataset whose samples are parts of stored variables, in chunks.

    A conversion reads and decodes each chunk once for all samples that share it. Addresses begin
    with the number of a file and the index along each of its sample dimensions.
    """

    def chunks_of(self, address: Where) -> Sequence[tuple[SampledVariable, Place]]:
        """Return the chunks that a sample takes of each variable it decodes.

        The variables are the same objects for all samples of a file. None at all: samples are made
        one by one.
        """
        ...


@runtime_checkable
class PlannedDataset(Protocol):
    """Optional face of a dataset that keeps decoded chunks by the order of samples."""

    @property
    def has_chunks(self) -> bool:
        """Whether its files have any, known once `samples` has run."""
        ...

    def expect(self, where: Sequence[Where], *, follows: bool) -> None:
        """Say which samples will be asked for, after those said before, or instead of them."""
        ...

    def chunking(self) -> SharedChunks | None:
        """Return the variable whose chunks hold most for a sample; None where none is shared."""
        ...


@runtime_checkable
class Synthesizer(Protocol):
    """Optional second face of a dataset: writes a faithful stand-in for files not at hand.

    Attributes
    ----------
    synthesis_version : int
        Counts up when the same seed gives other bytes: older stand-ins are not reused.
    stand_in_name : str, optional
        Instead of ``name`` what stand-ins are told apart by, where their files depend on options.
    """

    name: str
    synthesis_version: int

    def synthesis_nbytes(self, *, scale: float | None, tiny: bool) -> int:
        """Return the bytes ``synthesize`` will write."""
        ...

    def synthesize(
        self,
        root: Path,
        *,
        scale: float | None,
        tiny: bool,
        seed: int,
        progress: Progress = no_progress,
    ) -> list[Path]:
        """Write the stand-in under ``root`` in the mirror layout and return its files.

        ``scale`` is the share of samples (dates, years, files), None the profile's default; the
        sample's own bytes stay. ``tiny`` takes the small sizes meant for tests. Same arguments,
        same bytes.
        """
        ...
