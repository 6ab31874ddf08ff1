#!/usr/bin/env python3
"""Whole runs, what their sums are by a count of its own, and the same runs within a bound.

``bounded.py --renew`` counts the whole runs of ``bounded`` anew, and bounds them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

sys.path.append(str(Path(__file__).parents[2]))

from iobench.recording import span_file as layout
from iobench.recording.kinds import WAITING_KINDS, Kind, stage_name
from iobench.recording.recorder import Recorder
from iobench.recording.rotation import LoopRotation, Rotation
from iobench.recording.span_reader import read_span_file
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


def bound(whole: Path, into: Path, keep_nbytes: int = KEEP_NBYTES) -> None:
    """Write a whole run again, span by span as its processes did, by recorders with a bound."""
    shutil.copytree(whole, into, ignore=shutil.ignore_patterns("*.spans"))
    shutil.rmtree(into / "spans")
    lanes = lanes_of(whole)
    clock = FakeClock(0)
    held = {"latest": -1, "count": 0}
    consumer = next(lane.process for lane in lanes if lane.identity.role == "consumer")
    recorders: dict[int, tuple[Recorder, layout.Identity]] = {}
    for lane in sorted(lanes, key=lambda each: each.process != consumer):
        who = lane.identity
        if lane.process == consumer and lane.process not in recorders:
            rotation: Rotation = LoopRotation(
                keep_nbytes, lambda: (held["latest"], held["count"]), (into / "spans",)
            )
        elif lane.process not in recorders:
            rotation = Rotation(keep_nbytes, recorders[consumer][0].path)
        if lane.process not in recorders:
            made = Recorder(
                into / "spans", role=who.role, worker=who.worker, rank=who.rank, clock=clock,
                rotation=rotation,
            )  # fmt: skip
            recorders[lane.process] = made, who
    places, rows = [], []
    for number, lane in enumerate(lanes):
        recorder = recorders[lane.process][0]
        places.append((recorder, recorder.foreign_lane(lane.thread)))
        rows += [(row["end_ns"], number, row) for row in lane.spans]
    last_ns = {lane.process: 0 for lane in lanes}
    for end_ns, number, _ in rows:
        process = lanes[number].process
        last_ns[process] = max(last_ns[process], end_ns)
    for end_ns, number, row in sorted(rows, key=lambda each: each[:2]):
        clock.advance(max(end_ns - clock.now_ns(), 0))
        recorder, place = places[number]
        texts = {key: recorder.string(row[key]) for key in ("label", "detail")}
        recorder.emit_on(place, **{**row, **texts})
        if row["kind"] == Kind.WAIT and row["batch"] >= 0:
            held["latest"], held["count"] = row["batch"], held["count"] + 1
            recorders[consumer][0].rotation.look(recorders[consumer][0])
        process = lanes[number].process
        if end_ns == last_ns[process] and process != consumer:
            recorder.close()
            assert recorder.path is not None
            who = recorders[process][1]
            _rewrite(recorder.path, msgspec.structs.replace(who, ppid=os.getpid()))
    for recorder, who in recorders.values():
        recorder.close()
        assert recorder.path is not None
        if recorder.path.exists():
            _rename(recorder.path, who)


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
    stem = f"{identity.host}-{identity.pid}-{identity.worker + 1}-{number}"
    for each in path.parent.glob(f"{path.stem}.*"):
        each.rename(each.with_name(stem + each.name.removeprefix(path.stem)))


def pack(run: Path, name: str) -> None:
    """Pack a run as the only thing in an archive, the same each time."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime = entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(PLACE / f"{name}.tar.xz", "w:xz", preset=9) as archive:
        archive.add(run, "run", filter=plain)


def main() -> None:
    """Count the whole runs, and write them again within a bound."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--renew", action="store_true", required=True)
    options.parse_args()
    for packed in sorted(PLACE.glob("*-whole.tar.xz")):
        name = packed.name.removesuffix("-whole.tar.xz")
        with tempfile.TemporaryDirectory() as place:
            whole = unpacked(f"{name}-whole", Path(place))
            text = json.dumps(true_sums(lanes_of(whole)), indent=1, sort_keys=True)
            (PLACE / f"{name}.json").write_text(f"{text}\n")
            bound(whole, Path(place, "bounded"))
            pack(Path(place, "bounded"), f"{name}-bounded")


if __name__ == "__main__":
    main()
