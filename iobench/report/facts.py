"""What ``run.json`` says of a run, typed; None where it says nothing, or in another type."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from iobench.json_keys import HIDDEN, figure
from iobench.storage.limits.figures import read_limits

if TYPE_CHECKING:
    from iobench.analysis.figures import LoaderExposure
    from iobench.storage.limits.figures import StorageLimits

__all__ = ["PUBLISHED_FIGURES", "ChunkFacts", "RunFacts"]

T = TypeVar("T")
OWN: Final = "own"
SCRIPT: Final = "script"
FILE_KINDS: Final = ("NetCDF", "Zarr", "GRIB")
PUBLISHED_FIGURES: Final = ("min", "mean", "median", "max", "stdev")


@dataclass(frozen=True, slots=True)
class ChunkFacts:
    """How the variable of a source is cut of which chunks hold most for a sample.

    Parameters
    ----------
    variable, sample_dim : str
    dims : tuple of str
    shape, chunk : tuple of int
        Of the variable in one file, and of its chunks.
    targets, options : tuple of str
        The files as they were named, and what says which samples they hold.
    """

    variable: str
    sample_dim: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    targets: tuple[str, ...]
    options: tuple[str, ...]

    @property
    def spelled(self) -> str:
        """The chunks, as ``6 x 5 x 91 x 180``."""
        return " x ".join(map(str, self.chunk))

    @property
    def fitting(self) -> str:
        """The chunks that hold one sample and nothing else."""
        lengths = zip(self.dims, self.shape, strict=True)
        return " x ".join(str(1 if dim == self.sample_dim else n) for dim, n in lengths)

    @property
    def command(self) -> str:
        """What writes each sample as one chunk."""
        return shlex.join(
            ["iobench", "convert", *self.targets, "samples.zarr", "--to", "zarr", *self.options]
        )

    @classmethod
    def from_config(cls, told: Mapping[str, Any]) -> Self | None:
        """Read what ``run.json`` says; None where that is nothing, or of other types."""
        texts = [_typed(told.get(name), str) for name in ("variable", "sample_dim")]
        dims, targets = _texts(told.get("dims")), _texts(told.get("targets"))
        options = _texts(told.get("options")) or ()
        shape, chunk = _counts(told.get("shape")), _counts(told.get("chunk"))
        if dims is None or targets is None or shape is None or chunk is None:
            return None
        if not (texts[0] and texts[1] and len(dims) == len(shape) == len(chunk)):
            return None
        return cls(texts[0], texts[1], dims, shape, chunk, targets, options)


@dataclass(frozen=True, slots=True)
class EmulatedStep:
    """The training step that was emulated by waiting; unknown of a training of the user's own.

    Parameters
    ----------
    step_ns, forward_ns, backward_ns : int or None
        Its time, and that of its two halves.
    source : str or None
        Where that time is from.
    """

    step_ns: int | None
    forward_ns: int | None
    backward_ns: int | None
    source: str | None


@dataclass(frozen=True, slots=True)
class PublishedWait:
    """What was published of the wait of a step.

    Parameters
    ----------
    source : str or None
        Where it stands.
    exposed_io_s : mapping of str to float
        The exposed I/O of a step in seconds: `PUBLISHED_FIGURES`.
    """

    source: str | None
    exposed_io_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """The page cache before the run.

    Parameters
    ----------
    asked : str or None
        What was asked for: ``"as-is"``, ``"warm"`` or ``"cold"``.
    resident_fraction_before : float or None
        Share of the files in the page cache when the run began.
    cold_known : bool or None
        Whether the file system tells what came from the device.
    """

    asked: str | None
    resident_fraction_before: float | None
    cold_known: bool | None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The configuration of a run, as far as reports show it.

    Parameters
    ----------
    dataset, format, framework : str or None
        By name.
    threads : int
        Reader threads of the ring; 0 where there was none.
    pipeline : str
        Whose code loaded it: ``"own"``, ``"upstream"`` or ``"climetlab"``; unknown of scripts.
    described_by : str
        Where a pipeline that is not our own is described.
    stand_in : bool or None
        Whether the files were generated.
    tiny : bool
        Whether they are the small ones of the tests.
    batch_size, n_samples, sample_nbytes : int or None
        Samples of a batch; samples it could draw from; bytes of one sample.
    forward_ns, backward_ns : int or None
        Emulated time of a training step; None where the training loop is the user's own.
    compute_source : str or None
        Where that time is from.
    published_s : mapping of str to float, or None
        The published exposed I/O of a step in seconds: `PUBLISHED_FIGURES`.
    published_source : str or None
    cache_asked : str or None
        ``"as-is"``, ``"warm"`` or ``"cold"``.
    resident_fraction_before : float or None
        Share of the files in the page cache when the run began.
    cold_known : bool or None
        Whether the file system tells what came from the device.
    setup_s : mapping of str to float
        Seconds spent once before the run, by what for.
    store : mapping or None
        ``path, probe, reused, convert_s, nbytes, n_samples, n_samples_all`` of the store that
        was read; the last is the number of samples of the whole dataset.
    machine : mapping
        Processors, memory and versions, as found when the run began.
    iobench_version : str or None
        That recorded it.
    command : str or None
        What was run.
    files_hint : str or None
        Where its files are from.
    own_label : str or None
        What it is called where its format does not tell it from others.
    is_script : bool
        Whether it is of a user's own script: then what `from_config` cannot know of its loaders
        is filled in by `with_loaders`.
    launcher : str
        Who started the training processes, ``""`` where nobody is known.
    steps : tuple of int or None
        First step recorded, and the first one not; None where all were.
    storage_limits : tuple of StorageLimits
        What ``iobench limits`` had found of the storage when the run was made.
    mounts : tuple of str or None
        Of a script: the mount points then, by which its files are told to lie on one.
    chunks : ChunkFacts or None
        How the source is cut into chunks, where several samples share one.
    source_kind : str or None
        Of users' own files ``"NetCDF"``, ``"Zarr"`` or ``"GRIB"``.
    """

    dataset: str | None
    format: str | None
    framework: str | None
    threads: int
    pipeline: str = field(metadata=HIDDEN)
    described_by: str
    stand_in: bool | None
    tiny: bool
    batch_size: int | None
    n_samples: int | None
    sample_nbytes: int | None
    forward_ns: int | None = field(metadata=HIDDEN)
    backward_ns: int | None = field(metadata=HIDDEN)
    compute_source: str | None = field(metadata=HIDDEN)
    published_s: Mapping[str, float] | None = field(metadata=HIDDEN)
    published_source: str | None = field(metadata=HIDDEN)
    cache_asked: str | None = field(metadata=HIDDEN)
    resident_fraction_before: float | None = field(metadata=HIDDEN)
    cold_known: bool | None = field(metadata=HIDDEN)
    setup_s: Mapping[str, float]
    store: Mapping[str, Any] | None
    machine: Mapping[str, Any]
    iobench_version: str | None
    command: str | None
    files_hint: str | None
    own_label: str | None = field(default=None, metadata=HIDDEN)
    is_script: bool = field(default=False, metadata=HIDDEN)
    launcher: str = field(default="", metadata=HIDDEN)
    steps: tuple[int, int] | None = None
    storage_limits: tuple[StorageLimits, ...] = field(default=(), metadata=HIDDEN)
    mounts: tuple[str, ...] | None = field(default=None, metadata=HIDDEN)
    chunks: ChunkFacts | None = field(default=None, metadata=HIDDEN)
    source_kind: str | None = field(default=None, metadata=HIDDEN)

    @figure.named("pipeline")
    def known_pipeline(self) -> str | None:
        """Whose code loaded it: ``"own"``, ``"upstream"`` or ``"climetlab"``; null of scripts."""
        return None if self.is_script else self.pipeline

    @figure
    def kind(self) -> str:
        """What was recorded: ``"script"``, else ``"profile"``."""
        return SCRIPT if self.is_script else "profile"

    @figure
    def compute(self) -> EmulatedStep:
        """The emulated training step."""
        return EmulatedStep(self.step_ns, self.forward_ns, self.backward_ns, self.compute_source)

    @figure
    def published(self) -> PublishedWait | None:
        """The published wait of a step."""
        if self.published_s is None:
            return None
        return PublishedWait(self.published_source, self.published_s)

    @figure
    def cache(self) -> CacheFacts:
        """The page cache: what was asked for and what was found."""
        return CacheFacts(self.cache_asked, self.resident_fraction_before, self.cold_known)

    def with_loaders(self, loaders: Sequence[LoaderExposure]) -> Self:
        """Return these facts with what loaders of a script have in common."""
        used = [each for each in loaders if each.n_batches] or list(loaders)
        return replace(
            self,
            dataset=self.dataset or _common(each.name or None for each in used),
            framework=self.framework or _common(each.framework or None for each in used),
            batch_size=self.batch_size or _common(each.batch_size for each in used),
            threads=self.threads or _common(each.threads for each in used) or 0,
        )

    @property
    def label(self) -> str | None:
        """What the run is called among others: its format, or a pipeline that is not our own.

        Where several frameworks are compared it has a name of its own.
        """
        return self.own_label or (self.format if self.pipeline == OWN else self.pipeline)

    @property
    def step_ns(self) -> int | None:
        """Emulated time of a step; None where nothing was emulated."""
        if self.forward_ns is None or self.backward_ns is None:
            return None
        return self.forward_ns + self.backward_ns

    @property
    def convert_s(self) -> float | None:
        """Seconds the conversion of the store took; None where it was there already."""
        return _typed((self.store or {}).get("convert_s"), float)

    @property
    def store_nbytes(self) -> int | None:
        """Size of the store."""
        return _typed((self.store or {}).get("nbytes"), int)

    @property
    def store_n_samples(self) -> int | None:
        """Samples in the store; None for a run on the original files, or an empty store."""
        return _typed((self.store or {}).get("n_samples"), int) or None

    @property
    def n_samples_all(self) -> int | None:
        """Samples of the dataset the store was made from."""
        return _typed((self.store or {}).get("n_samples_all"), int)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read the values of a ``run.json``."""
        compute = _mapping(config.get("compute"))
        published_s, published_source = _published_io(config)
        cache = _mapping(config.get("cache"))
        stand_in = _typed(config.get("stand_in"), bool)
        kind = config.get("source_kind")  # objects of the user's own have kinds as well
        return cls(
            dataset=_typed(config.get("dataset"), str),
            format=_typed(config.get("format"), str),
            framework=_typed(config.get("framework"), str),
            threads=_typed(config.get("threads"), int) or 0,
            pipeline=_typed(config.get("pipeline"), str) or OWN,
            described_by=_typed(config.get("described_by"), str) or "",
            stand_in=stand_in,
            tiny=bool(stand_in) and config.get("tiny") is True,
            batch_size=_typed(config.get("batch_size"), int),
            n_samples=_typed(config.get("n_samples"), int),
            sample_nbytes=_typed(config.get("sample_nbytes"), int),
            forward_ns=_typed(compute.get("forward_ns"), int),
            backward_ns=_typed(compute.get("backward_ns"), int),
            compute_source=_typed(compute.get("source"), str),
            published_s=published_s,
            published_source=published_source,
            cache_asked=_typed(cache.get("asked"), str),
            resident_fraction_before=_typed(cache.get("resident_fraction_before"), float),
            cold_known=_typed(config.get("cold_known"), bool),
            setup_s={
                what: float(value)
                for what, value in _mapping(config.get("setup")).items()
                if isinstance(value, int | float)
            },
            store=_mapping(config.get("store")) or None,
            machine=_mapping(config.get("machine")),
            iobench_version=_typed(config.get("iobench_version"), str),
            command=_typed(config.get("command"), str) or None,
            files_hint=_typed(config.get("files_hint"), str) or None,
            own_label=_typed(config.get("label"), str) or None,
            is_script=config.get("kind") == SCRIPT,
            launcher=_typed(config.get("launcher"), str) or "",
            steps=_steps(config.get("steps")),
            storage_limits=tuple(read_limits(config.get("storage_limits"))),
            mounts=_texts(config.get("mounts")),
            source_kind=kind if kind in FILE_KINDS else None,
            chunks=ChunkFacts.from_config(_mapping(config.get("chunks"))),
        )


def _common(values: Iterable[T | None]) -> T | None:
    """Return the value all have; None where they differ, or there is none."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _steps(value: object) -> tuple[int, int] | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    first, end = value
    return (first, end) if isinstance(first, int) and isinstance(end, int) else None


