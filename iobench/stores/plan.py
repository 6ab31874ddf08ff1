"""What decides what a store holds, as one digest: equal plans give equal stores, bit for bit."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from iobench.errors import MissingFileError, OptionError
from iobench.files.atomic import storage_errors
from iobench.files.ranges import open_source_file
from iobench.files.urls import URL
from iobench.masking import mask_values
from iobench.stores.labels import sample_grid
from iobench.stores.manifest import canonical_json
from iobench.stores.sample_numbers import count_runs, sample_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iobench.datasets.contract import Dataset, SampleIndex
    from iobench.stores.contract import Format
    from iobench.stores.encoding import Encoding

N_STRETCHES = 16
STRETCH_NBYTES = 1 << 16


class StoreRequest(msgspec.Struct, frozen=True):
    """What a store is to hold, where, and how it is written; pickled as its dataset is."""

    # where samples come from. ``index.provenance`` (with the dataset's options in it) goes into the
    # manifest, its entry ``"normalisation"`` into the manifest's own
    dataset: Dataset
    index: SampleIndex
    fmt: Format  # the container
    path: Path  # the store's own folder
    # sample numbers of the dataset, in the order of the store; all by default. Manifest and store
    # keep the mapping in ``manifest.samples``
    samples: Sequence[int] | None = None
    options: Mapping[str, str] = msgspec.field(default_factory=dict)  # the format's options
    # the source files, whose fingerprints become part of the plan and the manifest
    files: Sequence[Path] = ()
    shard_nbytes: int = 1 << 30  # samples of this many bytes make a shard
    limit_s: float | None = None  # when a probe ends, at a sample; one is always taken
    # what is stored with fewer bits; without loss by default. A range it does not know is found by
    # a pass over all samples, once
    encoding: Encoding | None = None
    # threads that read, decode and preprocess; one where the dataset has no true attribute
    # ``thread_safe``
    workers: int = 1
    # what windows of samples may take, and what is decoded and waits to be written. One sample at
    # a time is always taken, whatever its size; chunks that samples share are not
    memory_nbytes: int = 256 << 20
    # where windows are that memory does not hold; temporary files by default
    scratch: Path | None = None
    passes: int = 4  # how often a chunk may be decoded at most, in the mean
    # (k, n): of shard i this process makes those with i mod n = k - 1; others make the rest
    part: tuple[int, int] = (1, 1)
    # address of a dask.distributed scheduler whose workers write the shards; they have to see the
    # same files
    scheduler: str | None = None

    def check_container(self) -> None:
        """Have the format refuse what it cannot hold before any sample is made."""
        spec = self.index.spec
        if self.encoding is not None:
            spec = self.encoding.stored_spec(spec, guess=True)
        self.fmt.encoder(spec, self.options)

    def plan(self) -> ConversionPlan:
        """Return what decides what the store will hold."""
        index, spec = self.index, self.index.spec
        chosen = range(len(index)) if self.samples is None else sample_numbers(self.samples)
        ends = (-1, -1)
        if len(chosen):
            places = np.asarray((chosen[0], chosen[-1]) if isinstance(chosen, range) else chosen)
            ends = int(places.min()), int(places.max())
        if ends[0] < 0 or ends[1] >= len(index):
            raise OptionError(
                f"{self.dataset.name}: a store needs samples from 0 to {len(index) - 1}, got "
                f"{len(chosen)} of them" + (f" up to {ends[1]}" if len(chosen) else "")
            )
        stored = spec if self.encoding is None else self.encoding.stored_spec(spec, guess=True)
        nbytes = max(1, stored.nbytes)
        provenance = mask_values(index.provenance)  # neither in the manifest nor in the digest
        normalisation = provenance.pop("normalisation", {})
        if self.files:
            provenance["fingerprints"] = [fingerprint(file) for file in self.files]
        grid = {} if self.limit_s is not None else sample_grid(index, chosen)
        unit = chunk_samples(self.fmt, self.options)
        if grid and (last := [*grid.items()][-1])[1] % unit:
            raise OptionError(
                f"--chunk-samples {unit}: chunks lie along {last[0]}, whose {last[1]} it does not "
                "divide"
            )
        shard_n_samples = boxed_n_samples(max(1, self.shard_nbytes // nbytes), grid, unit)
        return ConversionPlan(self, chosen, shard_n_samples, provenance, normalisation, grid, unit)


@dataclass(frozen=True)
class ConversionPlan:
    """Everything that decides what a store holds. Picklable."""

    request: StoreRequest  # its encoding as asked for: ranges found by a pass are no part of this
    # sample numbers of the dataset, in the order of the store: a range or an array
    samples: Sequence[int]
    shard_n_samples: int  # samples to a shard; the last may have fewer
    # JSON-ready facts for the manifest, fingerprints of the files among them
    provenance: Mapping[str, Any]
    normalisation: Mapping[str, Any]
    sample_grid: Mapping[str, int]  # see `iobench.stores.Manifest`; shards are boxes of it
    chunk_samples: int  # samples of a chunk, as the options say

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-ready values."""
        request = self.request
        dataset, encoding = request.dataset, request.encoding
        return {
            # Not a name that may be of a folder: a copy gives the same store.
            "dataset": getattr(dataset, "source_name", "") or dataset.name,
            "format": request.fmt.name,
            "format_version": request.fmt.version,
            "samples": [list(run) for run in count_runs(self.samples)],
            "shard_n_samples": self.shard_n_samples,
            "options": dict(request.options),
            "provenance": dict(self.provenance),
            "normalisation": dict(self.normalisation),
            "limit_s": request.limit_s,  # a store that may have ended early is another
            **({} if encoding is None else {"encoding": encoding.to_dict()}),
            **({"sample_grid": [*self.sample_grid.items()]} if self.sample_grid else {}),
            **request.index.spec.to_dict(),
        }

    @cached_property  # of 100,000 source files it takes a second
    def digest(self) -> str:
        """SHA-256 of the plan, as hexadecimal digits."""
        return hashlib.sha256(canonical_json(self.to_dict()).encode()).hexdigest()

    @property
    def name(self) -> str:
        """Folder name for a store of this plan: dataset, format, start of the digest."""
        words = re.sub(r"[^A-Za-z0-9_]+", "-", self.request.dataset.name).strip("-")[:60]
        return f"{words or 'dataset'}-{self.request.fmt.name}-{self.digest[:12]}"

    @property
    def title(self) -> str:
        """The plan in a few words, for people."""
        return f"{self.request.dataset.name} as {self.request.fmt.name}"

    @property
    def n_shards(self) -> int:
        """Shards of the store."""
        return -(-len(self.samples) // self.shard_n_samples)

    @property
    def full_n_samples(self) -> int:
        """Samples of a full shard, or of the only one: of whole chunks."""
        n_chunks = -(-min(self.shard_n_samples, len(self.samples)) // self.chunk_samples)
        return n_chunks * self.chunk_samples

    def shard(self, number: int) -> Sequence[int]:
        """Return the samples of one shard."""
        start = number * self.shard_n_samples
        return self.samples[start : start + self.shard_n_samples]


def chunk_samples(fmt: Format, options: Mapping[str, str]) -> int:
    """Return how many samples a format puts into a chunk."""
    of_format = getattr(fmt, "chunk_samples", None)
    return 1 if of_format is None else int(of_format(options))


def boxed_n_samples(n_samples: int, grid: Mapping[str, int], unit: int = 1) -> int:
    """Return how many samples to a shard, about as many as wanted, are boxes of a grid.

    Consecutive samples are one where they are whole rows of the fastest dimensions, or an even
    share of one; of the fastest a multiple of ``unit``.
    """
    below = 1
    for length in reversed([*grid.values()][1:]):
        if n_samples < below * length:
            step = unit if below == 1 else 1
            shares = [n for n in range(step, length + 1, step) if length % n == 0]
            fitting = [below * n for n in shares if below * n <= n_samples] or [below * shares[0]]
            larger = [below * n for n in shares if below * n > n_samples]
            # Of a prime length the shares are one and all: shards of one sample are too small.
            is_small = fitting[-1] * 4 < n_samples and larger[0] <= 2 * n_samples
            return larger[0] if is_small else fitting[-1]
        below *= length
    below = max(below, unit)
    return max(1, n_samples // below) * below


def fingerprint(file: Path) -> dict[str, Any]:
    """Return what a source file looks like: name, size, hash of 16 stretches of 64 KiB.

    No modification time: a copy of the data gives the same store. The first and last bytes are
    always among the stretches; a change between them may go unseen. Of a folder, such as a Zarr
    store, names and sizes of all files below it, and the beginnings of 16 of them.
    """
    digest = hashlib.blake2b(digest_size=16)
    try:
        if file.is_dir():
            nbytes = _hash_folder(file, digest)
        else:
            with storage_errors(file):
                nbytes = file.stat().st_size
            _hash_file(file, nbytes, digest)
    except FileNotFoundError as error:
        raise MissingFileError(f"{file} is missing; it was there when it was indexed") from error
    return {"name": file.name, "nbytes": nbytes, "sampled_blake2b": digest.hexdigest()}


def modified_ns(file: Path) -> int:
    """Return when a source was modified last; of a folder the latest of all files below it.

    Of a remote one a number that changes with size, ETag or time: its time alone is in seconds.
    """
    try:
        if isinstance(file, URL):
            return file.state_number()
        with storage_errors(file):
            files = [file, *(file.rglob("*") if file.is_dir() else ())]
            return max(int(path.stat().st_mtime_ns) for path in files)
    except FileNotFoundError as error:
        raise MissingFileError(f"{file} is missing; it was there when it was indexed") from error


def _hash_file(file: Path, nbytes: int, digest: hashlib.blake2b) -> None:
    last = max(0, nbytes - STRETCH_NBYTES)
    offsets = sorted({last * step // (N_STRETCHES - 1) for step in range(N_STRETCHES)})
    for stretch in open_source_file(file).read_each(offsets, STRETCH_NBYTES):
        digest.update(stretch)


def _hash_folder(folder: Path, digest: hashlib.blake2b) -> int:
    """Add a folder to a digest; return the bytes of all files below it."""
    with storage_errors(folder):
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        sizes = [path.stat().st_size for path in files]
        for path, size in zip(files, sizes, strict=True):
            digest.update(f"{path.relative_to(folder).as_posix()} {size}\n".encode())
        last = len(files) - 1
        chosen = {last * step // (N_STRETCHES - 1) for step in range(N_STRETCHES)} if files else ()
        for number in sorted(chosen):
            with files[number].open("rb", buffering=0) as stream:
                digest.update(stream.read(STRETCH_NBYTES))
    return sum(sizes)


def probe_samples(n_available: int, n_wanted: int) -> list[int]:
    """Return ``n_wanted`` sample numbers spread evenly over ``n_available``, none twice.

    They come in an order in which every beginning is spread as well, so that a probe that ends
    early still stands for all files. All of them where ``n_wanted`` is not less.

    Examples
    --------
    >>> probe_samples(100, 4)
    [0, 50, 25, 75]
    """
    count = max(0, min(n_available, n_wanted))
    bits = max(1, (count - 1).bit_length())
    reversed_order = (int(f"{rank:0{bits}b}"[::-1], 2) for rank in range(1 << bits))
    return [rank * n_available // count for rank in reversed_order if rank < count]
