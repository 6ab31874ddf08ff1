"""Spans folded into sums, so that a recording of any length stays within a bound.

The oldest spans of a process go first, a chunk of its file or a whole file of an ended worker at a
time; what is kept of them is, for each stage, how many there were, their own time, and their bytes.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import OptionError
from iobench.recording import span_file as layout
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.recording.recorder import Recorder

__all__ = ["KEEP", "EndedWorkers", "Fold", "fold_name", "keep_nbytes", "unpacked_fold"]

KEEP: Final = "IOBENCH_KEEP"
"""Environment: how many bytes of spans a run keeps one by one: ``500MB``, ``2GB``."""
KEPT_NBYTES: Final = 2_000_000_000
LEAST_NBYTES: Final = 1_000_000
UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}

# They lie beside what the thread does, or around it: not reduced by what is inside.
AROUND: Final = frozenset(
    {Kind.WAIT, Kind.SUBMIT_QUEUE, Kind.IPC_WAIT, Kind.HEAD_OF_LINE, Kind.STARTUP, Kind.SHUTDOWN}
)
NEVER_SUMMED: Final = int(Flag.DETAIL | Flag.IO | Flag.DEVICE)
OTHERS: Final = (int(Kind.OTHER), 0)
"""Where stages go that have no place of their own."""
OPEN_LIMIT: Final = 64
KINDS: Final = frozenset(kind.value for kind in Kind)
LARGEST: Final = 2**61
FILES_LIMIT: Final = 1000
"""Of one training process: workers made anew for each epoch leave one each."""


def keep_nbytes(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many bytes of spans a run keeps one by one.

    Raises
    ------
    OptionError
        If the environment names no such size.
    """
    text = environment.get(KEEP, "").strip()
    if not text:
        return KEPT_NBYTES
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,3})?)\s*([KMGT]?B?)", text.upper())
    unit = "" if found is None else found[2] if found[2].endswith("B") else f"{found[2]}B"
    nbytes = 0 if found is None else int(float(found[1]) * UNITS[unit])
    if nbytes < LEAST_NBYTES:
        raise OptionError(f"{KEEP}={text}: expected a size of 1 MB at least, such as 500MB or 2GB")
    return nbytes


def fold_name(name: str) -> int:
    """Return what ``pending`` says of a file that was folded whole: never the place of a chunk."""
    return -1 - zlib.crc32(name.encode("utf-8", "surrogateescape"))


@dataclass(slots=True)
class Fold:
    """Sums of the spans that one process, or its ended workers, no longer have one by one.

    Parameters
    ----------
    turn : int
        How often it was written; 0 is never.
    pending : int
        What is in the sums and may still be there: the place of a chunk, or `fold_name` of a file.
    until_ns : int
        The end of the last span in it.
    n_spans, n_batches : int
        Spans in it; of them, waits that brought a batch.
    sums : dict
        (kind, label number): [spans, nanoseconds, bytes or -1]. A stage's own time, without that
        of stages inside it; waits are whole.
    """

    turn: int = 0
    pending: int = 0
    until_ns: int = 0
    n_spans: int = 0
    n_batches: int = 0
    sums: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    _open: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, spans: NDArray[Any], lane: int) -> None:
        """Add the spans of one thread, in the order of their ends, after those added before."""
        # What ended and has no span around it yet: (start, length), oldest first.
        ended = self._open.setdefault(lane, [])
        rows = zip(*(spans[name].tolist() for name in _FIELDS), strict=True)
        for start_ns, end_ns, nbytes, batch, kind, label, flags in rows:
            self.n_spans += 1
            if flags & NEVER_SUMMED:
                continue
            if end_ns > self.until_ns:
                self.until_ns = end_ns
            spent_ns = end_ns - start_ns
            if kind == Kind.WAIT:
                self.n_batches += batch >= 0
            elif kind == Kind.OTHER and label:
                continue  # a pass, around everything in it
            elif kind not in AROUND:
                own_ns = spent_ns
                while ended and ended[-1][0] >= start_ns:
                    own_ns -= ended.pop()[1]
                ended.append((start_ns, spent_ns))
                spent_ns = max(own_ns, 0)
            self._count((kind, label), 1, spent_ns, nbytes)
        del ended[:-OPEN_LIMIT]

    def _count(self, stage: tuple[int, int], n_spans: int, spent_ns: int, nbytes: int) -> None:
        found = self.sums.get(stage)
        if found is None:
            if len(self.sums) >= layout.FOLD_LIMIT - 1 and stage != OTHERS:
                self._count(OTHERS, n_spans, spent_ns, nbytes)
                return
            found = self.sums[stage] = [0, 0, 0]
        found[0] += n_spans
        found[1] += spent_ns
        found[2] = -1 if nbytes < 0 or found[2] < 0 else found[2] + nbytes

    def merge(self, other: Fold, labels: Mapping[int, int]) -> None:
        """Add what another process folded; ``labels`` are our numbers for its texts."""
        for (kind, label), (n_spans, spent_ns, nbytes) in other.sums.items():
            self._count((kind, labels.get(label, 0)), n_spans, spent_ns, nbytes)
        self.n_spans += other.n_spans
        self.n_batches += other.n_batches
        self.until_ns = max(self.until_ns, other.until_ns)

    def packed(self) -> bytes:
        """Return what goes into the header of the span file."""
        sums = (layout.FOLD_SUM.pack(*stage, *found) for stage, found in self.sums.items())
        head = layout.FOLD_HEAD.pack(
            0, self.turn, self.pending, self.until_ns, self.n_spans, self.n_batches, len(self.sums)
        )
        body = head[4:] + b"".join(sums)
        return zlib.crc32(body).to_bytes(4, "little") + body


