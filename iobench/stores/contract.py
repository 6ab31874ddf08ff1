"""What a store is: finished samples in a standard container, one contiguous extent per array.

Containers themselves (TFRecord, NumPy, Zarr) are formats, found by name through the entry-point
group ``iobench.formats``; see ``converters/README.md`` for how to write one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.datasets.contract import Progress, SampleIndex
    from iobench.files.ranges import FileRange
    from iobench.samples import Sample, SampleSpec
    from iobench.stores.manifest import Manifest, Shard, ShardFile
    from iobench.stores.plan import StoreRequest
    from iobench.stores.tally import Tally
    from iobench.stores.value_statistics import ShardMoments

Notice = Callable[[str], None]
"""Called with one line for the user while something goes on."""


class ShardInfo(msgspec.Struct, frozen=True):
    """One finished shard, as its writer leaves it; moments are added by the driver."""

    shard: Shard  # samples and files, as the manifest will list them
    checksums: Sequence[int]  # CRC-32C of the bytes of each extent, sample-major
    moments: ShardMoments = msgspec.field(default_factory=dict)  # for the store's statistics


class Writer(Protocol):
    """Writes one shard under a temporary name; only ``close`` makes it appear."""

    def append(self, sample: Sample) -> None:
        """Write one sample; raise StorageError when the disk refuses."""
        ...

    def close(self) -> ShardInfo:
        """Flush to disk, rename into place, and return what was written."""
        ...

    def abort(self) -> None:
        """Drop the unfinished shard."""
        ...


class Store(Protocol):
    """Finished samples on disk, read by sample number. Picklable: files reopen lazily.

    ``store[i]`` is ``decode(read(extents(i)))``; loaders call the two apart to time them.
    """

    path: Path  # the store's folder
    spec: SampleSpec  # what each sample is
    manifest: Manifest  # where it came from and how it is laid out
    codec: str  # ``"none"``, or what an extent must go through

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]: ...

    def __getitems__(self, indices: Sequence[int]) -> Sequence[dict[str, NDArray[Any]]]: ...

    def extents(self, index: int) -> list[FileRange[Path]]:
        """Return where the sample's bytes are."""
        ...

    def read(self, extents: Sequence[FileRange[Path]]) -> list[memoryview]:
        """Return the bytes of each extent; raise StoreError if a file is shorter."""
        ...

    def decode(self, raw: Sequence[memoryview]) -> dict[str, NDArray[Any]]:
        """Return the sample's arrays from the bytes of its extents."""
        ...

    def index(self) -> SampleIndex:
        """Return times, splits, coordinates and attributes of its samples, as a dataset does.

        ``where`` are numbers of the store. Raises StoreError where the file of it is damaged.
        """
        ...

    def to_xarray(self) -> Any:
        """Return the store as an ``xarray.Dataset``; see `iobench.stores.store_dataset`."""
        ...

    def close(self) -> None:
        """Close the files; the store reopens them when used again."""
        ...


class Format(Protocol):
    """A standard container, writer and reader.

    Attributes
    ----------
    name : str
        As registered.
    version : int
        Version of its layout; stores of a later one are refused.
    option_names : tuple of str, optional
        The options that its writer knows: others are refused before anything is read.
    option_defaults : mapping of str to str, optional
        What an option is that is not given: a store is the same where it is spelled out.
    check_options : callable, optional
        Takes the options, and raises OptionError for a value that no sample could have.
    renamed : callable, optional
        Takes the spec, and returns what variables are called whose names the container cannot have.
    chunk_samples : callable, optional
        Takes the options, and returns how many samples a chunk holds: shards begin at multiples.
    """

    name: str
    version: int

    def open(self, path: Path, manifest: Manifest) -> Store:
        """Open a finished store; raise StoreError naming the shard that does not fit."""
        ...

    def writer(
        self,
        path: Path,
        spec: SampleSpec,
        *,
        shard: int,
        options: Mapping[str, str],
        n_samples: int | None = None,
    ) -> Writer:
        """Return a writer of shard number ``shard`` of the store at ``path``.

        ``n_samples`` is what a full shard of the store holds, for containers that have to know;
        the last shard may hold fewer. None: this is the only shard.

        Raises SampleError for a spec the container cannot hold without loss, OptionError or
        UnknownNameError for options it does not know.
        """
        ...


@runtime_checkable
class GriddedFormat(Format, Protocol):
    """A format whose arrays have a dimension for each of those that samples fill as a grid."""

    def on_grid(self, grid: Mapping[str, int], *, n_samples: int) -> Format:
        """Return it with writers for a store whose samples are such a grid; picklable.

        ``grid`` has the lengths of the samples' dimensions, the last fastest; ``n_samples`` make
        a full shard, which is a box of it.
        """
        ...


@runtime_checkable
class DescribedFormat(Format, Protocol):
    """A format whose shards need files of metadata beside them, such as Zarr's ``zarr.json``."""

    def describe(self, path: Path, manifest: Manifest, *, n_samples: int) -> tuple[ShardFile, ...]:
        """Write the metadata of a store whose shards are all there; return the files.

        Called once, just before the manifest is written, which then lists them. Files appear
        complete or not at all, and the same store gets the same bytes. ``n_samples`` is what the
        writers of its shards were told.
        """
        ...


class Converter(Protocol):
    """Makes a store of a dataset's samples: entry point ``convert`` of ``iobench.converters``."""

    def __call__(
        self,
        request: StoreRequest,
        *,
        progress: Progress | None = None,
        notice: Notice | None = None,
        tally: Tally | None = None,
    ) -> Store | None:
        """Return the finished store that is asked for, writing what is missing of it.

        None where other parts of it are not finished. ``progress`` is called with (samples done,
        samples to do), ``notice`` with a line for the user, ``tally`` is filled with seconds and
        bytes of every stage.

        Raises OptionError if one decoded chunk does not fit ``memory_nbytes``, StoreError if a
        store of another plan is there or a source file was modified meanwhile, StoreClaimedError
        if another process still writes it after ``wait_s``, StorageError when the file system
        refuses; finished shards stay and the same call resumes.
        """
        ...
