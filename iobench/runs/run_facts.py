"""What ``run.json`` says of a run, as one typed value that everybody reads."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import msgspec
from msgspec.structs import replace

from iobench.errors import ProfileError
from iobench.recording.epoch_reads import EpochReads  # noqa: TC001 - msgspec asks

if TYPE_CHECKING:
    from iobench.recording.facts import ProcessFacts

Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**57)]
Nbytes = Annotated[int, msgspec.Meta(ge=0, le=2**57)]
Ns = Nbytes
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Five = tuple[Seconds, Seconds, Seconds, Seconds, Seconds]
OWN: Final = "own"
SOURCE: Final = "source"
FILE_KINDS: Final = (
    "NetCDF", "Zarr", "GRIB", "Zarr references", "icechunk", "Parquet", "Arrow", "npz",
)  # fmt: skip
PUBLISHED_FIGURES: Final = ("min", "mean", "median", "max", "stdev")


class ScriptCommit(msgspec.Struct, frozen=True):
    """The commit of the repository that a script lay in; whether files differed is never known."""

    hash: str | None = None  # None if unknown


class ChunkFacts(msgspec.Struct, frozen=True):
    """How the variable of a source is cut of which chunks hold most for a sample."""

    variable: str
    sample_dim: str  # with commas between several
    dims: tuple[str, ...]
    shape: tuple[int, ...]  # of the variable in one file
    chunk: tuple[int, ...]
    targets: tuple[str, ...]  # the files as they were named
    options: tuple[str, ...] = ()  # what says which samples they hold

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
    """What was waited after each batch in place of its part of a training step."""

    forward_ns: Ns | None = None  # for one batch, as backward_ns
    backward_ns: Ns | None = None
    source: str | None = None  # where that time is from

    @property
    def step_ns(self) -> int | None:
        """Its time for one batch; None where nothing was emulated."""
        if self.forward_ns is None or self.backward_ns is None:
            return None
        return self.forward_ns + self.backward_ns


class PublishedWait(msgspec.Struct, frozen=True):
    """What was published of a dataset's step; times as `PUBLISHED_FIGURES`."""

    source: str | None = None  # where it stands
    exposed_io_s: Five | None = None  # of a step
    tables: Mapping[str, Mapping[str, Five]] = msgspec.field(default_factory=dict)

    def of_framework(self, framework: str | None) -> PublishedWait | None:
        """Return what a framework's own table says, else what was published first."""
        for name, table in self.tables.items():
            own = table.get("I/O")
            if own and own != self.exposed_io_s and framework and framework.lower() in name.lower():
                return PublishedWait(name, own)
        return None if self.exposed_io_s is None else self


class CacheFacts(msgspec.Struct, frozen=True):
    """The page cache before the run."""

    state: str | None = msgspec.field(default=None, name="asked")  # as-is, warm or cold
    resident_fraction_before: float | None = None


class StoreFacts(msgspec.Struct, frozen=True):
    """The store that was read."""

    path: str | None = None
    probe: bool = False  # whether it holds a part of the dataset alone
    convert_s: float | None = None
    nbytes: Nbytes | None = None
    n_samples: Count | None = None
    n_samples_all: Count | None = None  # of the whole dataset
    target: str | None = None  # how it was named; None of one made for the profile
    options: Mapping[str, str] = msgspec.field(default_factory=dict)
    lossy: Mapping[str, Mapping[str, float]] = msgspec.field(default_factory=dict)


class DeviceFacts(msgspec.Struct, frozen=True):
    """The device that batches were copied to."""

    name: str  # as cuda:0
    facts: Mapping[str, Any] = msgspec.field(default_factory=dict)
    memory: str | None = None  # pinned or pageable, which batches are copied from

    @property
    def title(self) -> str | None:
        """What its maker calls it."""
        known = self.facts.get("title")
        return known if isinstance(known, str) else None


class NearPlace(msgspec.Struct, frozen=True):
    """A folder of this machine alone that files could be staged in."""

    path: str
    mount: str
    in_memory: bool
    free_nbytes: Nbytes  # as the run began


class NearPlaces(msgspec.Struct, frozen=True):
    """Where files could be staged, and which mounts other machines share."""

    places: tuple[NearPlace, ...] = ()
    shared: Mapping[str, str] = msgspec.field(default_factory=dict)
    folder: str | None = None  # of all files of a profile; None of a script, and of URLs

    def mount_of(self, path: str) -> str | None:
        """Return the shared mount that a path lies on; None where it lies on none."""
        points = sorted([*self.shared, *(each.mount for each in self.places)], key=len)
        at = next((p for p in reversed(points) if PurePath(path).is_relative_to(p)), None)
        return at if at in self.shared else None


class StagedFacts(msgspec.Struct, frozen=True):
    """How the copy that a profile reads was staged."""

    source: str = ""
    copied_nbytes: Nbytes = 0
    seconds: float = 0.0


