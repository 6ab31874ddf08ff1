"""The lanes of a run as a picture: what loading did above, what storage did below, on one axis."""

from __future__ import annotations

import itertools
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.analysis.placement.placed_calls import monotonic_of_wall
from iobench.analysis.placement.placing import place_segments
from iobench.errors import MissingExtraError, OptionError
from iobench.frozen import frozen
from iobench.masking import printable
from iobench.recording.kinds import WORKER_KINDS, Kind, is_one_of
from iobench.report import units
from iobench.report.timeline.model import timeline_of
from iobench.report.wrapping import short_path
from iobench.report.written import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.analysis.placement.placed_calls import Placement, ProcessPlacement
    from iobench.analysis.run import RankRun, Run
    from iobench.profiles.contents import Profile
    from iobench.report.timeline.model import Timeline
    from iobench.storage.storage_trace import StorageTrace

PICTURE_SUFFIXES: Final = (".svg", ".pdf", ".png")
PIXELS: Final = 2400
"""Bars of one lane closer together than so many parts of the axis are drawn as one."""
MOST_LANES: Final = 64
"""Of the timeline; a ring has threads of its own for each pass."""
HIDDEN, EXPOSED, UNKNOWN = "#8fa8bf", "#c8102e", "#c4c4c4"
LEGEND: Final = (
    ("waiting", Kind.WAIT.light),
    ("read", Kind.READ.light),
    ("decode", Kind.DECODE.light),
    ("fused", Kind.FUSED.light),
    ("preprocess", Kind.PREPROCESS.light),
    ("collate", Kind.COLLATE.light),
    ("storage, mostly hidden", HIDDEN),
    ("storage, mostly exposed", EXPOSED),
    ("exposure unknown", UNKNOWN),
)


@frozen
class LaneBars:
    """One row of the picture.

    Parameters
    ----------
    start_ns, end_ns : ndarray of int64, shape (n_bars,)
        On the profile's clock.
    colour : ndarray of str, shape (n_bars,)
    hatched : ndarray of bool, shape (n_bars,)
        Bars that are known by their first and last moment alone.
    band_ns : int
        How far the whole lane may be off; 0 where it is not.
    """

    name: str
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    colour: NDArray[np.str_]
    hatched: NDArray[np.bool_]
    band_ns: int = 0

    def drawn(self, low_ns: int, high_ns: int, gap_ns: int) -> LaneBars:
        """Return the part of the lane inside a stretch of time, as a picture can show it.

        Bars of one colour with less than the gap between them are one.
        """
        rows = np.argsort(self.start_ns, kind="stable")
        rows = rows[(self.end_ns[rows] >= low_ns) & (self.start_ns[rows] <= high_ns)]
        start, end = np.maximum(self.start_ns[rows], low_ns), np.minimum(self.end_ns[rows], high_ns)
        colour, hatched = self.colour[rows], self.hatched[rows]
        # A bar inside an earlier one keeps its own place: the later one is drawn above.
        new = np.ones(len(rows), dtype=bool)
        new[1:] = (
            (start[1:] - end[:-1] > gap_ns)
            | (colour[1:] != colour[:-1])
            | (hatched[1:] != hatched[:-1])
        )
        first = np.flatnonzero(new)
        return replace(
            self,
            start_ns=start[first],
            end_ns=np.maximum.reduceat(end, first) if len(first) else end,
            colour=colour[first],
            hatched=hatched[first],
        )


def lanes_of(run: Run | RankRun, placement: Placement | None = None) -> tuple[LaneBars, ...]:
    """Return the lanes of a run: those of its timeline, and below each process what storage did.

    Parameters
    ----------
    placement : Placement, optional
        Where the calls of its trace lie; by default the lanes of storage are left out.
    """
    return tuple(_lanes(run, timeline_of(run, summed=False), placement))


