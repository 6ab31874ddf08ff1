"""Layouts read from Lustre's attribute, and from what ``beegfs-ctl`` prints.

The texts are outputs of real systems as their owners published them: BeeGFS 7 of a user's cluster
(names of hosts changed), of ABCI's documentation and of BeeGFS' own (7.2, "Deep Inspection"),
BeeGFS 8 of its own (``entry info --retro``). Attributes are built by the structures of
``lustre_user.h`` for layouts that ``lfs getstripe`` printed of real files, with the offsets and
sizes that ``getstripe -v`` printed of one.
"""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from iobench.storage.file_systems import FileSystem
from iobench.storage.striping import (
    FileLayout,
    StripedPart,
    layout_of,
    parse_beegfs,
    parse_lov,
)

MIB = 1 << 20

PLAIN = StripedPart(0, -1, 1, MIB, "raid0", (5,))
WIDE = StripedPart(0, -1, 4, 2 * MIB, "raid0", (0, 1, 3, 2))
ON_MDT = (StripedPart(0, MIB, 0, MIB, "mdt"), StripedPart(MIB, -1, -1, 4 * MIB, "raid0"))
PROGRESSIVE = (
    StripedPart(0, MIB, 1, MIB, "raid0", (0,)),
    StripedPart(MIB, -1, 2, MIB, "raid0", (1, 0)),
)
BEEGFS_FILE = """{
    Entry type: file
    EntryID: 0-6725E8D9-BE
    Metadata buddy group: 1
    Current primary metadata node: node1 [ID: 190]
    Stripe pattern details:
    + Type: RAID0
    + Chunksize: 512K
    + Number of storage targets: desired: 4; actual: 1
    + Storage targets:
    + 1911 @ node2 [ID: 191]
}
"""
BEEGFS_FOLDER = """New chunksize: 4194304
New number of storage targets: 8

EntryID: 0-5D36F5EC-1
Metadata node: node1 [ID: 1]
Stripe pattern details:
+ Type: RAID0
+ Chunksize: 4M
+ Number of storage targets: desired: 8
+ Storage Pool: 1 (Default)
"""
BEEGFS_LOWER = """Entry type: file
EntryID: 0-5D285750-1
Metadata node: node1.beeg.local [ID: 1]
Stripe pattern details:
+ Type: RAID0
+ Chunksize: 512k
+ Number of storage targets: desired: 2; actual: 2
+ Storage targets:
  + 1 @ node1.beeg.local [ID: 1]
  + 2 @ node2.beeg.local [ID: 2]
Chunk path: u0/0/r/root/0-5EC39809-1
Dentry path: 38/51/root/
"""
BEEGFS_8 = """Entry type: directory
EntryID: root
ParentID:
Stripe pattern details:
+ Type: RAID0
+ Chunksize: 1M
+ Number of storage targets: desired: 4
+ Storage Pool: 1  (default)
Inlined inode: no
Inode info:
"""
V1, V3, COMPOSITE = 0x0BD10BD0, 0x0BD30BD0, 0x0BD60BD0


def _lov(part: StripedPart, magic: int = V1, pattern: int = 1) -> bytes:
    """Return ``struct lov_mds_md`` of a part: its head, a pool's name if it has one, objects."""
    head = struct.pack(
        "<II16xIHH", magic, pattern, part.stripe_nbytes, part.stripe_count & 0xFFFF, 0
    )
    pool = b"flash".ljust(16, b"\0") if magic == V3 else b""
    return head + pool + b"".join(struct.pack("<16xII", 0, each) for each in part.targets)


def _composite(parts: tuple[StripedPart, ...], blobs: list[bytes]) -> bytes:
    """Return ``struct lov_comp_md_v1``: its head of 32 bytes, entries of 48, and the layouts."""
    at = 32 + 48 * len(parts)
    entries = b""
    for number, (part, blob) in enumerate(zip(parts, blobs, strict=True), start=1):
        end = part.end if part.end >= 0 else (1 << 64) - 1
        entries += struct.pack("<IIQQIII12x", number, 0x10, part.start, end, at, len(blob), 0)
        at += len(blob)
    return struct.pack("<IIIHHH14x", COMPOSITE, at, 2, 0, len(parts), 0) + entries + b"".join(blobs)