class RunFacts(msgspec.Struct, frozen=True):
    """What ``run.json`` says of a run, parsed once; what it does not say has the default."""

    kind: str = "profile"  # or "script"
    name: str | None = None  # what its user calls the run
    commit: ScriptCommit | None = None
    versions: Mapping[str, str] = msgspec.field(default_factory=dict)
    thread_settings: Mapping[str, str] = msgspec.field(default_factory=dict)
    dataset: str | None = None
    format: str | None = None
    framework: str | None = None
    threads: Count = 0  # of the ring
    pipeline: str = OWN  # own, upstream or climetlab
    described_by: str = ""  # where a pipeline that is not our own is
    stand_in: bool | None = None  # whether the files were generated
    tiny: bool = False
    batch_size: Count | None = None
    n_samples: Count | None = None
    sample_nbytes: Count | None = None  # bytes of one sample
    batches_per_step: Positive | None = None
    compute: EmulatedStep = EmulatedStep()
    published: PublishedWait = PublishedWait()
    cache: CacheFacts = CacheFacts()
    cold_known: bool | None = None  # whether the file system reports what came from the device
    store: StoreFacts | None = None
    machine: Mapping[str, Any] = msgspec.field(default_factory=dict)
    iobench_version: str | None = None  # that recorded it
    command: str | None = None
    spelled: str | None = None  # how --format spells it, where it was given with options
    sources: tuple[str, ...] | None = None  # as named; none of stores alone, None where not told
    own_label: str | None = msgspec.field(default=None, name="label")
    steps: tuple[int, int] | None = None  # of earlier recordings: the only ones recorded
    storage_limits: Any = None
    storage_probed: str | None = None  # before or after the run
    storage_after: Any = None
    no_storage_probe: str | None = None
    staged_copy: StagedFacts | None = None
    near: NearPlaces | None = None
    chunks: ChunkFacts | None = None
    epoch: EpochReads | None = None  # over all samples of original files
    source_kind: str | None = None  # of users' own files: `FILE_KINDS`
    workers: Count | None = None
    prefetch: Count | None = None
    world_size: Count | None = None
    expected_workers: tuple[str, ...] = ()  # that have to leave spans, by name
    unit_costs: Mapping[str, Annotated[float, msgspec.Meta(ge=0, le=2**40)] | None] | None = None
    position: float | None = None  # among the runs of one profile
    turns: str | None = None  # of one profile; empty: alone; None: older
    detail: str | None = None  # auto, sample or batch, of scripts
    digests: bool = False
    free_data: bool = False  # loaders handed on their first batches again and again
    free_steps_per_s: float | None = None  # steps/s of a trial of the same script that did so
    own_order: bool = False  # whether samples came in an order of the loader's own
    requested: Mapping[str, Any] = msgspec.field(default_factory=dict, name="asked")
    files_nbytes: Nbytes | None = None
    n_samples_all: Count | None = None  # of the whole dataset
    title: str | None = None  # what a named dataset is
    device: DeviceFacts | None = None
    no_device: str | None = None  # why there was none

    @property
    def is_script(self) -> bool:
        """Whether it is of a user's own script, and not of ``iobench profile``."""
        return self.kind == "script"

    @property
    def layout(self) -> str | None:
        """The format, with the options that it was given, if it was."""
        return self.spelled or self.format

    @property
    def label(self) -> str | None:
        """What the run is called among others: its format, or a pipeline that is not our own."""
        return self.own_label or (self.format if self.pipeline == OWN else self.pipeline)

    def called(self, what: str) -> str:
        """Return what a title says of it: its name, and what it is of."""
        return f"{self.name} ({what})" if self.name else what

    def with_processes(self, facts: Sequence[ProcessFacts], rank: int | None = None) -> Self:
        """Return these facts with what a script's first training process, or a rank's, says."""
        consumers = (each for each in facts if each.role == "consumer")
        first = next((each for each in consumers if rank in (None, each.rank)), None)
        if not self.is_script or first is None:
            return self
        return replace(self, versions=first.versions, thread_settings=first.thread_settings)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], path: Path | None = None) -> Self:
        """Read the values of a ``run.json``, that of the run at ``path``."""
        known = {name: value for name, value in config.items() if value is not None}
        if "turns" in config:  # null: it was alone; without the key it is older
            known.setdefault("turns", "")
        try:
            result = msgspec.convert(known, cls)
        except msgspec.ValidationError as error:
            file = "run.json" if path is None else path / "run.json"
            raise ProfileError(f"{file}: {error}; put it right, or measure again") from error
        # Objects of the user's own have kinds as well.
        kind = result.source_kind if result.source_kind in FILE_KINDS else None
        tiny = result.tiny and result.stand_in is True
        return replace(result, tiny=tiny, source_kind=kind)
