"""The rules of Chrome's trace event format, and what viewers demand beside them.

``check_trace(document)`` fails with the entry that breaks one. The rules are those of the document
"Trace Event Format": what each sort of entry must have, and that spans of a thread nest. Beside it
stands what Perfetto's importer needs: arrows that begin before they end, in a span each.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

Entry = Mapping[str, Any]
Lane = tuple[int, int]

NEEDED: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "X": {"name": str, "ts": (int, Decimal), "dur": (int, Decimal), "pid": int, "tid": int},
    "b": {"name": str, "cat": str, "ts": (int, Decimal), "pid": int, "tid": int, "id": (int, str)},
    "e": {"name": str, "cat": str, "ts": (int, Decimal), "pid": int, "tid": int, "id": (int, str)},
    "s": {"name": str, "cat": str, "ts": (int, Decimal), "pid": int, "tid": int, "id": (int, str)},
    "t": {"name": str, "cat": str, "ts": (int, Decimal), "pid": int, "tid": int, "id": (int, str)},
    "f": {"name": str, "cat": str, "ts": (int, Decimal), "pid": int, "tid": int, "id": (int, str)},
    "C": {"name": str, "ts": (int, Decimal), "pid": int, "args": dict},
    "i": {"name": str, "ts": (int, Decimal), "pid": int, "tid": int, "s": str},
    "M": {"name": str, "pid": int, "args": dict},
}
METADATA: Mapping[str, tuple[str, type]] = {
    "process_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


def read_trace(path: Path) -> dict[str, Any]:
    """Return a trace file's document, its times as exact decimals."""
    data = path.read_bytes()
    if path.name.endswith(".gz"):
        data = gzip.decompress(data)
    found = json.loads(data, parse_float=Decimal)
    assert isinstance(found, dict)
    return found


def check_trace(document: Mapping[str, Any]) -> None:
    """Fail if a document breaks a rule."""
    entries = document["traceEvents"]
    assert isinstance(entries, list)
    assert document.get("displayTimeUnit", "ms") in ("ms", "ns")
    for entry in entries:
        _check_entry(entry)
    _check_names(entries)
    spans = _spans(entries)
    for lane, of_lane in spans.items():
        _check_nesting(lane, of_lane)
    _check_arrows(entries, spans)
    _check_pairs(entries)


def _check_entry(entry: Entry) -> None:
    assert isinstance(entry, dict), entry
    needed = NEEDED.get(entry.get("ph", ""))
    assert needed is not None, f"an entry of no sort that is known: {entry}"
    for name, kind in needed.items():
        value = entry.get(name)
        assert isinstance(value, kind), f"{name!r}: {entry}"
        assert not isinstance(value, bool), f"{name!r}: {entry}"
    assert entry.get("ts", 0) >= 0, f"before the beginning: {entry}"
    assert entry.get("dur", 0) >= 0, f"ends before it begins: {entry}"
    assert isinstance(entry.get("args", {}), dict), entry
    if entry["ph"] == "C":
        assert entry["args"], entry
        for value in entry["args"].values():
            assert type(value) in (int, Decimal), f"a counter of no number: {entry}"
    if entry["ph"] == "i":
        assert entry["s"] in ("g", "p", "t"), entry
    if entry["ph"] == "M":
        key, kind = METADATA[entry["name"]]
        assert type(entry["args"][key]) is kind, entry


def _check_names(entries: Iterable[Entry]) -> None:
    """Every process and thread that does something has a name, and one only."""
    named: dict[str, list[Any]] = defaultdict(list)
    for entry in entries:
        if entry["ph"] == "M" and entry["name"].endswith("_name"):
            whose = (
                entry["pid"] if entry["name"] == "process_name" else (entry["pid"], entry["tid"])
            )
            named[entry["name"]].append(whose)
    for name, whose in named.items():
        assert len(whose) == len(set(whose)), f"{name}: given twice"
    for entry in entries:
        if entry["ph"] != "M":
            assert entry["pid"] in named["process_name"], f"a process without a name: {entry}"
        if entry["ph"] in "Xbe":
            lane = entry["pid"], entry["tid"]
            assert lane in named["thread_name"], f"a thread without a name: {entry}"


def _spans(entries: Iterable[Entry]) -> dict[Lane, list[tuple[Decimal, Decimal]]]:
    found: dict[Lane, list[tuple[Decimal, Decimal]]] = defaultdict(list)
    for entry in entries:
        if entry["ph"] == "X":
            start = Decimal(entry["ts"])
            found[entry["pid"], entry["tid"]].append((start, start + entry["dur"]))
    return {
        lane: sorted(spans, key=lambda span: (span[0], -span[1])) for lane, spans in found.items()
    }


def _check_nesting(lane: Lane, spans: Iterable[tuple[Decimal, Decimal]]) -> None:
    around: list[Decimal] = []
    for start, end in spans:
        while around and around[-1] <= start:
            around.pop()
        assert not around or end <= around[-1], f"thread {lane}: {start} to {end} overlaps another"
        around.append(end)


def _check_arrows(
    entries: Iterable[Entry], spans: Mapping[Lane, list[tuple[Decimal, Decimal]]]
) -> None:
    arrows: dict[Any, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry["ph"] in "stf":
            arrows[entry["cat"], entry["name"], entry["id"]].append(entry)
            lane = entry["pid"], entry["tid"]
            held = any(low <= entry["ts"] < high for low, high in spans.get(lane, ()))
            assert held, f"an arrow's end in no span: {entry}"
    for points in arrows.values():
        letters = "".join(point["ph"] for point in points)
        assert letters in ("sf", "stf", "sttf"), f"no whole arrow: {points}"
        times = [point["ts"] for point in points]
        assert times == sorted(times), f"an arrow back in time: {points}"
        assert points[-1].get("bp") == "e", f"bound to what follows it: {points[-1]}"


def _check_pairs(entries: Iterable[Entry]) -> None:
    begun: dict[Any, Any] = {}
    for entry in entries:
        if entry["ph"] not in "be":
            continue
        key = entry["cat"], entry["id"], entry["name"]
        if entry["ph"] == "b":
            assert key not in begun, f"begun twice: {entry}"
            begun[key] = entry["ts"]
        else:
            assert begun.pop(key) <= entry["ts"], f"ended before it began: {entry}"
    assert not begun, f"never ended: {begun}"
