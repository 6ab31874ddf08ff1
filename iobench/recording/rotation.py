"""Recordings of any length within a bound: the first batches stay and the latest, sums of the rest.

A process writes segments. Those between the first batches, a quarter of the bound, and the latest
are removed and added up: by number of batch, as the training loop says, in all processes of a rank.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from iobench.errors import OptionError, ProfileError
from iobench.recording import span_file as layout
from iobench.recording.sums import (
    GapOfBatches,
    Sums,
    own_bytes,
    rank_prefix,
    read_sums,
    segment_paths,
    sums_path,
)
from iobench.sizes import parse_nbytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from iobench.recording.recorder import Recorder
    from iobench.recording.span_writer import SpanWriter
    from iobench.recording.sums import Chunk

KEEP: Final = "IOBENCH_KEEP"
"""Environment: how many bytes of spans a rank keeps: ``256MB``, ``2GB``."""
RUN_LOOP: Final = "IOBENCH_RUN_LOOP"
"""Environment: the span file of the training process that a process works for."""
KEPT_NBYTES: Final = 64_000_000  # a report of as much takes under 10 s and 500 MB
LEAST_NBYTES: Final = 8_000_000
SEGMENTS: Final = 256  # in how many segments a rank keeps its spans, about
FIRST_PART: Final = 1 / 4
DROP_PART: Final = 13 / 16
"""Of the bound: from here on segments go, since processes drop only as they begin a new one."""
LEFT_PART: Final = 3 / 4
LAG_PART: Final = 1 / 32  # what may come before others have dropped what they are to drop
MOST_PART: Final = 3 / 4  # of the latest batches with details, what goes at once
LOOKS: Final = 64


def keep_nbytes(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many bytes of spans a rank keeps; OptionError if that is no size."""
    text = environment.get(KEEP, "").strip()
    if not text:
        return KEPT_NBYTES
    nbytes = parse_nbytes(KEEP, text)
    if nbytes < LEAST_NBYTES:
        raise OptionError(f"{KEEP}={text}: expected a size of 8 MB at least, such as 256MB or 2GB")
    return nbytes


