"""What counters of energy showed, written beside a run's spans as its reader leaves it there."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from iobench.recording.machine_head import METER_FOLDER, METER_VERSION, UNKNOWN


def source(name: str = "gpu:0", **more: Any) -> dict[str, Any]:
    """Return how a counter describes itself; its kind is the first word of its name."""
    about = {"kind": name.partition(":")[0], "title": "NVIDIA A100", "by": "NVML"}
    return {"name": name, **about, "period_ns": 0, "wraps_uj": None, "estimated": False, **more}


def write_energy(
    run: Path,
    *rows: list[int | None],
    sources: Any = None,
    unreadable: Any = (),
    host: str = "here",
    boot_id: str = "boot",
    end: bytes = b"",
) -> Path:
    """Write one machine's file: a reading for each of ``rows``, its time and each counter.

    What is unknown is None; ``end`` stands after them.
    """
    sources = [source()] if sources is None else sources
    head = {
        "version": METER_VERSION, "host": host, "boot_id": boot_id, "sources": sources,
        "columns": [f"energy:{place}.uj" for place in range(len(sources))],
        "unreadable": [{"kind": kind, "reason": reason} for kind, reason in unreadable],
    }  # fmt: skip
    known = [[UNKNOWN if each is None else each for each in row] for row in rows]
    data = b"".join(struct.pack(f"<{len(row)}q", *row) for row in known)
    path = run / METER_FOLDER / f"{host}-{boot_id[:8]}.samples"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(json.dumps(head).encode() + b"\n" + data + end)
    return path