def _lanes(
    run: Run | RankRun, timeline: Timeline, placement: Placement | None
) -> Iterator[LaneBars]:
    spans = timeline.spans
    shown = (spans["kind"] != Kind.OTHER) & (spans["end_ns"] > spans["start_ns"])
    colours = np.array([kind.light for kind in timeline.kinds], dtype=np.str_)
    loads = is_one_of(spans["kind"], WORKER_KINDS)
    placed = {each.process: each for each in placement.processes} if placement else {}
    lanes = timeline.lanes[:MOST_LANES]
    order = dict.fromkeys([*(lane.process for lane in lanes), *sorted(placed)])
    for process in itertools.islice(order, MOST_LANES):
        is_loading = False
        for number, lane in enumerate(lanes):
            # Inner spans are behind those around them: they are drawn above.
            rows = np.flatnonzero(shown & (timeline.lane == number))
            if lane.process == process and len(rows):
                is_loading |= bool(loads[rows].any())
                yield LaneBars(
                    lane.name,
                    spans["start_ns"][rows],
                    spans["end_ns"][rows],
                    colours[timeline.stage[rows]],
                    np.zeros(len(rows), dtype=bool),
                )
        if process in placed and run.trace is not None:
            below = _storage_lane(run.profile, placed[process], run.trace)
            if len(below.start_ns) or is_loading:
                yield below


def _storage_lane(profile: Profile, placed: ProcessPlacement, trace: StorageTrace) -> LaneBars:
    if placed.trace < 0:
        nothing = np.zeros(0, dtype=np.int64)
        return LaneBars(f"  {placed.reason}", nothing, nothing, nothing.astype(str), nothing > 0)
    segments = placed.segments[~placed.segments["stray"]]
    long = np.maximum(segments["end_ns"] - segments["start_ns"], 1)
    colour = np.where(
        segments["exposed_ns"] < 0,
        UNKNOWN,
        np.where(2 * segments["exposed_ns"] >= long, EXPOSED, HIDDEN),
    )
    start, end, streamed_colour, hatched = _streamed(profile, placed, trace)
    name = "  Darshan"
    if not len(segments) and not len(start):
        name = f"  Darshan: {placed.reason or 'no segments'}"
    return LaneBars(
        name,
        np.concatenate((start, segments["start_ns"])),
        np.concatenate((end, segments["end_ns"])),
        np.concatenate((streamed_colour, colour)),
        np.concatenate((hatched, np.zeros(len(segments), dtype=bool))),
        band_ns=placed.high_ns - placed.low_ns,
    )


def _streamed(profile: Profile, placed: ProcessPlacement, trace: StorageTrace) -> Any:
    """Return bars of files read by ``fread``: known by their first and last moment alone."""
    counters = trace.processes[placed.trace].counters
    first, last = counters["stdio_first_read_ns"], counters["stdio_last_read_ns"]
    known = (counters["stdio_reads"] > 0) & (first > 0) & (last >= first)
    process = profile.processes[placed.process]
    times = [
        monotonic_of_wall(process, moment[known]) + placed.offset_ns for moment in (first, last)
    ]
    number = int(known.sum())
    return (*times, np.full(number, HIDDEN), np.ones(number, dtype=bool))


def check_picture_name(path: Path) -> None:
    """Refuse a name whose ending says no sort of picture, and any where nothing can draw.

    Raises
    ------
    OptionError
        If it is none of `PICTURE_SUFFIXES`, or matplotlib is not installed.
    """
    if path.suffix.lower() not in PICTURE_SUFFIXES:
        raise OptionError(f"{path}: expected a name that ends in {', '.join(PICTURE_SUFFIXES)}")
    _matplotlib()