class Rotation:
    """What one process drops, as its training process says."""

    def __init__(self, keep_nbytes: int, loop: Path | None) -> None:
        self.keep_nbytes = keep_nbytes
        self.loop = loop
        n_chunks = max(keep_nbytes // SEGMENTS // layout.CHUNK_NBYTES, 1)
        self.segment_nbytes = n_chunks * layout.CHUNK_NBYTES if keep_nbytes else 0
        self.sums = Sums()
        self._gap: GapOfBatches | None = None

    def chunk_taken(self, recorder: Recorder, writer: SpanWriter) -> None:
        """Drop what is not to stay, now that a process took another chunk: at each new segment."""
        if self.loop is None or not writer.begins_segment:
            return
        try:
            gap = msgspec.json.decode(own_bytes(sums_path(self.loop)), type=Sums).gap
        except (OSError, msgspec.MsgspecError):
            return
        if gap is not None and gap != self._gap:
            self._gap = gap
            recorder.drop()

    def drop(self, writer: SpanWriter, texts: Mapping[int, str], busy: Collection[Chunk]) -> None:
        """Drop what the gap holds of this process."""
        if self._gap is None:
            return
        gone = self.sums.take(writer.chunks, self._gap, texts, busy)
        if self.sums.write(writer.path):
            writer.remove(gone)


class _Mark(NamedTuple):
    """The batch after the latest that the loop has, when, and after how many batches and chunks."""

    batch: int
    time_ns: int
    tick: int


class LoopRotation(Rotation):
    """Of a training process: decides what stays of its rank, whose files are in ``folders``."""

    def __init__(
        self, keep_nbytes: int, progress: Callable[[], tuple[int, int]], folders: Collection[Path]
    ) -> None:
        super().__init__(keep_nbytes, None)
        self._progress = progress
        self._folders = tuple(dict.fromkeys(folders))
        self._first: _Mark | None = None
        self._marks: list[_Mark] = []
        self._n_chunks = self._tick = self._nbytes = 0
        self._due = 1
        self._limit = DROP_PART * keep_nbytes
        self._looks = False

    def chunk_taken(self, recorder: Recorder, writer: SpanWriter) -> None:
        """Look at what the rank has by now, if that is due."""
        self._n_chunks += 1
        self.look(recorder)

    def look(self, recorder: Recorder) -> int:
        """Decide what goes, seldom; return after how many batches to look again."""
        n_batches = self._progress()[1]
        tick = n_batches + self._n_chunks
        if tick >= self._due and not self._looks and self.keep_nbytes:
            self._looks = True
            try:
                with recorder.quiet():
                    self._look(recorder, tick)
            finally:
                self._looks = False
        return n_batches + max(self._due - tick, 1)

    def _look(self, recorder: Recorder, tick: int) -> None:
        keep = self.keep_nbytes
        mark = _Mark(self._progress()[0] + 1, recorder.clock.now_ns(), tick)
        nbytes = self.written_nbytes(recorder)
        ticks, grown = max(tick - self._tick, 1), nbytes - self._nbytes
        if grown < 0 or grown >= keep / LOOKS:
            self._tick, self._nbytes = tick, nbytes
        if self._first is not None:
            self._marks.append(mark)
        elif nbytes >= FIRST_PART * keep:
            self._first = mark
        if nbytes < DROP_PART * keep:
            self._limit = DROP_PART * keep
        elif nbytes >= self._limit and self._marks:
            self._widen(recorder, nbytes - LEFT_PART * keep, nbytes)
            self._limit = nbytes + LAG_PART * keep
        rate = max(grown, self.segment_nbytes) / ticks
        self._due = tick + min(max(int(keep / LOOKS / rate), 1), 2 * ticks)

    def _widen(self, recorder: Recorder, excess: float, nbytes: int) -> None:
        """Let so many more bytes of batches go."""
        first, gap = self._first, self._gap
        assert first is not None
        before = first.tick if gap is None else self._marks[0].tick
        part = min(excess / max(nbytes - FIRST_PART * self.keep_nbytes, 1), MOST_PART)
        until = before + part * (self._marks[-1].tick - before)
        last = next(n for n, mark in enumerate(self._marks) if mark.tick >= until)
        end = self._marks[last]
        del self._marks[:last]
        earlier = first.batch if gap is None else gap.end
        gap = GapOfBatches(first.batch, max(end.batch, earlier), first.time_ns, end.time_ns)
        self.sums.gap = gap
        if recorder.path is not None and self.sums.write(recorder.path):
            self._gap = gap
            recorder.drop()
            self._drop_ended(recorder.path, gap)

    def written_nbytes(self, recorder: Recorder) -> int:
        """Return what the files of the rank take."""
        nbytes, prefix = 0, rank_prefix(recorder.rank)
        for folder in self._folders:
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.startswith(prefix):
                        with contextlib.suppress(OSError):
                            nbytes += entry.stat().st_size
        return nbytes

    def _drop_ended(self, own: Path, gap: GapOfBatches) -> None:
        """Drop what the gap holds of processes that this one started, and that have ended."""
        from iobench.recording.span_reader import has_ended, read_head, read_index

        for path in (path for folder in self._folders for path in sorted(folder.glob("*.spans"))):
            with contextlib.suppress(OSError, ProfileError):
                head = read_head(path)
                is_child = head.ppid == os.getpid() and path.name != own.name
                if not is_child or head.monotonic_ns > gap.until_ns or not has_ended(path):
                    continue
                if head.end is not None and head.end.monotonic_ns < gap.from_ns:
                    continue
                chunks, texts = read_index(path)
                sums = read_sums(path) or Sums()
                before = msgspec.json.encode(sums)
                gone = sums.take(chunks, gap, texts)
                if chunks and len(gone) == len({chunk.path for chunk in chunks}):
                    sums.own_ns += head.own_ns or 0
                    self._take_over(own, path, head.monotonic_ns, sums)
                elif msgspec.json.encode(sums) != before and sums.write(path):
                    for each in gone:
                        if each != path:  # its texts are there
                            each.unlink(missing_ok=True)

    def _take_over(self, own: Path, path: Path, start_ns: int, sums: Sums) -> None:
        """Take over the sums of a file of which nothing stays, and remove it."""
        names = [path.name, sums_path(path).name, *(each.name for each in segment_paths(path))]
        total = msgspec.convert(msgspec.to_builtins(self.sums), Sums)
        total.merge(sums)
        total.removed = [(path.name, start_ns)]
        if total.write(own):
            self.sums = total
            for each in (folder / name for name in names for folder in self._folders):
                with contextlib.suppress(OSError):
                    each.unlink()
