"""Sums of spans that are no longer there one by one, and which these are."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from iobench.errors import ProfileError
from iobench.recording import span_file as layout
from iobench.recording.kinds import (
    ROUND,
    STARTUP,
    TRAINS,
    WAITING_KINDS,
    Kind,
    halves,
    is_one_of,
    stage_keys,
)
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

NEVER_SUMMED: Final = int(Flag.DETAIL | Flag.IO | Flag.DEVICE)
OPEN_LIMIT: Final = 64


def rank_prefix(rank: int) -> str:
    """Return how the names of the files of a rank begin."""
    return f"rank{rank:05d}-"


def sums_path(span_file: Path) -> Path:
    """Return where the sums of a span file are."""
    return span_file.with_suffix(".sums")


def segment_path(span_file: Path, number: int) -> Path:
    """Return where a further segment of a span file is."""
    return span_file.with_name(f"{span_file.stem}.{number}.segment")


def segment_paths(span_file: Path) -> list[Path]:
    """Return the further segments of a span file that are there."""
    segments = span_file.parent.glob(f"{span_file.stem}.*.segment")
    return sorted(segments, key=lambda path: int(path.stem.rpartition(".")[2]))


class GapOfBatches(msgspec.Struct, frozen=True):
    """What has no details: batches ``first`` up to ``end``, and other spans by their ends."""

    first: int
    end: int
    from_ns: int
    until_ns: int

    def precede(self, spans: NDArray[Any]) -> NDArray[np.bool_]:
        """Return a mark for each span that stays for good."""
        marks: NDArray[np.bool_] = (spans["end_ns"] <= self.from_ns) & (spans["batch"] < self.first)
        return marks

    def follow(self, spans: NDArray[Any]) -> NDArray[np.bool_]:
        """Return a mark for each span that stays as yet."""
        batch = spans["batch"]
        marks: NDArray[np.bool_] = np.where(
            batch >= 0, batch >= self.end, spans["end_ns"] > self.until_ns
        )
        return marks


class StageTotals(msgspec.Struct, array_like=True):
    """Spans of one stage; ``nbytes`` is -1 where one of them does not know its bytes."""

    n_spans: int = 0
    own_ns: int = 0
    nbytes: int = 0

    def add(self, n_spans: int, own_ns: int, nbytes: int) -> None:
        """Add spans."""
        self.n_spans += n_spans
        self.own_ns += own_ns
        self.nbytes = -1 if nbytes < 0 or self.nbytes < 0 else self.nbytes + nbytes


class PassSums(msgspec.Struct):
    """A pass over a loader that has not ended; ``text`` is what its first wait says of it."""

    start_ns: int
    end_ns: int
    n_batches: int = 0
    text: str = ""
    trains: bool = False


class LaneSums(msgspec.Struct):
    """One thread: spans with sequence ``begin`` up to ``end`` are in the sums, there or not."""

    begin: int
    end: int
    from_ns: int = 0
    n_batches: int = 0
    wait_ns: int = 0
    between_ns: int = 0  # that recording took between waits
    wall_ns: int = 0  # the time of its passes over loaders, and from when until when they were
    covered: list[tuple[int, int]] = []
    passes: dict[int, PassSums] = {}
    open: list[tuple[int, int]] = []  # latest (start, length) that may lie in a span that comes

    def add_waits(self, spans: NDArray[Any], texts: Mapping[int, str]) -> None:
        """Add waits, passes, and marks of passes that train."""
        self.between_ns += int(spans["cpu_ns"][spans["kind"] == Kind.WAIT].clip(0).sum())
        fields = ("start_ns", "end_ns", "sample", "batch", "kind", "label", "detail")
        for start_ns, end_ns, number, batch, kind, label, detail in spans[[*fields]].tolist():
            text = texts.get(label, "")
            if kind == Kind.WAIT:
                self.n_batches += batch >= 0
                self.wait_ns += end_ns - start_ns
            if text == ROUND:
                self.passes.pop(number, None)
                self.covered.append((max(start_ns, self.from_ns), end_ns))
                continue
            each = self.passes.setdefault(number, PassSums(start_ns, end_ns))
            each.start_ns, each.end_ns = min(each.start_ns, start_ns), max(each.end_ns, end_ns)
            each.n_batches += batch >= 0
            each.trains |= text == TRAINS
            if text == STARTUP:
                each.text = texts.get(detail, "")
        while len(self.passes) > OPEN_LIMIT:  # left alone, and never ended
            first = self.passes.pop(next(iter(self.passes)))
            self.covered.append((first.start_ns, first.end_ns))
        self.covered = union(self.covered)
        goes_on = min((each.start_ns for each in self.passes.values()), default=2**62)
        while len(self.covered) > OPEN_LIMIT and self.covered[0][1] < goes_on:
            start_ns, end_ns = self.covered.pop(0)
            self.wall_ns += end_ns - start_ns

    def own_ns(self, spans: NDArray[Any]) -> NDArray[Any]:
        """Return the time of each further span without that of those directly inside it."""
        before = np.array(self.open, np.int64).reshape(-1, 2)
        start_ns = np.concatenate([before[:, 0], spans["start_ns"]])
        all_ns = np.concatenate([before[:, 1], spans["end_ns"] - spans["start_ns"]])
        around = _around(start_ns)
        own_ns = all_ns.copy()
        within = around >= 0
        np.subtract.at(own_ns, around[within], all_ns[within])
        left = np.flatnonzero(~within)[-OPEN_LIMIT:]
        self.open = list(zip(start_ns[left].tolist(), all_ns[left].tolist(), strict=True))
        own: NDArray[Any] = np.maximum(own_ns[len(before) :], 0)
        return own


# Taken before anybody puts timers in their place: our own files are no part of the loading.
_open, _pread = os.open, os.pread


def own_bytes(path: Path, start: int = 0, nbytes: int | None = None) -> bytes:
    """Return what a file of the recording holds from ``start`` on, all or at most so much."""
    descriptor = _open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _pread(descriptor, os.fstat(descriptor).st_size if nbytes is None else nbytes, start)
    finally:
        os.close(descriptor)


class Chunk(NamedTuple):
    """Where spans of one thread are in a file."""

    path: Path
    offset: int
    lane: int
    sequence: int

    @property
    def end(self) -> int:
        """The sequence after its last."""
        return self.sequence + layout.SPANS_PER_CHUNK

    def spans(self, n_records: int = layout.SPANS_PER_CHUNK) -> NDArray[Any]:
        """Return the whole records, of all or the first."""
        start = self.offset + layout.RECORD_NBYTES
        data = own_bytes(self.path, start, n_records * layout.RECORD_NBYTES)
        n_read = len(data) // layout.RECORD_NBYTES
        records = np.frombuffer(data, layout.SPAN_DTYPE, n_read)
        whole = (records["sequence"] != 0) & is_one_of(records["kind"], Kind)
        spans: NDArray[Any] = records[whole]
        return spans


class Sums(msgspec.Struct):
    """What a process no longer has span by span; its file lies beside the span file."""

    gap: GapOfBatches | None = None  # of a training process: what its workers drop as well
    # Files of ended workers, with their starts, that are in these sums and may still be there.
    removed: list[tuple[str, int]] = []
    own_ns: int = 0  # what recording took in these
    stages: dict[str, StageTotals] = {}  # by "kind:label"
    lanes: dict[int, LaneSums] = {}

    def add(self, lane: int, spans: NDArray[Any], texts: Mapping[int, str]) -> None:
        """Add spans of one thread, in the order of their ends."""
        sums = self.lanes.setdefault(lane, LaneSums(0, 0))
        numbers = [number for number, text in texts.items() if text in (ROUND, TRAINS)]
        is_labelled = (spans["kind"] == Kind.OTHER) & (spans["label"] != 0)
        of_pass = is_labelled & (spans["sample"] >= 0) & np.isin(spans["label"], numbers)
        of_loop = ((spans["kind"] == Kind.WAIT) & (spans["flags"] == 0)) | of_pass
        if of_loop.any():
            sums.add_waits(spans[of_loop], texts)
        counted = spans[~is_labelled & ((spans["flags"] & NEVER_SUMMED) == 0)]
        own_ns = counted["end_ns"] - counted["start_ns"]
        inside = ~is_one_of(counted["kind"], WAITING_KINDS)  # others lie beside what a thread does
        own_ns[inside] = sums.own_ns(counted[inside])
        stages = stage_keys(counted)
        for stage in np.unique(stages).tolist():
            rows = stages == stage
            kind, label = halves(stage)
            nbytes = counted["nbytes"][rows]
            self.stages.setdefault(f"{kind}:{texts.get(label, '')}", StageTotals()).add(
                int(rows.sum()),
                int(own_ns[rows].sum()),
                -1 if (nbytes < 0).any() else int(nbytes.sum()),
            )

    def merge(self, other: Sums) -> None:
        """Add the stages of another process."""
        for stage, sums in other.stages.items():
            self.stages.setdefault(stage, StageTotals()).add(sums.n_spans, sums.own_ns, sums.nbytes)
        self.own_ns += other.own_ns

    def cover(self, chunk: Chunk) -> bool:
        """Return whether all spans of a chunk are in the sums."""
        lane = self.lanes.get(chunk.lane)
        return lane is not None and lane.begin <= chunk.sequence and chunk.end <= lane.end

    def take(
        self,
        chunks: Sequence[Chunk],
        gap: GapOfBatches,
        texts: Mapping[int, str],
        busy: Collection[Chunk] = (),
    ) -> list[Path]:
        """Add the chunks of one process that a gap holds; return the files to be removed."""
        lanes: dict[int, list[Chunk]] = {}
        for chunk in chunks:
            if chunk not in busy and not self.cover(chunk):
                lanes.setdefault(chunk.lane, []).append(chunk)
        for lane, mine in lanes.items():
            begin = _begin(mine, gap) if lane not in self.lanes else self.lanes[lane].end
            if begin is None:
                continue
            sums = self.lanes.setdefault(lane, LaneSums(begin, begin, gap.from_ns))
            for chunk in (chunk for chunk in mine if chunk.end > begin):
                spans = chunk.spans()
                if gap.follow(spans).any():
                    break
                self.add(lane, spans[spans["sequence"] >= begin], texts)
                sums.end = chunk.end
        stay = {chunk.path for chunk in chunks if chunk in busy or not self.cover(chunk)}
        return [path for path in dict.fromkeys(chunk.path for chunk in chunks) if path not in stay]

    def write(self, span_file: Path) -> bool:
        """Write them beside a span file; False where there is no space, and nothing has changed."""
        path = sums_path(span_file)
        part = path.with_suffix(".part")
        try:
            part.write_bytes(msgspec.json.encode(self))
            part.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink()
            return False
        return True


def read_sums(span_file: Path) -> Sums | None:
    """Return the sums of a span file, None where all its spans are there, or raise ProfileError."""
    path = sums_path(span_file)
    try:
        return msgspec.json.decode(own_bytes(path), type=Sums)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise ProfileError(
            f"{path}: cannot be read ({error}); remove it, or measure again"
        ) from error


def _begin(chunks: Sequence[Chunk], gap: GapOfBatches) -> int | None:
    """Return the sequence after the last span of a thread that stays for good; None if unknown."""
    begins = (each.spans(1)["end_ns"] for each in chunks)
    after = next((n for n, end_ns in enumerate(begins) if (end_ns > gap.from_ns).any()), None)
    if after is None:
        return None
    begin = chunks[after].sequence
    for chunk in reversed(chunks[:after]):
        spans = chunk.spans()
        stay = spans["sequence"][gap.precede(spans)]
        if len(stay):
            return int(stay[-1]) + 1
        begin = chunk.sequence
    return begin


def union(intervals: Collection[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return intervals that do not overlap, by start, and cover the same."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def _around(start_ns: NDArray[Any]) -> NDArray[np.int64]:
    """Return for each of spans in the order of their ends the next one that is around it, or -1."""
    around = np.full(len(start_ns), -1, np.int64)
    if not len(start_ns):
        return around
    least_after = np.minimum.accumulate(start_ns[:0:-1])[::-1]
    rows = np.flatnonzero(least_after <= start_ns[:-1])
    later = rows + 1
    while len(rows):
        is_around = start_ns[later] <= start_ns[rows]
        around[rows[is_around]] = later[is_around]
        rows, later = rows[~is_around], later[~is_around] + 1
    return around
