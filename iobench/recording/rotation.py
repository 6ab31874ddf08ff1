"""Recordings of any length within a bound: the first batches stay and the latest, sums of the rest.

A process writes its spans in segments. Of each rank those of the first batches stay, a quarter of
the bound, and those of the latest; between them segments are removed and added up. The training
loop decides by the numbers of batches, and the processes that load for it drop the same batches.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from iobench.errors import OptionError, ProfileError
from iobench.recording import span_file as layout
from iobench.recording.sums import GapOfBatches, Sums, read_sums, segment_paths, sums_path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from iobench.recording.recorder import Recorder
    from iobench.recording.span_writer import SpanWriter
    from iobench.recording.sums import Chunk

KEEP: Final = "IOBENCH_KEEP"
"""Environment: how many bytes of spans a rank keeps: ``256MB``, ``2GB``."""
KEPT_NBYTES: Final = 256_000_000
KEPT_TEXT: Final = "256 MB"
LEAST_NBYTES: Final = 8_000_000
UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
SEGMENTS: Final = 256
"""In how many segments a rank keeps its spans, about."""
FIRST_PART: Final = 1 / 4
DROP_PART: Final = 13 / 16
"""Of the bound: from here on segments go, since processes drop only as they begin a new one."""
LEFT_PART: Final = 3 / 4
LAG_PART: Final = 1 / 32
"""What may come before others have dropped what they are to drop."""
MOST_PART: Final = 3 / 4
"""Of the latest batches with details, what goes at once."""
LOOKS: Final = 64
NEVER_NS: Final = 2**62


def keep_nbytes(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many bytes of spans a rank keeps.

    Raises
    ------
    OptionError
        If the environment names no such size.
    """
    text = environment.get(KEEP, "").strip()
    if not text:
        return KEPT_NBYTES
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,3})?)\s*([KMGT]?B?)", text.upper())
    unit = "" if match is None else match[2] if match[2].endswith("B") else f"{match[2]}B"
    nbytes = 0 if match is None else int(float(match[1]) * UNITS[unit])
    if nbytes < LEAST_NBYTES:
        raise OptionError(f"{KEEP}={text}: expected a size of 8 MB at least, such as 256MB or 2GB")
    return nbytes


def keep_text(environment: Mapping[str, str] = os.environ) -> str:
    """Return `keep_nbytes` as it was spelled."""
    return environment.get(KEEP, "").strip() or KEPT_TEXT


def day_line(day_nbytes: int, kept_nbytes: int) -> str:
    """Return what a day of a rank's spans takes, and how much of it is kept."""
    takes = f"a day of spans takes about {max(day_nbytes // 10**6, 1):,} MB at this pace"
    if day_nbytes <= kept_nbytes:
        return f"{takes}; {keep_text()} ({KEEP}) keep {kept_nbytes // max(day_nbytes, 1):,} days"
    minutes = 24 * 60 * kept_nbytes // day_nbytes
    lasts = f"{minutes // 60:,} hours" if minutes >= 120 else f"{minutes} min"
    return f"{takes}: {keep_text()} ({KEEP}) keep the first and latest {lasts}, sums between"


