"""What a comparison of a store with its source found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

N_NAMED: Final = 3
"""Files named in a sentence."""


class Difference(msgspec.Struct, frozen=True):
    """One value of a store that is not that of its source."""

    shard: int
    sample: int  # where it is in the store
    number: int  # which sample of the dataset it is
    coordinate: str  # that sample's name (a date), empty where it has none
    array: str  # name of the array
    index: tuple[int, ...]  # position in the array
    stored: str
    source: str  # the two values, as NumPy prints them

    def __str__(self) -> str:
        named = f" ({self.coordinate})" if self.coordinate else ""
        return (
            f"shard {self.shard}, sample {self.sample}, which is {self.number} of the "
            f"source{named}: {self.array}{list(self.index) or ''} is {self.stored}, in the source "
            f"{self.source}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        return {
            "shard": self.shard,
            "sample": self.sample,
            "source_sample": self.number,
            "coordinate": self.coordinate,
            "array": self.array,
            "index": list(self.index),
            "stored": self.stored,
            "source": self.source,
        }


class SourceFiles(msgspec.Struct, frozen=True):
    """How the source files compare with the fingerprints in the manifest, by file name."""

    n_known: int  # fingerprints in the manifest; 0 where it has none, so that nothing is known
    # files that were there, that are others now, and that were not there
    missing: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether all files are those the store was made of, as far as known."""
        return not (self.missing or self.changed or self.added)

    def __str__(self) -> str:
        if self.same:
            return f"all {self.n_known} source files are as they were" if self.n_known else ""
        kinds = (("missing", self.missing), ("changed", self.changed), ("added", self.added))
        told = [
            f"{len(names)} {what} ({', '.join(names[:N_NAMED])}"
            + (", ...)" if len(names) > N_NAMED else ")")
            for what, names in kinds
            if names
        ]
        return f"source files: {', '.join(told)}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        return {
            "n_known": self.n_known,
            "missing": list(self.missing),
            "changed": list(self.changed),
            "added": list(self.added),
        }


class VerifyResult(msgspec.Struct, frozen=True):
    """What the comparison of a store with its source found."""

    files: SourceFiles  # the source files
    n_samples: int
    n_compared: int  # samples of the store, and how many of them were made again
    nbytes: int  # bytes of the arrays compared, as readers of the store get them
    # largest absolute error of each lossy array, by the manifest; the others are compared bit for
    # bit
    allowed: Mapping[str, float]
    first: Difference | None  # the first one, in the order of samples, arrays and positions
    n_values: int
    n_differing_samples: int  # values that differ, and samples that have one
    differing: Mapping[str, int]  # values that differ, by array, for those that have any
    # largest difference of two finite values, by array, of what was compared bit for bit and
    # differs, or is lossy. 0.0 where only signs of 0 or kinds of NaN differ
    largest: Mapping[str, float]

    @property
    def same(self) -> bool:
        """Whether every value compared is that of the source, or within its allowed error."""
        return self.first is None

    def __str__(self) -> str:
        of = "all" if self.n_compared == self.n_samples else f"{self.n_compared} of"
        if self.first is None:
            return f"{of} {self.n_samples} samples are as the source has them"
        largest = ", ".join(
            f"{name} {self.differing[name]} by up to {self.largest[name]:.6g}"
            for name in self.differing
        )
        n = self.n_values
        what, verb = ("value", "differs") if n == 1 else ("values", "differ")
        return (
            f"{self.first}; {n} {what} in {self.n_differing_samples} of {self.n_compared} samples "
            f"{verb} ({largest})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        return {
            "same": self.same,
            "files": self.files.to_dict(),
            "n_samples": self.n_samples,
            "n_compared": self.n_compared,
            "nbytes": self.nbytes,
            "allowed": dict(self.allowed),
            "first": None if self.first is None else self.first.to_dict(),
            "n_values": self.n_values,
            "n_differing_samples": self.n_differing_samples,
            "differing": dict(self.differing),
            "largest": dict(self.largest),
        }