def test_the_layouts_of_beegfs_are_read():
    (part,) = parse_beegfs(BEEGFS_FILE).parts
    assert part == StripedPart(0, -1, 1, 512 << 10, "raid0", (1911,))
    (lower,) = parse_beegfs(BEEGFS_LOWER).parts
    assert lower == StripedPart(0, -1, 2, 512 << 10, "raid0", (1, 2))
    assert parse_beegfs(BEEGFS_8) == FileLayout(
        (StripedPart(0, -1, 4, MIB, "raid0"),), default=True
    )
    folder = parse_beegfs(BEEGFS_FOLDER)
    assert folder == FileLayout((StripedPart(0, -1, 8, 4 * MIB, "raid0"),), default=True)


@pytest.mark.parametrize("text", ["", "beegfs: unrecognized option\n", "+ Chunksize: many\n"])
def test_anything_else_is_no_layout(text):
    assert parse_beegfs(text) is None


def _tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_the_tool_is_asked_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    beegfs = FileSystem(name="beegfs")
    assert layout_of(tmp_path, beegfs) is None
    (tmp_path / "said").write_text(BEEGFS_FOLDER)
    _tool(tmp_path, "beegfs-ctl", f'[ "$2" = "{tmp_path}" ] && cat {tmp_path}/said')
    assert layout_of(tmp_path, beegfs).parts[0].stripe_nbytes == 4 * MIB
    assert layout_of(tmp_path / "said", beegfs) is None  # the tool fails
    assert layout_of(tmp_path, FileSystem(name="ext4")) is None
    assert layout_of(tmp_path, FileSystem(name="lustre")) is None  # without attributes


def test_a_tool_that_hangs_is_not_waited_for(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("iobench.storage.striping.TIMEOUT_S", 0.05)
    _tool(tmp_path, "beegfs-ctl", "exec sleep 60")
    assert layout_of(tmp_path, FileSystem(name="beegfs")) is None


def test_the_attribute_of_lustre_is_read():
    """One layout, one with a pool, and several; where the file system chose no target yet, none."""
    assert parse_lov(_lov(PLAIN)) == FileLayout((PLAIN,))
    assert parse_lov(_lov(WIDE, V3)) == FileLayout((WIDE,))
    raw = _composite(PROGRESSIVE, [_lov(part) for part in PROGRESSIVE])
    assert len(raw) == 264  # as ``getstripe -v`` printed of this layout
    assert parse_lov(raw) == FileLayout(PROGRESSIVE)
    raw = _composite(ON_MDT, [_lov(ON_MDT[0], pattern=0x100), _lov(ON_MDT[1])])
    assert parse_lov(raw) == FileLayout(ON_MDT)
    assert parse_lov(_lov(StripedPart(0, -1, -1, MIB)), is_folder=True) == FileLayout(
        (StripedPart(0, -1, -1, MIB, "raid0"),), default=True
    )


@pytest.mark.parametrize("n", [0, 3, 20, 31, 40, 100, 127, 140, 200])
def test_a_part_of_an_attribute_or_another_one_is_no_layout(n):
    raw = _composite(PROGRESSIVE, [_lov(part) for part in PROGRESSIVE])
    assert parse_lov(raw[:n]) is None
    assert parse_lov(b"\0" * n) is None


def test_files_of_lustre_are_asked_for_their_attribute(monkeypatch, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    asked: list[Any] = []

    def told(path: Any, name: str) -> bytes:
        asked.append((path, name))
        return _lov(WIDE)

    monkeypatch.setattr(os, "getxattr", told)
    assert layout_of(tmp_path / "file", FileSystem(name="lustre")) == FileLayout((WIDE,))
    assert asked == [(tmp_path / "file", "lustre.lov")]


def test_beegfs_8_is_asked_by_its_new_tool(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "said").write_text(BEEGFS_8)
    _tool(tmp_path, "beegfs", f'[ "$1 $2 $3" = "entry info --retro" ] && cat {tmp_path}/said')
    assert layout_of(tmp_path, FileSystem(name="beegfs")).parts[0].stripe_count == 4


def test_gpfs_tells_its_block(monkeypatch, tmp_path):
    """As ``st_blksize``, of which ROMIO's ``ad_gpfs`` makes its block, too."""
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(Path, "is_dir", lambda _: False)
    monkeypatch.setattr(Path, "stat", lambda _: SimpleNamespace(st_blksize=4 * MIB))
    layout = layout_of(tmp_path / "file", FileSystem(name="gpfs"))
    assert layout == FileLayout((StripedPart(0, -1, -1, 4 * MIB, "blocks"),))