def _counts(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        return None
    return tuple(value)


def _texts(value: object) -> tuple[str, ...] | None:
    return tuple(map(str, value)) if isinstance(value, list) else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _typed(value: object, kind: type[T]) -> T | None:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if isinstance(value, bool) and kind is not bool:
        return None
    return value if isinstance(value, kind) else None


def _published_io(config: Mapping[str, Any]) -> tuple[Mapping[str, float] | None, str | None]:
    """Return the published exposed I/O of a run's own framework, and where it stands.

    A table is of a framework that its name holds; where there is none, what was published of the
    dataset first.
    """
    published = _mapping(config.get("published"))
    first = _published(published.get("exposed_io_s"))
    framework = _typed(config.get("framework"), str)
    for source, table in _mapping(published.get("tables")).items():
        own = _published(_mapping(table).get("I/O"))
        if own and own != first and framework and framework.lower() in str(source).lower():
            return own, str(source)
    return first, _typed(published.get("source"), str)


def _published(value: object) -> Mapping[str, float] | None:
    if not isinstance(value, list | tuple) or len(value) != len(PUBLISHED_FIGURES):
        return None
    if not all(isinstance(figure, int | float) for figure in value):
        return None
    return dict(zip(PUBLISHED_FIGURES, map(float, value), strict=True))
