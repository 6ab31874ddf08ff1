"""How a parallel file system has laid out a file: by its attributes, else by its tools.

Lustre's attribute ``lustre.lov`` is the structure ``lov_mds_md`` or ``lov_comp_md_v1`` of
``lustre_user.h``, in little-endian; a folder with the defaults of its file system has none. BeeGFS
is asked by ``beegfs-ctl --getentryinfo``, and from version 8 on by ``beegfs entry info --retro``,
which prints the same. GPFS tells its block in ``st_blksize``.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from typing import TYPE_CHECKING, Final

from iobench.frozen import frozen
from iobench.storage.file_systems import TIMEOUT_S, within_time

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.storage.file_systems import FileSystem

UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
LOV_V1, LOV_V3, LOV_COMPOSITE = 0x0BD10BD0, 0x0BD30BD0, 0x0BD60BD0
"""Magic numbers: one layout, one with the name of a pool, several in a row."""


@frozen
class StripedPart:
    """One part of a file, in stripes over targets.

    Parameters
    ----------
    start, end : int
        Bytes; the end is -1 where the part has none.
    stripe_count : int
        Targets; 0 where the data is with the metadata, -1 for all there are.
    pattern : str
        As the file system calls it: ``"raid0"``, ``"mdt"``; ``"blocks"`` of GPFS, which spreads
        them over the disks of a pool; ``""`` where it does not tell.
    targets : tuple of int
        Their numbers, as far as they have been chosen.
    """

    start: int
    end: int
    stripe_count: int
    stripe_nbytes: int
    pattern: str = ""
    targets: tuple[int, ...] = ()


@frozen
class FileLayout:
    """How a file lies on the servers; of a folder, how new files in it will."""

    parts: tuple[StripedPart, ...]
    default: bool = False


def layout_of(path: Path, file_system: FileSystem) -> FileLayout | None:
    """Return the layout of a file or folder; None where nothing tells within five seconds each."""
    is_folder = within_time(path.is_dir)
    match file_system.name:
        case "lustre" if is_folder is not None:
            raw = within_time(lambda: os.getxattr(path, "lustre.lov"))
            return None if raw is None else parse_lov(raw, is_folder=is_folder)
        case "beegfs":
            text = _said(["beegfs-ctl", "--getentryinfo", str(path)])
            text = text or _said(["beegfs", "entry", "info", "--retro", str(path)])
            return None if text is None else parse_beegfs(text)
        case "gpfs" if is_folder is not None:
            status = within_time(path.stat)
            if status is not None and status.st_blksize > 0:
                part = StripedPart(0, -1, -1, status.st_blksize, "blocks")
                return FileLayout((part,), default=is_folder)
    return None


def parse_lov(raw: bytes, *, is_folder: bool = False) -> FileLayout | None:
    """Return what Lustre's attribute says; None of anything else, or of a part of one."""
    try:
        if struct.unpack_from("<I", raw)[0] != LOV_COMPOSITE:
            return FileLayout((_lov_part(raw, 0, -1),), is_folder)
        n = struct.unpack_from("<14xH", raw)[0]
        parts = []
        for at in range(32, 32 + 48 * n, 48):
            start, end, offset, nbytes = struct.unpack_from("<8xQQII", raw, at)
            part = raw[offset : offset + nbytes]
            parts.append(_lov_part(part, start, -1 if end == (1 << 64) - 1 else end))
    except (struct.error, ValueError):
        return None
    return FileLayout(tuple(parts), is_folder) if parts else None


def _lov_part(raw: bytes, start: int, end: int) -> StripedPart:
    magic, pattern, stripe_nbytes, count = struct.unpack_from("<II16xIH", raw)
    if magic not in (LOV_V1, LOV_V3):
        raise ValueError(f"{magic:#x}")
    objects = raw[32 if magic == LOV_V1 else 48 :]  # of each 24 bytes the last are its target
    return StripedPart(
        start=start,
        end=end,
        stripe_count=-1 if count == 0xFFFF else count,
        stripe_nbytes=stripe_nbytes,
        pattern="mdt" if pattern & 0x100 else "raid0" if pattern & 1 else "",
        targets=tuple(
            each[0] for each in struct.iter_unpack("<20xI", objects[: len(objects) // 24 * 24])
        ),
    )


def parse_beegfs(text: str) -> FileLayout | None:
    """Return what ``beegfs-ctl --getentryinfo`` printed; None of anything else."""
    size = re.search(r"^\s*\+ Chunksize: (\d+)([KMGT]?)", text, re.MULTILINE | re.IGNORECASE)
    count = re.search(r"^\s*\+ Number of storage targets: (.*)$", text, re.MULTILINE)
    if size is None or count is None:
        return None
    told = dict(re.findall(r"(desired|actual): (\d+)", count[1]))
    n = told.get("actual") or told.get("desired")
    if n is None:
        return None
    pattern = re.search(r"^\s*\+ Type: (.*)$", text, re.MULTILINE)
    targets = re.findall(r"^\s*\+ (\d+) @ ", text, re.MULTILINE)
    part = StripedPart(
        start=0,
        end=-1,
        stripe_count=int(n),
        stripe_nbytes=int(size[1]) * UNITS[size[2].upper()],
        pattern="" if pattern is None else pattern[1].strip().lower(),
        targets=tuple(map(int, targets)),
    )
    return FileLayout((part,), default="actual" not in told)


def _said(command: list[str]) -> str | None:
    """Return what a tool prints; None where there is none, it fails, or takes too long."""
    tool = shutil.which(command[0])
    if tool is None:
        return None
    try:
        done = subprocess.run(
            [tool, *command[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
