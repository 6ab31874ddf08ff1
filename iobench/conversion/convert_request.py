"""What ``iobench convert`` is asked to do, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from iobench.cpus import available_cpus
from iobench.errors import OptionError
from iobench.masking import mask_values
from iobench.registry import SOURCE, find_format
from iobench.sources.request import SourceRequest

STAGE: Final = "preprocessed"
"""What stores hold of a sample: what a model is given."""


class ConvertRequest(SourceRequest, frozen=True, kw_only=True):
    """What to convert to what; field for field the options of ``iobench convert``.

    To the fields of its source it adds
    """

    to: str  # the store format, as registered
    out: Path  # the store's folder: new, or one that the same request began or finished
    split: str | None = None  # one of the dataset's splits, to convert no other samples
    format_options: Mapping[str, str] = msgspec.field(default_factory=dict)  # options of the format
    # how values are stored with fewer bits, as `iobench.stores.Encoding.parse` takes them
    dtype: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()
    # what a conversion may hold of the data at once; None for what decodes each chunk once, as far
    # as memory is free
    memory_nbytes: int | None = None
    scratch: Path | None = None  # where windows are that memory does not hold
    passes: int = 4  # how often a chunk may be decoded at most, in the mean
    part: str | None = None  # ``K/N``: of shard i those with i mod N = K - 1
    # threads that read, decode and preprocess; None for one per usable CPU
    workers: int | None = None
    shard_nbytes: int = 1 << 30  # samples of this many bytes make a shard
    scheduler: str | None = None  # address of a dask.distributed scheduler whose workers convert

    def __post_init__(self) -> None:
        SourceRequest.__post_init__(self)
        if self.to == SOURCE:
            raise OptionError(f"--to {SOURCE}: that is what there is already; name a store format")
        find_format(self.to)
        if self.part_numbers[1] > 1 and self.scheduler is not None:
            raise OptionError("--part cannot be combined with --scheduler, which shares the shards")
        if self.scratch is not None and not self.scratch.is_dir():
            raise OptionError(f"--scratch {self.scratch}: no such folder")
        if self.workers is not None and self.workers < 1:
            raise OptionError(f"--workers {self.workers}: expected 1 or more")

    @property
    def part_numbers(self) -> tuple[int, int]:
        """Which part of the shards is made, counted from 1, and of how many."""
        if self.part is None:
            return 1, 1
        match = re.fullmatch(r"([1-9]\d{0,8})/([1-9]\d{0,8})", self.part)
        if match is None or int(match[1]) > int(match[2]):
            raise OptionError(f"--part {self.part}: expected K/N, K from 1 to N")
        return int(match[1]), int(match[2])

    @property
    def n_workers(self) -> int:
        """Threads: as asked for, else one per usable CPU."""
        return available_cpus() if self.workers is None else self.workers

    def to_dict(self) -> dict[str, Any]:
        """Return what of the request decides what a sample of the store is, where it was given.

        JSON-ready; goes into the manifest, so that a store tells how it can be made again. No
        paths: a copy of the source elsewhere gives the same store. No secrets: ``masked`` are the
        options whose values are told without.
        """
        options = mask_values(self.options)
        told = {
            "stage": STAGE,
            "options": options,
            "masked": [name for name, value in self.options.items() if options[name] != value],
            "sample_dim": self.sample_dim,
            "variables": list(self.variables),
            "target_variables": list(self.target_variables),
            "split_by": list(self.split_by),
            "tiny": self.tiny,
        }
        return {name: value for name, value in told.items() if value}
