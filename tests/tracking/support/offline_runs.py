"""Runs of Weights & Biases read back from their files, without its server.

The file is a log of LevelDB's form behind a head of seven bytes: pieces of a checksum (four
bytes), a length (two) and a type (one: whole, first, middle, last) in blocks of 32 KiB, holding
protocol buffers.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HEAD, PIECE, BLOCK = 7, struct.Struct("<IHB"), 32768
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


@dataclass
class OfflineRun:
    """What one file tells of a run."""

    run: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    artifacts: list[Any] = field(default_factory=list)


def offline_runs(folder: Path) -> list[OfflineRun]:
    """Return the runs below a folder, in the order they were begun."""
    import wandb

    wandb.teardown()  # its own process may still be writing: this waits for its end
    return [_read(path) for path in sorted(folder.rglob("offline-run-*/*.wandb"))]


def _read(path: Path) -> OfflineRun:
    from wandb.proto import wandb_internal_pb2

    found = OfflineRun()
    for data in _pieces(path.read_bytes()):
        told = wandb_internal_pb2.Record()
        told.ParseFromString(data)
        sort = told.WhichOneof("record_type")
        if sort == "run":
            found.run = told.run
            found.config |= {
                each.key: json.loads(each.value_json) for each in told.run.config.update
            }
        elif sort == "config":
            found.config |= {_key(each): json.loads(each.value_json) for each in told.config.update}
        elif sort == "history":
            found.history.append({_key(e): json.loads(e.value_json) for e in told.history.item})
        elif sort == "summary":
            found.summary |= {_key(e): json.loads(e.value_json) for e in told.summary.update}
        elif sort == "artifact":
            found.artifacts.append(told.artifact)
    return found


def _key(item: Any) -> str:
    return item.key or ".".join(item.nested_key)


def _pieces(content: bytes) -> list[bytes]:
    found, parts, at = [], [], HEAD
    while at + PIECE.size <= len(content):
        if BLOCK - at % BLOCK < PIECE.size:
            at += BLOCK - at % BLOCK
            continue
        _, length, sort = PIECE.unpack_from(content, at)
        if not sort:
            break
        at += PIECE.size
        parts.append(content[at : at + length])
        at += length
        if sort in (WHOLE, LAST):
            found.append(b"".join(parts))
            parts = []
    return found
