"""Whole runs, what their sums are by a count of its own, and the same runs within a bound."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tarfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from iobench.recording import span_file as layout
from iobench.recording.kinds import WAITING_KINDS, Kind, stage_name
from iobench.recording.recorder import Recorder
from iobench.recording.rotation import LoopRotation, Rotation
from iobench.recording.span_reader import read_head, read_span_file
from iobench.testing import FakeClock

PLACE = Path(__file__).parent / "bounded"
KEEP_NBYTES = 1_000_000
"""The least that ``IOBENCH_KEEP`` takes."""
NEVER_SUMMED = layout.Flag.DETAIL | layout.Flag.IO | layout.Flag.DEVICE


@dataclasses.dataclass
class Lane:
    """The spans of one thread of one process, in the order of their ends."""

    process: int
    identity: layout.Identity
    thread: str
    spans: list[dict[str, Any]]
    """By name as `Recorder.emit` takes them, ``label`` and ``detail`` as texts."""


def unpacked(name: str, into: Path) -> Path:
    """Unpack a run of ``bounded``; return its directory."""
    with tarfile.open(PLACE / f"{name}.tar.xz") as archive:
        archive.extractall(into / name, filter="data")
    return into / name / "run"


def lanes_of(run: Path) -> list[Lane]:
    """Return what each thread of a whole run recorded."""
    found = []
    for process, path in enumerate(sorted((run / "spans").glob("*.spans"))):
        file = read_span_file(path)
        assert file.sums is None
        assert not file.lost
        assert file.spans.dtype.names is not None
        names = [name for name in file.spans.dtype.names if name != "sequence"]
        rows = [dict(zip(names, row, strict=True)) for row in file.spans[names].tolist()]
        for row in rows:
            row |= {key: file.strings.get(row[key], "") for key in ("label", "detail")}
        for number, thread in enumerate(file.thread_names):
            mine = [row for row, of in zip(rows, file.threads, strict=True) if of == number]
            who = layout.Identity(
                file.pid, file.ppid, file.rank, file.worker, file.role, file.host, file.boot_id,
                file.start.monotonic_ns, file.start.wall_ns,
            )  # fmt: skip
            found.append(Lane(process, who, thread, mine))
    return found


def true_sums(lanes: list[Lane]) -> dict[str, Any]:
    """Return spans, own time and bytes by stage and role, and batches and waits of the loop.

    Own time is a span's without that of spans directly inside it on its thread; of waits all of it.
    A stage's bytes are None where one of its spans does not know them.
    """
    stages: dict[str, dict[str, Any]] = {}
    loop = {"batches": 0, "wait_ns": 0}
    for lane in lanes:
        for row, own_ns in _with_own_time(lane.spans):
            kind = Kind(row["kind"])
            if kind == Kind.WAIT:
                loop["batches"] += row["batch"] >= 0
                loop["wait_ns"] += own_ns
            name = f"{lane.identity.role}: {stage_name(kind, row['label'])}"
            each = stages.setdefault(name, {"spans": 0, "own_ns": 0, "nbytes": 0})
            each["spans"] += 1
            each["own_ns"] += own_ns
            known = each["nbytes"] is not None and row["nbytes"] >= 0
            each["nbytes"] = each["nbytes"] + row["nbytes"] if known else None
    return {"loop": loop, "stages": stages}


def _with_own_time(spans: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the spans that are summed, but passes over loaders, with their own time."""
    counted = [
        row
        for row in spans
        if not row["flags"] & NEVER_SUMMED and not (row["kind"] == Kind.OTHER and row["label"])
    ]
    inside_ns: dict[int, int] = defaultdict(int)
    around: list[int] = []
    order = sorted(
        (place for place, row in enumerate(counted) if Kind(row["kind"]) not in WAITING_KINDS),
        key=lambda place: (counted[place]["start_ns"], -counted[place]["end_ns"], -place),
    )
    for place in order:
        row = counted[place]
        while around and counted[around[-1]]["end_ns"] < row["end_ns"]:
            around.pop()
        if around:
            inside_ns[around[-1]] += row["end_ns"] - row["start_ns"]
        around.append(place)
    for place, row in enumerate(counted):
        yield row, max(row["end_ns"] - row["start_ns"] - inside_ns[place], 0)


