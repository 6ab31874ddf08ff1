"""What ``run.json`` says of a run, as one typed value that everybody reads."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, Self, TypeVar

import msgspec
from msgspec.structs import replace

from iobench.errors import ProfileError
from iobench.json_files import read_fields
from iobench.json_keys import HIDDEN, figure
from iobench.recording.script_run import ScriptCommit  # noqa: TC001 - read_fields asks

if TYPE_CHECKING:
    from iobench.recording.facts import ProcessFacts

T = TypeVar("T")
Five = tuple[float, float, float, float, float]
OWN: Final = "own"
SCRIPT: Final = "script"
LONGEST_S: Final = 1e9
FILE_KINDS: Final = ("NetCDF", "Zarr", "GRIB")
PUBLISHED_FIGURES: Final = ("min", "mean", "median", "max", "stdev")


class ChunkFacts(msgspec.Struct, frozen=True):
    """How the variable of a source is cut of which chunks hold most for a sample.

    Parameters
    ----------
    variable, sample_dim : str
        The latter with commas between several.
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
    options: tuple[str, ...] = ()

    @property
    def spelled(self) -> str:
        """The chunks, as ``6 x 5 x 91 x 180``."""
        return " x ".join(map(str, self.chunk))

    @property
    def fitting(self) -> str:
        """The chunks that hold one sample and nothing else."""
        lengths = zip(self.dims, self.shape, strict=True)
        sample_dims = self.sample_dim.split(",")
        return " x ".join(str(1 if dim in sample_dims else n) for dim, n in lengths)

    @property
    def command(self) -> str:
        """What writes each sample as one chunk."""
        return shlex.join(
            ["iobench", "convert", *self.targets, "samples.zarr", "--to", "zarr", *self.options]
        )

    def __post_init__(self) -> None:
        if not (self.variable and self.sample_dim):
            raise ValueError("a variable without name")
        if not len(self.dims) == len(self.shape) == len(self.chunk):
            raise ValueError(f"{self.dims} have no such lengths")


class EmulatedStep(msgspec.Struct, frozen=True):
    """What was waited after each batch in place of its part of a training step.

    Unknown of a training of the user's own.

    Parameters
    ----------
    forward_ns, backward_ns : int or None
        Time of its two halves, for one batch.
    source : str or None
        Where that time is from.
    evaluation_ns : int or None
        Time of a batch of an evaluation; 0 where it is that of ``forward_ns``.
    """

    forward_ns: int | None = None
    backward_ns: int | None = None
    source: str | None = None
    evaluation_ns: int | None = None
    JSON_KEYS: ClassVar = {
        "evaluation_ns": HIDDEN,
    }

    @figure
    def step_ns(self) -> int | None:
        """Its time for one batch; null where nothing was emulated."""
        if self.forward_ns is None or self.backward_ns is None:
            return None
        return self.forward_ns + self.backward_ns


class EvaluatedSamples(msgspec.Struct, frozen=True):
    """What was evaluated after each epoch.

    Parameters
    ----------
    split : str
        The split.
    n_samples : int
        Samples of one evaluation.
    """

    split: str
    n_samples: int


class PublishedWait(msgspec.Struct, frozen=True):
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


class CacheFacts(msgspec.Struct, frozen=True):
    """The page cache before the run.

    Parameters
    ----------
    asked : str or None
        What was asked for: ``"as-is"``, ``"warm"`` or ``"cold"``.
    resident_fraction_before : float or None
        Share of the files in the page cache when the run began.
    cold_known : bool or None
        Whether the file system reports what came from the device.
    """

    asked: str | None = None
    resident_fraction_before: float | None = None
    cold_known: bool | None = None


class StoreFacts(msgspec.Struct, frozen=True):
    """The store that was read.

    Parameters
    ----------
    path : str or None
        Where it lies.
    probe, reused : bool
        Whether it holds a part of the dataset alone; whether it was there already.
    convert_s : float or None
        Seconds its conversion took; unknown where it was there already.
    nbytes : int or None
        Its size.
    n_samples, n_samples_all : int or None
        Samples in it, and in the whole dataset.
    target : str or None
        How it was named where it was given, else where a finished one was found; None of one that
        was made for the profile.
    options : mapping of str to str
        Of its format, as it was converted with.
    lossy : mapping of str to mapping
        Largest errors by variable: ``max_absolute_error``, ``max_relative_error``; empty without
        loss.
    """

    path: str | None = None
    probe: bool = False
    reused: bool = False
    convert_s: float | None = None
    nbytes: int | None = None
    n_samples: int | None = None
    n_samples_all: int | None = None
    target: str | None = None
    options: Mapping[str, str] = msgspec.field(default_factory=dict)
    lossy: Mapping[str, Mapping[str, float]] = msgspec.field(default_factory=dict)