class Rotation:
    """What one process drops, as its training loop says.

    Parameters
    ----------
    keep_nbytes : int
        Of the rank, all its processes together; 0 is all.
    loop : Path or None
        Span file of the training process.
    """

    def __init__(self, keep_nbytes: int, loop: Path | None) -> None:
        self.keep_nbytes = keep_nbytes
        self.loop = loop
        pieces = max(keep_nbytes // SEGMENTS // layout.CHUNK_NBYTES, 1)
        self.segment_nbytes = pieces * layout.CHUNK_NBYTES if keep_nbytes else 0
        self.sums = Sums()
        self._gap: GapOfBatches | None = None

    def chunk_taken(self, recorder: Recorder, writer: SpanWriter) -> None:
        """Drop what is not to stay, now that a process took another chunk: at each new segment."""
        if self.loop is None or not writer.begins_segment:
            return
        try:
            gap = msgspec.json.decode(sums_path(self.loop).read_bytes(), type=Sums).gap
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
    """The batch after the latest that the loop has, when, and by how many batches and chunks."""

    batch: int
    time_ns: int
    tick: int


class LoopRotation(Rotation):
    """Of a training process: decides what stays of its rank.

    Parameters
    ----------
    progress : callable
        Returns the number of the latest batch, and how many there were.
    folders : tuple of Path
        Where the files of the rank are.
    """

    def __init__(
        self,
        keep_nbytes: int,
        progress: Callable[[], tuple[int, int]],
        folders: Collection[Path],
    ) -> None:
        super().__init__(keep_nbytes, None)
        self._progress = progress
        self._folders = tuple(dict.fromkeys(folders))
        self._ranks: dict[str, bool] = {}
        self._begun_ns: dict[str, int] = {}  # of ended workers, when their first span ended
        self._first: _Mark | None = None
        self._marks: list[_Mark] = []
        self._n_chunks = self._tick = self._nbytes = self._all_nbytes = 0
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
        keep, now_ns = self.keep_nbytes, recorder.clock.now_ns()
        mark = _Mark(self._progress()[0] + 1, now_ns, tick)
        nbytes = self.written_nbytes(recorder)
        ticks = max(tick - self._tick, 1)
        grown = nbytes - self._nbytes
        rate = max(grown, self.segment_nbytes) / ticks
        if grown < 0 or grown >= keep / LOOKS:
            self._all_nbytes += max(grown, 0)
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
        self._due = tick + min(max(int(keep / LOOKS / rate), 1), 2 * ticks)

    def _widen(self, recorder: Recorder, excess: float, nbytes: int) -> None:
        """Let so many more bytes of batches go."""
        first = self._first
        assert first is not None
        before = first.tick if self._gap is None else self._marks[0].tick
        part = min(excess / max(nbytes - FIRST_PART * self.keep_nbytes, 1), MOST_PART)
        until = before + part * (self._marks[-1].tick - before)
        last = next(n for n, mark in enumerate(self._marks) if mark.tick >= until)
        end = self._marks[last]
        del self._marks[:last]
        earlier = first.batch if self._gap is None else self._gap.end
        gap = GapOfBatches(first.batch, max(end.batch, earlier), first.time_ns, end.time_ns)
        self.sums.gap = gap
        if recorder.path is not None and self.sums.write(recorder.path):
            self._gap = gap
            recorder.drop()
            self._drop_ended(recorder)

    def written_nbytes(self, recorder: Recorder) -> int:
        """Return what the files of the rank take."""
        nbytes = 0
        for folder in self._folders:
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    stem = entry.name.removesuffix(".segment").removesuffix(".sums")
                    if stem != entry.name and entry.name.endswith(".segment"):
                        stem = stem.rpartition(".")[0]
                    if self._is_mine(folder / f"{stem.removesuffix('.spans')}.spans", recorder):
                        with contextlib.suppress(OSError):
                            nbytes += entry.stat().st_size
        return nbytes

    def recorded_nbytes(self, recorder: Recorder) -> int:
        """Return about what the rank has recorded, whether it is still there or not."""
        from iobench.recording.span_reader import read_index

        if self._gap is not None:
            return self._all_nbytes
        n_chunks = 0
        for path in (path for folder in self._folders for path in folder.glob("*.spans")):
            if self._is_mine(path, recorder):
                with contextlib.suppress(OSError, ProfileError):
                    n_chunks += 1 + len(read_index(path)[0])  # one of texts
        return n_chunks * layout.CHUNK_NBYTES

    def _is_mine(self, path: Path, recorder: Recorder) -> bool:
        if path.name not in self._ranks:
            from iobench.recording.span_reader import read_head  # most recordings read nothing

            try:
                self._ranks[path.name] = read_head(path).identity.rank == recorder.rank
            except ProfileError:
                return False  # being made
        return self._ranks[path.name]

    def _ended(self, recorder: Recorder) -> Iterator[Path]:
        """Yield the span files of processes that this one started, and that have ended."""
        from iobench.recording.span_reader import read_head
        from iobench.recording.spool import has_ended

        for folder in self._folders:
            for path in sorted(folder.glob("*.spans")):
                if recorder.path is None or path.name == recorder.path.name:
                    continue
                with contextlib.suppress(ProfileError):
                    if read_head(path).identity.ppid == os.getpid() and has_ended(path):
                        yield path

    def _drop_ended(self, recorder: Recorder) -> None:
        from iobench.recording.span_reader import read_head, read_index

        gap = self._gap
        assert gap is not None
        assert recorder.path is not None
        for path in self._ended(recorder):
            if self._begun_ns.get(path.name, 0) > gap.until_ns:
                continue
            with contextlib.suppress(OSError, ProfileError):
                chunks, texts = read_index(path)
                sums = read_sums(path) or Sums()
                if not chunks:
                    continue
                self._begun_ns[path.name] = min(chunk.first_end_ns() for chunk in chunks)
                before = [lane.end for lane in sums.lanes.values()]
                gone = sums.take(chunks, gap, texts)
                if len(gone) == len({chunk.path for chunk in chunks}):
                    head = read_head(path)
                    sums.own_ns += head.own_ns or 0
                    self._take_over(recorder.path, path, head.identity.monotonic_ns, sums)
                elif not sums.lanes:
                    self._begun_ns[path.name] = NEVER_NS  # all of it stays
                elif [lane.end for lane in sums.lanes.values()] == before:
                    continue
                elif sums.write(path):
                    for each in gone:
                        if each != path:  # its texts are there
                            each.unlink(missing_ok=True)

    def _take_over(self, own: Path, path: Path, start_ns: int, sums: Sums) -> None:
        """Take over the sums of a file of which nothing stays, and remove it."""
        names = [path.name, sums_path(path).name, *(each.name for each in segment_paths(path))]
        merged = msgspec.convert(msgspec.to_builtins(self.sums), Sums)
        self.sums.merge(sums)
        self.sums.removed = [(path.name, start_ns)]
        if not self.sums.write(own):
            self.sums = merged
            return
        del self._begun_ns[path.name]  # another process may take its name
        for name in names:
            for folder in self._folders:
                with contextlib.suppress(OSError):
                    (folder / name).unlink()