def bound(
    whole: Path, into: Path, keep_nbytes: int = KEEP_NBYTES, *, times: int = 1, rank: int = 0
) -> int:
    """Write a whole run again, span by span as its processes did, by recorders with a bound.

    ``times`` over, each time with new workers; return the most that its files took at once.
    """
    if not into.exists():
        shutil.copytree(whole, into, ignore=shutil.ignore_patterns("*.spans"))
        shutil.rmtree(into / "spans")
    lanes, clock = lanes_of(whole), FakeClock(0)
    consumer = next(lane.process for lane in lanes if lane.identity.role == "consumer")
    held = {"latest": -1, "count": 0}
    rotation: Rotation = LoopRotation(
        keep_nbytes, lambda: (held["latest"], held["count"]), (into / "spans",)
    )
    recorders: dict[tuple[int, int], Recorder] = {}
    places: dict[tuple[int, int], Any] = {}
    rows = _rows(lanes, times, consumer)
    last = {process: place for place, (_, process, *_) in enumerate(rows)}
    most_nbytes = 0
    for place, (end_ns, process, number, row) in enumerate(rows):
        clock.advance(max(end_ns - clock.now_ns(), 0))
        for each in ((consumer, 0), process):
            if each not in recorders:
                who = next(lane.identity for lane in lanes if lane.process == each[0])
                recorders[each] = Recorder(
                    into / "spans", role=who.role, worker=who.worker, rank=rank, clock=clock,
                    rotation=rotation,
                )  # fmt: skip
                rotation = Rotation(keep_nbytes, recorders[consumer, 0].path)
        recorder, loop = recorders[process], recorders[consumer, 0]
        if (process[1], number) not in places:
            places[process[1], number] = recorder.foreign_lane(lanes[number].thread)
        texts = {key: recorder.string(row[key]) for key in ("label", "detail")}
        recorder.emit_on(places[process[1], number], **{**row, **texts})
        if row["kind"] == Kind.WAIT and row["batch"] >= 0:
            held["latest"], held["count"] = row["batch"], held["count"] + 1
            loop.rotation.look(loop)
            nbytes = sum(each.stat().st_size for each in (into / "spans").iterdir())
            most_nbytes = max(most_nbytes, nbytes)
        if last[process] == place:
            recorder.close()
            if recorder is not loop and recorder.path is not None:
                head = read_head(recorder.path)
                _rewrite(recorder.path, msgspec.structs.replace(head, ppid=os.getpid()))
    for process, recorder in recorders.items():
        if recorder.path is not None and recorder.path.exists():
            who = next(lane.identity for lane in lanes if lane.process == process[0])
            _rename(recorder.path, msgspec.structs.replace(who, rank=rank))
    return most_nbytes


def _rows(
    lanes: list[Lane], times: int, consumer: int
) -> list[tuple[int, tuple[int, int], int, dict[str, Any]]]:
    """Return the spans of a run in the order of their ends: (end, process, lane, span).

    Each time over batches, passes and epochs have new numbers, and workers are other processes.
    """
    spans = [row for lane in lanes for row in lane.spans]
    begin = min(row["start_ns"] for row in spans)
    lasts = max(row["end_ns"] for row in spans) - begin + 1
    counts = {
        name: 1 + max(row[name] for row in spans if row["kind"] == Kind.WAIT)
        for name in ("batch", "sample", "epoch")
    }
    rows = []
    for turn in range(times):
        for number, lane in enumerate(lanes):
            process = lane.process, 0 if lane.process == consumer else turn
            for row in lane.spans:
                moved = {
                    name: row[name] + turn * count
                    for name, count in counts.items()
                    if row[name] >= 0
                    and (name != "sample" or row["kind"] in (Kind.WAIT, Kind.OTHER))
                }
                moved |= {key: row[key] + turn * lasts for key in ("start_ns", "end_ns")}
                rows.append((moved["end_ns"], process, number, {**row, **moved}))
    return sorted(rows, key=lambda each: (each[0], each[2]))


def _rewrite(path: Path, identity: layout.Identity) -> None:
    """Let a span file say who wrote it."""
    data = bytearray(path.read_bytes())
    packed = identity.packed()
    data[: len(packed)] = packed
    layout.IDENTITY_CRC.pack_into(data, layout.IDENTITY_CRC_OFFSET, zlib.crc32(packed))
    path.write_bytes(data)


def _rename(path: Path, identity: layout.Identity) -> None:
    """Let a span file say who wrote it, in its name as well."""
    _rewrite(path, identity)
    number = path.stem.rpartition("-")[2]
    stem = f"{identity.host}-{identity.pid}-{identity.rank or ''}{identity.worker + 1}-{number}"
    for each in path.parent.glob(f"{path.stem}.*"):
        each.rename(each.with_name(stem + each.name.removeprefix(path.stem)))