class LinkFacts(msgspec.Struct, frozen=True):
    """What the link to a device was measured to carry, before the run.

    Parameters
    ----------
    pinned_bytes_per_s, pageable_bytes_per_s : float or None
        From memory that the device reads by itself, and from other memory; null where all memory
        goes the first way.
    nbytes : int or None
        Bytes of each copy, as of a batch.
    n : int or None
        How many copies of a sort; the fastest counts.
    large_bytes_per_s : float or None
        From pinned memory in copies that are larger; null where a batch is as large.
    large_nbytes : int or None
        Bytes of those.
    """

    pinned_bytes_per_s: float | None = None
    pageable_bytes_per_s: float | None = None
    nbytes: int | None = None
    n: int | None = None
    large_bytes_per_s: float | None = None
    large_nbytes: int | None = None


class DeviceFacts(msgspec.Struct, frozen=True):
    """The device that batches were copied to.

    Parameters
    ----------
    name : str
        As ``cuda:0``.
    facts : mapping
        What its driver and the system report: ``title``, ``kind``, ``memory_nbytes``, ``driver``,
        ``runtime``, ``mig``, ``link``.
    link : LinkFacts or None
        None where the link was not measured.
    memory : str or None
        What batches are copied from: ``"pinned"`` or ``"pageable"`` memory; None where that is not
        known.
    copied_by : str
        The framework that copied batches there ahead, and does not report what that takes; ``""``
        where iobench did.
    """

    name: str
    facts: Mapping[str, Any] = msgspec.field(default_factory=dict)
    link: LinkFacts | None = None
    memory: str | None = None
    copied_by: str = ""

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """Return a device from what ``run.json`` says of it, or a command that lists devices."""
        return read_fields(cls, told, lenient=True)

    @property
    def title(self) -> str | None:
        """What its maker calls it."""
        told = self.facts.get("title")
        return told if isinstance(told, str) else None


class NearPlace(msgspec.Struct, frozen=True):
    """A folder of this machine alone that files could be staged in.

    Parameters
    ----------
    path, mount, file_system : str
        The folder, and what it lies on.
    in_memory : bool
        Whether that is memory.
    free_nbytes : int
        Room as the run began.
    """

    path: str
    mount: str
    file_system: str
    in_memory: bool
    free_nbytes: int


class NearPlaces(msgspec.Struct, frozen=True):
    """Where files could be staged, and which mounts other machines share.

    Parameters
    ----------
    shared : mapping of str to str
        Mount points of network and FUSE file systems, with their types.
    folder : str or None
        What the files of a profile have in common; None of a script, and of URLs.
    memory_nbytes : int or None
        That was free as the run began.
    """

    places: tuple[NearPlace, ...] = ()
    shared: Mapping[str, str] = msgspec.field(default_factory=dict)
    folder: str | None = None
    memory_nbytes: int | None = None

    def mount_of(self, path: str) -> str | None:
        """Return the shared mount that a path lies on; None where it lies on none."""
        points = sorted([*self.shared, *(each.mount for each in self.places)], key=len)
        at = next((p for p in reversed(points) if PurePath(path).is_relative_to(p)), None)
        return at if at in self.shared else None


class StagedFacts(msgspec.Struct, frozen=True):
    """How the copy that a profile reads was staged.

    Parameters
    ----------
    source : str
        What was copied.
    copied_nbytes, seconds : int, float
        What staging copied, and how long that took.
    """

    source: str = ""
    copied_nbytes: int = 0
    seconds: float = 0.0


class _AskedLoader(Protocol):
    """A loader of a script, as far as facts of its run follow from it."""

    @property
    def name(self) -> str: ...
    @property
    def framework(self) -> str: ...
    @property
    def batch_size(self) -> int | None: ...
    @property
    def threads(self) -> int: ...
    @property
    def n_batches(self) -> int: ...