class EndedWorkers:
    """The span files of a training process's ended workers, held within a bound.

    Parameters
    ----------
    folder : Path
        Where workers write.
    recorder : Recorder
        Of the training process; it holds the sums.
    keep_nbytes : int
        What the files may take; the oldest are folded, and removed.
    """

    def __init__(self, folder: Path, recorder: Recorder, keep_nbytes: int) -> None:
        self._folder = folder
        self._recorder = recorder
        self._keep_nbytes = keep_nbytes
        self._others = {recorder.path.name} if recorder.path is not None else set()
        self._ended: dict[str, int] = {}  # name: bytes, oldest first

    def fold(self) -> int:
        """Fold the oldest files where there are too many; return how many are gone."""
        from iobench.errors import ProfileError
        from iobench.recording.span_reader import read_head

        found = []
        for path in self._folder.glob("*.spans"):
            if path.name in self._others or path.name in self._ended:
                continue
            try:
                head = read_head(path)
            except ProfileError:
                continue  # being made
            if head.identity.ppid != os.getpid() or head.identity.role != "worker":
                self._others.add(path.name)
            elif head.end is not None:
                found.append((head.identity.monotonic_ns, path.name, head.reserved_nbytes))
        self._ended |= {name: nbytes for _, name, nbytes in sorted(found)}
        n_folded, nbytes = 0, sum(self._ended.values())
        while self._ended and (nbytes > self._keep_nbytes or len(self._ended) > FILES_LIMIT):
            name = next(iter(self._ended))
            nbytes -= self._ended.pop(name)
            n_folded += self._fold_file(self._folder / name)
        return n_folded

    def _fold_file(self, path: Path) -> bool:
        from iobench.errors import ProfileError
        from iobench.recording.span_reader import read_span_file

        try:
            file = read_span_file(path)
        except ProfileError:
            return False  # gathered, or removed by somebody
        fold = file.fold or Fold()
        for lane in range(len(file.thread_names)):
            fold.add(file.spans[file.threads == lane], lane)
        if not self._recorder.fold_in(fold, file.strings, path.name):
            return False
        with contextlib.suppress(OSError):
            path.unlink()
        return True


_FIELDS: Final = ("start_ns", "end_ns", "nbytes", "batch", "kind", "label", "flags")


def _can_be(fold: Fold) -> bool:
    """Return whether a process can have folded this: the sum of a file's bytes says little."""
    counts = [fold.until_ns, fold.n_spans, fold.n_batches]
    counts += [count for sums in fold.sums.values() for count in (*sums[:2], sums[2] + 1)]
    return all(0 <= count < LARGEST for count in counts) and KINDS.issuperset(
        kind for kind, _ in fold.sums
    )


def unpacked_fold(header: bytes) -> Fold | None:
    """Return what the header of a span file says was folded; None if nothing was."""
    found: Fold | None = None
    for offset in layout.FOLD_OFFSETS:
        crc, *numbers, n_sums = layout.FOLD_HEAD.unpack_from(header, offset)
        end = offset + layout.FOLD_HEAD.size + n_sums * layout.FOLD_SUM.size
        if not numbers[0] or n_sums > layout.FOLD_LIMIT or end > len(header):
            continue
        if zlib.crc32(header[offset + 4 : end]) != crc or (found and numbers[0] < found.turn):
            continue
        fold = Fold(*numbers)
        for place in range(offset + layout.FOLD_HEAD.size, end, layout.FOLD_SUM.size):
            kind, label, *counts = layout.FOLD_SUM.unpack_from(header, place)
            fold.sums[kind, label] = counts
        if _can_be(fold):
            found = fold
    return found
