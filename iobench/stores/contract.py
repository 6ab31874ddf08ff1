"""What a store is: finished samples in a standard container, one contiguous extent per array.

Containers themselves (TFRecord, NumPy, Zarr) are formats, found by name through the entry-point
group ``iobench.formats``; see ``converters/README.md`` for how to write one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

from iobench.stores.extents import ExtentStore

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.datasets.contract import Progress
    from iobench.samples import SampleSpec
    from iobench.stores.manifest import Manifest
    from iobench.stores.plan import StoreRequest
    from iobench.stores.shard_writer import Encode, ShardPlan, ShardWriter
    from iobench.stores.tally import Tally

Notice = Callable[[str], None]
"""Called with one line for the user while something goes on."""


Store: TypeAlias = ExtentStore
"""Finished samples: what `Format.open` returns, of every container."""


class Format(Protocol):
    """A standard container, writer and reader.

    Attributes
    ----------
    name : str
        As registered.
    version : int
        Version of its layout; stores of a later one are refused.
    check_options : callable, optional
        Takes the options; raises OptionError for one that there is not, before anything is read.
    renamed : callable, optional
        Takes the spec, and returns what variables are called whose names the container cannot have.
    chunk_samples : callable, optional
        Takes the options, and returns how many samples a chunk holds: shards begin at multiples.
    describe : callable, optional
        Takes the store's folder, its manifest and ``n_samples`` of a full shard; writes files that
        describe all shards together, such as ``zarr.json``, and returns them (`ShardFile`).
    """

    name: str
    version: int

    def open(self, path: Path, manifest: Manifest) -> Store:
        """Open a finished store; raise StoreError naming the shard that does not fit."""
        ...

    def encoder(self, spec: SampleSpec, options: Mapping[str, str]) -> Encode:
        """Return what encodes samples side by side, in any thread.

        Raises SampleError for a spec the container cannot hold without loss, OptionError or
        UnknownNameError for options it does not know.
        """
        ...

    def writer(
        self, path: Path, spec: SampleSpec, plan: ShardPlan, options: Mapping[str, str]
    ) -> ShardWriter:
        """Return a writer of a shard of the store at ``path``, for what the encoder returns."""
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
        store of another plan is there or a source file was modified meanwhile, StorageError
        when the file system refuses; finished shards stay and the same call resumes.
        """
        ...