class RunFacts(msgspec.Struct, frozen=True):
    """What ``run.json`` says of a run, parsed once; what it does not say has the default.

    Parameters
    ----------
    name : str or None
        What its user calls the run.
    commit : ScriptCommit or None
        That of the script; None where it was not looked for.
    versions : mapping of str to str
        Of packages that were imported and read, decode, compute or train, by the name they are
        imported by; of several training processes those of the first one.
    thread_settings : mapping of str to str
        Variables that say how many threads libraries use, and ``affinity``, the CPUs that the
        process may run on; of several training processes those of the first one.
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
    batches_per_step : int or None
        Batches of one step of the optimiser, where that was given.
    compute : EmulatedStep
        The emulated training step.
    published : PublishedWait or None
        The published wait of a step.
    cache : CacheFacts
        The page cache: what was asked for and what was found.
    setup_s : mapping of str to float
        Seconds spent once before the run, by what for.
    store : StoreFacts or None
        The store that was read.
    machine : mapping
        Processors, memory and versions, as found when the run began.
    iobench_version : str or None
        That recorded it.
    command : str or None
        What was run.
    spelled : str or None
        How ``--format`` spells what was loaded, where it was given with options.
    sources : tuple of str or None
        What samples are made of, as it was named; none where stores were all there is, None where
        that was not told.
    files_hint : str or None
        Where its files are from.
    own_label : str or None
        What it is called where its format does not distinguish it.
    is_script : bool
        Whether it is of a user's own script: then what `from_config` cannot know of its loaders
        is filled in by `with_loaders`.
    launcher : str
        Who started the training processes, ``""`` where unknown.
    steps : tuple of int or None
        First step recorded, and the first one not; None where all were.
    storage_limits : object
        What a probe of the run found, for its reader.
    storage_probed : str or None
        When that was, ``before`` or ``after`` the run.
    storage_after : object
        What the probe found after the run.
    no_storage_probe : str or None
        Why the storage could not be probed.
    storage_probe_s : float or None
        What the probes took, which is in no other figure.
    staged_copy : StagedFacts or None
        Of a profile that reads a staged copy, whenever that was made.
    near : NearPlaces or None
        Where its files could be staged.
    chunks : ChunkFacts or None
        How the source is cut into chunks, where several samples share one.
    source_kind : str or None
        Of users' own files ``"NetCDF"``, ``"Zarr"`` or ``"GRIB"``.
    workers, prefetch, world_size : int or None
        Loading processes, batches each may be ahead, and training processes, as configured.
    expected_workers : tuple of str
        Loading processes that have to leave spans, by name.
    keep_nbytes : int or None
        Bytes of spans that are kept one by one.
    unit_costs : mapping of str to float or None, or None
        What a span costs, ns, as `iobench.recording.costs.unit_costs` measured it.
    position : float or None
        Place among the runs of one profile.
    turns : str or None
        The same in all runs of one profile, and in no other; ``""`` of one that was alone, None
        of one made before there was this.
    detail : str or None
        ``auto``, ``sample`` or ``batch``, of scripts.
    digests, own_order : bool
        Whether digests of samples were asked for; whether samples came in an order of the
        loader's own.
    asked : mapping
        What the command line said of the length and the workers; None is what was left out.
    published_tables : mapping of str to mapping of str to tuple of float
        By where it stands and key (``"epoch"``, ``"I/O"``, ...): `PUBLISHED_FIGURES` in seconds.
    files_nbytes, n_samples_all : int or None
        Bytes of the files; samples of the whole dataset.
    title : str or None
        What a named dataset is, and which part of it was taken where it can be chosen.
    evaluated : EvaluatedSamples or None
        What was evaluated after each epoch, of a profile.
    device : DeviceFacts or None
        The device that batches were copied to, of a profile.
    no_device : str or None
        Why there was none.
    """

    name: str | None = None
    commit: ScriptCommit | None = None
    versions: Mapping[str, str] = msgspec.field(default_factory=dict)
    thread_settings: Mapping[str, str] = msgspec.field(default_factory=dict)
    dataset: str | None = None
    format: str | None = None
    framework: str | None = None
    threads: int = 0
    pipeline: str = OWN
    described_by: str = ""
    stand_in: bool | None = None
    tiny: bool = False
    batch_size: int | None = None
    n_samples: int | None = None
    sample_nbytes: int | None = None
    batches_per_step: int | None = None
    compute: EmulatedStep = EmulatedStep()
    published: PublishedWait | None = None
    cache: CacheFacts = CacheFacts()
    setup_s: Mapping[str, float] = msgspec.field(default_factory=dict)
    store: StoreFacts | None = None
    machine: Mapping[str, Any] = msgspec.field(default_factory=dict)
    iobench_version: str | None = None
    command: str | None = None
    spelled: str | None = None
    sources: tuple[str, ...] | None = None
    files_hint: str | None = None
    own_label: str | None = None
    is_script: bool = False
    launcher: str = ""
    steps: tuple[int, int] | None = None
    storage_limits: Any = None
    storage_probed: str | None = None
    storage_after: Any = None
    no_storage_probe: str | None = None
    storage_probe_s: float | None = None
    staged_copy: StagedFacts | None = None
    near: NearPlaces | None = None
    chunks: ChunkFacts | None = None
    source_kind: str | None = None
    workers: int | None = None
    prefetch: int | None = None
    world_size: int | None = None
    expected_workers: tuple[str, ...] = ()
    keep_nbytes: int | None = None
    unit_costs: Mapping[str, float | None] | None = None
    position: float | None = None
    turns: str | None = None
    detail: str | None = None
    digests: bool = False
    own_order: bool = False
    asked: Mapping[str, Any] = msgspec.field(default_factory=dict)
    published_tables: Mapping[str, Mapping[str, Five]] = msgspec.field(default_factory=dict)
    files_nbytes: int | None = None
    n_samples_all: int | None = None
    title: str | None = None
    evaluated: EvaluatedSamples | None = None
    device: DeviceFacts | None = None
    no_device: str | None = None
    JSON_KEYS: ClassVar = {
        "pipeline": HIDDEN,
        "spelled": HIDDEN,
        "sources": HIDDEN,
        "own_label": HIDDEN,
        "is_script": HIDDEN,
        "launcher": HIDDEN,
        "storage_limits": HIDDEN,
        "storage_probed": HIDDEN,
        "storage_after": HIDDEN,
        "no_storage_probe": HIDDEN,
        "storage_probe_s": HIDDEN,
        "staged_copy": HIDDEN,
        "near": HIDDEN,
        "chunks": HIDDEN,
        "source_kind": HIDDEN,
        "workers": HIDDEN,
        "prefetch": HIDDEN,
        "world_size": HIDDEN,
        "expected_workers": HIDDEN,
        "keep_nbytes": HIDDEN,
        "unit_costs": HIDDEN,
        "position": HIDDEN,
        "turns": HIDDEN,
        "detail": HIDDEN,
        "digests": HIDDEN,
        "own_order": HIDDEN,
        "asked": HIDDEN,
        "published_tables": HIDDEN,
        "files_nbytes": HIDDEN,
        "n_samples_all": HIDDEN,
        "title": HIDDEN,
        "no_device": HIDDEN,
    }

    @figure.named("pipeline")
    def known_pipeline(self) -> str | None:
        """Whose code loaded it: ``"own"``, ``"upstream"`` or ``"climetlab"``; null of scripts."""
        return None if self.is_script else self.pipeline

    @figure
    def kind(self) -> str:
        """What was recorded: ``"script"``, else ``"profile"``."""
        return SCRIPT if self.is_script else "profile"

    def with_processes(self, told: Sequence[ProcessFacts], rank: int | None = None) -> Self:
        """Return these facts with what a script's first training process says, or that of a rank.

        ``told`` is of all processes, by rank.
        """
        first = next(
            (each for each in told if each.role == "consumer" and rank in (None, each.rank)), None
        )
        if not self.is_script or first is None:
            return self
        return replace(self, versions=first.versions, thread_settings=first.thread_settings)

    def called(self, what: str) -> str:
        """Return what a title says of it: its name, and what it is of."""
        return f"{self.name} ({what})" if self.name else what

    def with_loaders(self, loaders: Sequence[_AskedLoader]) -> Self:
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
    def layout(self) -> str | None:
        """The format, with the options that it was given, if it was."""
        return self.spelled or self.format

    @figure
    def label(self) -> str | None:
        """What the run is called among others: its format, or a pipeline that is not our own.

        A format with options is called as `--format` spells it, a store that was named by its
        name. Where several frameworks are compared theirs is in it.
        """
        return self.own_label or (self.format if self.pipeline == OWN else self.pipeline)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], path: Path | None = None) -> Self:
        """Read the values of a ``run.json``, that of the run at ``path``.

        Raises
        ------
        ProfileError
            If a value that figures depend on cannot be; others count as not said.
        """
        for name, (sound, expected) in EXPECTED.items():
            value = config.get(name)
            if value is not None and not sound(value):
                file = "run.json" if path is None else path / "run.json"
                raise ProfileError(
                    f"{file}: {name} is {str(value)[:40]!r}, expected {expected}; "
                    "put it right, or measure again"
                )
        told = {name: value for name, value in config.items() if value is not None}
        told |= {
            "setup_s": config.get("setup"),
            "own_label": config.get("label"),
            "is_script": config.get("kind") == SCRIPT,
            # No key, and one that says that it was alone, are not the same.
            "turns": (config["turns"] or "") if "turns" in config else None,
            "tiny": config.get("stand_in") is True and config.get("tiny") is True,
            "published": None,
        }
        found, tables = read_fields(cls, told, lenient=True), _tables(config)
        return replace(
            found,
            # Objects of the user's own have kinds as well.
            source_kind=found.source_kind if found.source_kind in FILE_KINDS else None,
            published=_published_io(config, tables),
            published_tables=tables,
            cache=replace(found.cache, cold_known=config.get("cold_known")),
        )