def _matplotlib() -> tuple[Any, Any]:
    """Return the classes that lanes are drawn with."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise MissingExtraError(
            "--lanes: needs matplotlib, which is not installed; pip install 'iobench[darshan]'"
        ) from error
    return Figure, Patch


def draw_lanes(
    run: Run,
    path: Path,
    *,
    between_s: tuple[float, float] | None = None,
) -> None:
    """Draw the lanes of a run into a file.

    Parameters
    ----------
    path : Path
        Its ending says what it becomes: `PICTURE_SUFFIXES`.
    between_s : tuple of float, optional
        Seconds after the first span; by default all of the run.

    Raises
    ------
    OptionError
        If the ending is none of these, matplotlib is not installed, or no span lies between.
    StorageError
        If the file cannot be written.
    """
    check_picture_name(path)
    profile, timeline = run.profile, timeline_of(run, summed=False)
    lanes = tuple(_lanes(run, timeline, _placement(run, profile)))
    filled = [lane for lane in lanes if len(lane.start_ns)]
    if not filled:
        raise OptionError(f"{profile.path}: holds no span to draw")
    zero = min(int(lane.start_ns.min()) for lane in filled)
    low, high = zero, max(int(lane.end_ns.max()) for lane in filled)
    if between_s is not None:
        low, high = (zero + units.nanoseconds(each) for each in between_s)
    gap_ns = (high - low) // PIXELS
    cut = [lane.drawn(low, high, gap_ns) for lane in lanes]
    if not any(len(lane.start_ns) for lane in cut):
        stretch = " and ".join(f"{each:g}" for each in between_s or ())
        raise OptionError(f"{profile.path}: no span between {stretch} s after the first one")
    n_more = len(timeline.lanes) - MOST_LANES
    more = f": the first {MOST_LANES} lanes, {n_more} more" if n_more > 0 else ""
    _draw(cut, path, zero=zero, low=low, high=high, title=_title(profile) + more)


def _placement(run: Run, profile: Profile) -> Placement | None:
    """Return the segments on the profile's clock; whose wait they were only of a single rank."""
    if run.trace is None:
        return None
    return place_segments(profile, run.trace, run.sums.share if len(profile.ranks) < 2 else None)


def _title(profile: Profile) -> str:
    name = profile.about.dataset or profile.config.get("script") or profile.about.command
    return short_path(str(name)) if name else profile.path.name


def _draw(
    lanes: Sequence[LaneBars], path: Path, *, zero: int, low: int, high: int, title: str
) -> None:
    figure_of, patch_of = _matplotlib()
    figure = figure_of(figsize=(13, 1.6 + 0.34 * len(lanes)), layout="constrained")
    axes = figure.subplots()
    for row, lane in enumerate(lanes):
        _draw_lane(axes, row, lane, zero=zero, low=low)
    axes.set_xlim((low - zero) / 1e9, (high - zero) / 1e9)
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    names = [printable(lane.name) for lane in lanes]
    axes.set_yticks(range(len(lanes)), names, fontsize=8, parse_math=False)
    axes.set_xlabel("seconds after the first span")
    axes.set_title(printable(title), fontsize=10, loc="left", parse_math=False)
    axes.grid(axis="x", linewidth=0.4, alpha=0.5)
    patches = [patch_of(color=colour, label=label) for label, colour in LEGEND]
    patches.append(
        patch_of(facecolor=HIDDEN, hatch="////", label="fread: first to last, no segments")
    )
    patches.append(patch_of(color="#e4e4e4", label="uncertainty of the clock"))
    figure.legend(handles=patches, ncols=6, fontsize=7, loc="outside lower center")
    suffix, picture = path.suffix.lower(), BytesIO()
    dateless = {"Date": None} if suffix == ".svg" else None
    figure.savefig(picture, format=suffix[1:], dpi=140, metadata=dateless)
    write_whole(path, picture.getvalue())


def _draw_lane(axes: Any, row: int, lane: LaneBars, *, zero: int, low: int) -> None:
    storage = lane.name.startswith(" ")
    height = 0.5 if storage else 0.8
    if lane.band_ns:
        axes.broken_barh(
            [((low - zero) / 1e9, lane.band_ns / 1e9)], (row - 0.4, 0.8), color="#e4e4e4"
        )
    start = (lane.start_ns - zero) / 1e9
    width = (lane.end_ns - lane.start_ns) / 1e9
    for hatched in (True, False):
        chosen = lane.hatched == hatched
        if not chosen.any():
            continue
        axes.broken_barh(
            list(zip(start[chosen].tolist(), width[chosen].tolist(), strict=True)),
            (row - height / 2, height),
            facecolors=lane.colour[chosen].tolist(),
            hatch="////" if hatched else None,
            edgecolor="white" if hatched else "none",
            linewidth=0,
        )
