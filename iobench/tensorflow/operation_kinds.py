"""Which sort of work each operation of tf.data is: a table, which users may change."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from iobench.errors import OptionError
from iobench.recording.kinds import WORKER_KINDS, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

OPERATION_KINDS: Final[dict[str, Kind]] = {
    "TFRecord": Kind.READ,
    "TextLine": Kind.READ,
    "FixedLengthRecord": Kind.READ,
    "Snapshot*": Kind.READ,
    "Load": Kind.READ,
    "ReadFile": Kind.READ,
    "MatchingFiles": Kind.OPEN,
    "ListDataset": Kind.OPEN,
    "Parse*": Kind.DECODE,
    "Decode*": Kind.DECODE,
    "IO>Decode*": Kind.DECODE,
    "StringToNumber": Kind.DECODE,
    "*Batch*": Kind.COLLATE,
    "Rebatch*": Kind.COLLATE,
    "*PyFunc*": Kind.OPAQUE,
    "Generator": Kind.OPAQUE,
    "*": Kind.PREPROCESS,
}
"""By name of the operation (patterns as in a shell; the first that fits): iterators without their
version and ``Dataset`` (``TFRecord``, ``ParallelMap``), and kernels of mapped functions
(``ParseExampleV2``). Change it, or give ``instrument`` a ``kinds`` of its own."""

# Iterators that hand on what other threads make, whose own time is waiting, and those that only
# pass on what they are given.
THREADED: Final = frozenset(
    {"Prefetch", "ParallelMap", "MapAndBatch", "ParallelInterleave", "LegacyParallelInterleave"}
    | {"ParallelBatch", "ParallelFilter"}
)
HANDING_ON: Final = frozenset(
    {"Root", "Options", "Model", "MaxIntraOpParallelism", "PrivateThreadPool", "Take"}
    | {"FiniteTake", "Repeat", "FiniteRepeat", "ForeverRepeat"}
)


def operation_name(name: str) -> str:
    """Return the name of an operation without its version, number and ``Dataset``.

    ``ParallelMapDatasetV2:1``, ``ParallelMapV2`` and ``ParallelMap[0]`` are ``ParallelMap``.
    """
    plain = name.partition("[")[0].partition(":")[0].partition("(")[0]
    head, result, version = plain.rpartition("V")
    if result and head and version.isdecimal():
        plain = head
    return plain.removesuffix("Dataset") or name


def kind_of(name: str, kinds: Mapping[str, Kind] | None = None) -> Kind:
    """Return the kind of an operation: by ``kinds`` first, then by `OPERATION_KINDS`."""
    for table in (kinds or {}, OPERATION_KINDS):
        for pattern, kind in table.items():
            if fnmatchcase(name, pattern):
                return kind
    return Kind.PREPROCESS


def checked_kinds(kinds: Mapping[str, Kind | str] | None) -> dict[str, Kind]:
    """Return a user's table with kinds for their names."""
    known = {kind.spelled: kind for kind in sorted(WORKER_KINDS)}
    result = {}
    for pattern, given in (kinds or {}).items():
        spelled = given.spelled if isinstance(given, Kind) else given
        if spelled not in known:
            raise OptionError(f"kinds: {pattern}={spelled!r}: expected one of {', '.join(known)}")
        result[pattern] = known[spelled]
    return result