def _common(values: Iterable[T | None]) -> T | None:
    """Return the value all have; None where they differ, or there is none."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


MOST: Final = 2**40


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_costs(value: object) -> bool:
    return isinstance(value, dict) and all(
        each is None or (type(each) in (int, float) and 0 <= each <= MOST)
        for each in value.values()
    )


COUNT: Final = (_is_count, "a number from 0 on")
EXPECTED: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    "workers": COUNT,
    "prefetch": COUNT,
    "threads": COUNT,
    "batch_size": COUNT,
    "sample_nbytes": COUNT,
    "batches_per_step": (lambda value: _is_count(value) and value != 0, "a number from 1 on"),
    "n_samples": COUNT,
    "world_size": COUNT,
    "keep_nbytes": (lambda value: type(value) is int and value > 0, "a number of bytes"),
    "expected_workers": (_is_texts, "a list of names"),
    "unit_costs": (_is_costs, "nanoseconds by name"),
    "kind": (lambda value: isinstance(value, str), "a word"),
    "cold_known": (lambda value: isinstance(value, bool), "true or false"),
    "position": (lambda value: type(value) in (int, float), "a number"),
}
"""What figures depend on: whether a value can be, and what is expected."""


def _published_io(
    config: Mapping[str, Any], tables: Mapping[str, Mapping[str, Five]]
) -> PublishedWait | None:
    """Return the published exposed I/O of a run's own framework, and where it stands.

    A table is of a framework that its name holds; where there is none, what was published of the
    dataset first.
    """
    published = _mapping(config.get("published"))
    first, framework = _five(published.get("exposed_io_s")), config.get("framework")
    source = published.get("source")
    for name, table in tables.items():
        own = table.get("I/O")
        if own and own != first and framework and str(framework).lower() in name.lower():
            first, source = own, name
            break
    if first is None:
        return None
    figures = dict(zip(PUBLISHED_FIGURES, first, strict=True))
    return PublishedWait(None if source is None else str(source), figures)


def _tables(config: Mapping[str, Any]) -> dict[str, dict[str, Five]]:
    tables = _mapping(_mapping(config.get("published")).get("tables"))
    found = {
        str(source): {
            str(key): five
            for key, value in _mapping(table).items()
            if (five := _five(value)) is not None
        }
        for source, table in tables.items()
    }
    return {source: rows for source, rows in found.items() if rows}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _five(value: object) -> Five | None:
    if not isinstance(value, list | tuple) or len(value) != len(PUBLISHED_FIGURES):
        return None
    if not all(type(each) in (int, float) and 0 <= each <= LONGEST_S for each in value):
        return None
    low, mean, median, high, stdev = map(float, value)
    return low, mean, median, high, stdev
