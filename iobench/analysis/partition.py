"""Nested spans to pieces: each instant of a thread belongs to the innermost span alone."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.analysis.time_intervals import Nesting, nesting, overlap_ns

Integers = NDArray[np.int64]


class Pieces(msgspec.Struct, frozen=True):
    """Stretches of threads that never overlap on one lane, by lane and time; a row for each."""

    start_ns: Integers
    end_ns: Integers
    lane: Integers  # which thread, as given to `leaf_pieces`
    span: Integers  # row of the span in the table given to `leaf_pieces`
    # The span's batch; where it has none, that of the span around it, or of its neighbours where
    # both are of one batch; else -1
    batch: Integers
    # On a span's first piece its CPU time less that of the spans directly inside it, -1 where
    # unknown; 0 on its further pieces
    cpu_ns: Integers
    first: NDArray[np.bool_]  # whether it is the first piece of its span

    @property
    def duration_ns(self) -> Integers:
        """Length of each piece."""
        return self.end_ns - self.start_ns


def leaf_pieces(spans: NDArray[Any], lane: NDArray[Any]) -> Pieces:
    """Return the pieces of spans; of several at one instant the last one begun has it.

    Spans of one lane, in any order, may nest or overlap; sums per lane are the time that at least
    one of its spans covers.
    """
    # An inner span is written before the one around it, so of two alike the first is inside.
    order = np.lexsort(
        (-spans["sequence"].astype(np.int64), -spans["end_ns"], spans["start_ns"], lane)
    )
    start = spans["start_ns"][order]
    end = np.maximum(spans["end_ns"][order], start)
    lane = np.asarray(lane, dtype=np.int64)[order]
    batch = spans["batch"][order].astype(np.int64)
    cpu = spans["cpu_ns"][order].copy()
    nested = nesting(start, end, lane)
    plain = _inside_each_other(nested, start, end, batch, cpu)
    mixed = _sweep(np.flatnonzero(~nested.regular), start, end, lane, batch, cpu)
    piece_span, piece_start, piece_end = map(np.concatenate, zip(plain, mixed, strict=True))
    result = np.zeros(len(order), dtype=bool)
    result[piece_span] = True
    bare = np.flatnonzero(~result)
    piece_span = np.concatenate((piece_span, bare))
    piece_start = np.concatenate((piece_start, start[bare]))
    piece_end = np.concatenate((piece_end, start[bare]))
    sequence = np.lexsort((piece_span, piece_end, piece_start, lane[piece_span]))
    piece_span, piece_start = piece_span[sequence], piece_start[sequence]
    first_place = np.zeros(len(order), dtype=np.int64)
    first_place[piece_span[::-1]] = np.arange(len(piece_span))[::-1]
    first = np.zeros(len(piece_span), dtype=bool)
    first[first_place] = True
    return Pieces(
        start_ns=piece_start,
        end_ns=piece_end[sequence],
        lane=lane[piece_span],
        span=order[piece_span].astype(np.int64),
        batch=_batch_by_neighbours(batch[piece_span], lane[piece_span]),
        cpu_ns=np.where(first, cpu[piece_span], 0),
        first=first,
    )


def _inside_each_other(
    nested: Nesting, start: Integers, end: Integers, batch: Integers, cpu: Integers
) -> tuple[Integers, Integers, Integers]:
    """Return what `_sweep` does, of the spans that are regular."""
    rows = np.flatnonzero(nested.regular)
    inner = rows[nested.parent[rows] >= 0]
    around = nested.parent[inner]
    by_level = inner[batch[inner] < 0]
    by_level = by_level[np.argsort(nested.level[by_level], kind="stable")]
    steps = np.flatnonzero(np.diff(nested.level[by_level])) + 1
    for of_level in np.split(by_level, steps):
        batch[of_level] = batch[nested.parent[of_level]]
    outer = np.zeros(len(cpu), dtype=bool)
    outer[around] = True
    inner_cpu = np.zeros(len(cpu), dtype=np.int64)
    np.add.at(inner_cpu, around, np.maximum(cpu[inner], 0))
    unknown = np.zeros(len(cpu), dtype=bool)
    unknown[around[cpu[inner] < 0]] = True
    outer &= cpu >= 0
    cpu[outer] = np.where(unknown, -1, np.maximum(cpu - inner_cpu, 0))[outer]
    # A span has what lies before its first inner one, and after each until the next.
    has_inner = np.append(nested.parent, -1)[rows + 1] == rows
    until = np.where(has_inner, np.append(start, 0)[rows + 1], end[rows])
    inner = inner[np.argsort(around, kind="stable")]
    around = nested.parent[inner]
    is_last = np.diff(around, append=-1) != 0
    next_start = np.where(is_last, end[around], np.roll(start[inner], -1))
    piece_span = np.concatenate((rows, around))
    piece_start = np.concatenate((start[rows], end[inner]))
    piece_end = np.concatenate((until, next_start))
    some = piece_end > piece_start
    return piece_span[some], piece_start[some], piece_end[some]


def _sweep(
    rows: Integers,
    start: Integers,
    end: Integers,
    lane: Integers,
    batch: Integers,
    cpu: Integers,
) -> tuple[Integers, Integers, Integers]:
    """Return (row, start, end) of the pieces of overlapping spans; fill in batch, reduce cpu."""
    pieces: list[tuple[int, int, int]] = []
    stack: list[tuple[int, int]] = []  # (end, row), innermost last
    cursor, current = 0, None
    starts, ends, lanes = start[rows].tolist(), end[rows].tolist(), lane[rows].tolist()
    children_cpu: dict[int, int] = {}
    for row, begin, finish, of_lane in zip(rows.tolist(), starts, ends, lanes, strict=True):
        cursor = _emit(pieces, stack, cursor, begin if of_lane == current else None)
        cursor, current = begin, of_lane
        if stack:
            around = stack[-1][1]
            if batch[row] < 0:
                batch[row] = batch[around]
            known = children_cpu.get(around, 0)
            inner = int(cpu[row])
            children_cpu[around] = known + inner if known >= 0 and inner >= 0 else -1
        stack.append((finish, row))
    _emit(pieces, stack, cursor, None)
    for row, inner in children_cpu.items():
        if cpu[row] >= 0:
            cpu[row] = max(int(cpu[row]) - inner, 0) if inner >= 0 else -1
    table = np.array(pieces, dtype=np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def _emit(
    pieces: list[tuple[int, int, int]],
    stack: list[tuple[int, int]],
    cursor: int,
    until: int | None,
) -> int:
    """Give the time from ``cursor`` on to the open spans; None closes them all."""
    while stack:
        finish, row = stack[-1]
        stop = finish if until is None else min(finish, until)
        if stop > cursor:
            pieces.append((row, cursor, stop))
            cursor = stop
        if until is not None and finish > until:
            break
        stack.pop()
    return cursor


def _batch_by_neighbours(batch: Integers, lane: Integers) -> Integers:
    """Give a piece without a batch that of its neighbours on the lane, where they agree."""
    known = np.flatnonzero(batch >= 0)
    if not len(known) or len(known) == len(batch):
        return batch
    unknown = np.flatnonzero(batch < 0)
    place = np.searchsorted(known, unknown)
    inside = (place > 0) & (place < len(known))
    unknown, place = unknown[inside], place[inside]
    before, after = known[place - 1], known[place]
    agree = (batch[before] == batch[after]) & (lane[before] == lane[after])
    filled = batch.copy()
    filled[unknown[agree]] = batch[before[agree]]
    return filled


def pieces_inside(
    start_ns: Integers, end_ns: Integers, low_ns: Integers, high_ns: Integers
) -> tuple[Integers, Integers, Integers]:
    """Return which pieces of one thread lie in each of some stretches of time, and how long.

    No piece is empty or overlaps another, and they are in order of time. Each pair that meets has
    a row: stretch, piece, length; pieces of a stretch lie side by side.
    """
    first = np.searchsorted(end_ns, low_ns, side="right")
    n_pieces = np.maximum(np.searchsorted(start_ns, high_ns, side="left") - first, 0)
    stretch = np.repeat(np.arange(len(low_ns)), n_pieces)
    before = np.repeat(np.cumsum(n_pieces) - n_pieces, n_pieces)
    piece = np.arange(len(stretch)) - before + first[stretch]
    length = overlap_ns(start_ns[piece], end_ns[piece], low_ns[stretch], high_ns[stretch])
    return stretch, piece, length
