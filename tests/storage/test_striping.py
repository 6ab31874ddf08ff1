"""Layouts read from what ``lfs getstripe`` and ``beegfs-ctl`` print.

The texts are outputs of real systems as their owners published them: a plain file and its folder
(a user's notes on SDSC Expanse), a test cluster whose folder names no pattern, a
wide file and its folder from before patterns were printed (a course's notes), a progressive file (a
user's notes on ``llapi_layout_comp_extent_set``) and folder (a demonstration of Data-on-MDT),
Data-on-MDT and mirrored files (Lustre Operations Manual; the second mirror shortened to two of its
targets), ``getstripe -v`` (a comment in Lustre's ``liblustreapi.c``), a compressed file (CSC's
documentation of Roihu); BeeGFS 7 of a user's cluster (names of hosts changed), of ABCI's
documentation and of BeeGFS' own (7.2, "Deep Inspection"), BeeGFS 8 of its own (``entry info
--retro``). Attributes are built by the structures of ``lustre_user.h`` for the layouts of which the
text is above, with the offsets and sizes that ``getstripe -v`` printed of one.
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
    parse_lustre,
)

MIB = 1 << 20

PLAIN = """CIFAR-10-images.tar.gz
lmm_stripe_count:  1
lmm_stripe_size:   1048576
lmm_pattern:       raid0
lmm_layout_gen:    0
lmm_stripe_offset: 5
\tobdidx\t\t objid\t\t objid\t\t group
\t     5\t      19156534\t    0x1244e36\t   0x800000400
"""
WIDE = """striped_over_4
lmm_stripe_count:   4
lmm_stripe_size:    2097152
lmm_layout_gen:     0
lmm_stripe_offset:  0
\tobdidx\t\t objid\t\t objid\t\t group
\t     0\t      34000515\t    0x206ce83\t             0
\t     1\t      40327215\t    0x267582f\t             0
\t     3\t      39804136\t    0x25f5ce8\t             0
\t     2\t      41127094\t    0x2738cb6\t             0

"""
FOLDER = "stripe_count:  1 stripe_size:   1048576 pattern:       0 stripe_offset: -1\n"
NO_PATTERN = """/mnt/lustre
stripe_count:  1 stripe_size:   4194304 pattern:        stripe_offset: -1
"""
OLD_FOLDER = """/lustre/exact/exact/MPIIO-striped
stripe_count:   4 stripe_size:    2097152 stripe_offset:  -1
"""
PROGRESSIVE = """/mnt/lustre/test.txt
  lcm_layout_gen:  3
  lcm_entry_count: 2
    lcme_id:             1
    lcme_flags:          init
    lcme_extent.e_start: 0
    lcme_extent.e_end:   4194304
      lmm_stripe_count:  2
      lmm_stripe_size:   4194304
      lmm_pattern:       1
      lmm_layout_gen:    0
      lmm_stripe_offset: 0
      lmm_objects:
      - 0: { l_ost_idx: 0, l_fid: [0x100000000:0x45:0x0] }
      - 1: { l_ost_idx: 1, l_fid: [0x100010000:0x45:0x0] }

    lcme_id:             2
    lcme_flags:          init
    lcme_extent.e_start: 4194304
    lcme_extent.e_end:   EOF
      lmm_stripe_count:  1
      lmm_stripe_size:   1048576
      lmm_pattern:       1
      lmm_layout_gen:    0
      lmm_stripe_offset: 0
      lmm_objects:
      - 0: { l_ost_idx: 0, l_fid: [0x100000000:0x46:0x0] }
"""
PROGRESSIVE_FOLDER = """testdir1
  lcm_layout_gen:    0
  lcm_mirror_count:  1
  lcm_entry_count:   2
    lcme_id:             N/A
    lcme_mirror_id:      N/A
    lcme_flags:          0
    lcme_extent.e_start: 0
    lcme_extent.e_end:   65536
      stripe_count:  0       stripe_size:   65536       pattern:       mdt       stripe_offset: -1

    lcme_id:             N/A
    lcme_mirror_id:      N/A
    lcme_flags:          0
    lcme_extent.e_start: 65536
    lcme_extent.e_end:   EOF
      stripe_count:  -1       stripe_size:   1048576       pattern:       raid0       stripe_offset: -1

"""  # noqa: E501 - as it was printed
ON_MDT = """/mnt/lustre/domfile
  lcm_layout_gen:   2
  lcm_mirror_count: 1
  lcm_entry_count:  2
    lcme_id:             1
    lcme_flags:          init
    lcme_extent.e_start: 0
    lcme_extent.e_end:   1048576
      lmm_stripe_count:  0
      lmm_stripe_size:   1048576
      lmm_pattern:       mdt
      lmm_layout_gen:    0
      lmm_stripe_offset: 0
      lmm_objects:

    lcme_id:             2
    lcme_flags:          0
    lcme_extent.e_start: 1048576
    lcme_extent.e_end:   EOF
      lmm_stripe_count:  -1
      lmm_stripe_size:   4194304
      lmm_pattern:       raid0
      lmm_layout_gen:    65535
      lmm_stripe_offset: -1
"""
MIRRORED = """/mnt/testfs/file1
  lcm_layout_gen:    2
  lcm_mirror_count:  2
  lcm_entry_count:   2
    lcme_id:             65537
    lcme_mirror_id:      1
    lcme_flags:          init
    lcme_extent.e_start: 0
    lcme_extent.e_end:   EOF
      lmm_stripe_count:  2
      lmm_stripe_size:   4194304
      lmm_pattern:       raid0
      lmm_layout_gen:    0
      lmm_stripe_offset: 1
      lmm_pool:          flash
      lmm_objects:
      - 0: { l_ost_idx: 1, l_fid: [0x100010000:0x2:0x0] }
      - 1: { l_ost_idx: 0, l_fid: [0x100000000:0x2:0x0] }

    lcme_id:             131074
    lcme_mirror_id:      2
    lcme_flags:          init
    lcme_extent.e_start: 0
    lcme_extent.e_end:   EOF
      lmm_stripe_count:  2
      lmm_stripe_size:   4194304
      lmm_pattern:       raid0
      lmm_layout_gen:    0
      lmm_stripe_offset: 3
      lmm_pool:          archive
      lmm_objects:
      - 0: { l_ost_idx: 3, l_fid: [0x100030000:0x2:0x0] }
      - 1: { l_ost_idx: 4, l_fid: [0x100040000:0x2:0x0] }
"""
VERBOSE = """composite_header:
lcm_magic:       0x0BD60BD0
lcm_size:        264
lcm_flags:       0
lcm_layout_gen:  2
lcm_entry_count: 2
components:
- lcme_id:             1
  lcme_flags:          0x10
  lcme_extent.e_start: 0
  lcme_extent.e_end:   1048576
  lcme_offset:         128
  lcme_size:           56
  sub_layout:
    lmm_magic:         0x0BD10BD0
    lmm_seq:           0x200000401
    lmm_object_id:     0x1
    lmm_fid:           [0x200000401:0x1:0x0]
    lmm_stripe_count:  1
    lmm_stripe_size:   1048576
    lmm_pattern:       raid0
    lmm_layout_gen:    0
    lmm_stripe_offset: 0
    lmm_objects:
    - 0: { l_ost_idx: 0, l_fid: [0x100000000:0x2:0x0] }

- lcme_id:             2
  lcme_flags:          0x10
  lcme_extent.e_start: 1048576
  lcme_extent.e_end:   EOF
  lcme_offset:         184
  lcme_size:           80
    sub_layout:
    lmm_magic:         0x0BD10BD0
    lmm_seq:           0x200000401
    lmm_object_id:     0x1
    lmm_fid:           [0x200000401:0x1:0x0]
    lmm_stripe_count:  2
    lmm_stripe_size:   1048576
    lmm_pattern:       raid0
    lmm_layout_gen:    0
    lmm_stripe_offset: 1
    lmm_objects:
    - 0: { l_ost_idx: 1, l_fid: [0x100010000:0x2:0x0] }
    - 1: { l_ost_idx: 0, l_fid: [0x100000000:0x3:0x0] }
"""
COMPRESSED = """my_file
  lcm_layout_gen:    1
  lcm_mirror_count:  1
  lcm_entry_count:   1
    lcme_id:             1
    lcme_mirror_id:      0
    lcme_flags:          init,compress
    lcme_extent.e_start: 0
    lcme_extent.e_end:   EOF
    lcme_compr_type:     none
    lcme_compr_lvl:      0
    lcme_compr_chunk_kb: 64
      lmm_stripe_count:  1
      lmm_stripe_size:   4194304
      lmm_pattern:       raid0,compress
      lmm_layout_gen:    0
      lmm_stripe_offset: 0
      lmm_objects:
      - 0: { l_ost_idx: 0, l_fid: [0x300001b70:0x1b5a645:0x0] }
"""
ROWS = [
    (PLAIN, False, (StripedPart(0, -1, 1, MIB, "raid0", (5,)),)),
    (WIDE, False, (StripedPart(0, -1, 4, 2 * MIB, "", (0, 1, 3, 2)),)),
    (FOLDER, True, (StripedPart(0, -1, 1, MIB, "raid0"),)),
    (NO_PATTERN, True, (StripedPart(0, -1, 1, 4 * MIB),)),
    (OLD_FOLDER, True, (StripedPart(0, -1, 4, 2 * MIB),)),
    (
        PROGRESSIVE,
        False,
        (
            StripedPart(0, 4 * MIB, 2, 4 * MIB, "raid0", (0, 1)),
            StripedPart(4 * MIB, -1, 1, MIB, "raid0", (0,)),
        ),
    ),
    (
        PROGRESSIVE_FOLDER,
        True,
        (
            StripedPart(0, 65536, 0, 65536, "mdt"),
            StripedPart(65536, -1, -1, MIB, "raid0"),
        ),
    ),
    (
        ON_MDT,
        False,
        (StripedPart(0, MIB, 0, MIB, "mdt"), StripedPart(MIB, -1, -1, 4 * MIB, "raid0")),
    ),
    (
        MIRRORED,
        False,
        (
            StripedPart(0, -1, 2, 4 * MIB, "raid0", (1, 0)),
            StripedPart(0, -1, 2, 4 * MIB, "raid0", (3, 4)),
        ),
    ),
    (
        VERBOSE,
        False,
        (
            StripedPart(0, MIB, 1, MIB, "raid0", (0,)),
            StripedPart(MIB, -1, 2, MIB, "raid0", (1, 0)),
        ),
    ),
    (COMPRESSED, False, (StripedPart(0, -1, 1, 4 * MIB, "raid0,compress", (0,)),)),
]
NAMES = (
    *("plain", "wide", "folder", "no-pattern", "old-folder", "progressive"),
    *("progressive-folder", "on-mdt", "mirrored", "verbose", "compressed"),
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


@pytest.mark.parametrize(("text", "default", "parts"), ROWS, ids=NAMES)
def test_each_layout_is_read_as_it_was_printed(text, default, parts):
    assert parse_lustre(text) == FileLayout(parts, default)


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


@pytest.mark.parametrize("parse", [parse_lustre, parse_beegfs])
@pytest.mark.parametrize("text", ["", "lfs: unrecognized option\n", "lmm_stripe_count: many\n"])
def test_anything_else_is_no_layout(parse, text):
    assert parse(text) is None


def _tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_the_tool_is_asked_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    lustre = FileSystem(name="lustre")
    assert layout_of(tmp_path, lustre) is None
    (tmp_path / "said").write_text(NO_PATTERN)
    _tool(tmp_path, "lfs", f'[ "$1 $2" = "getstripe -d" ] && cat {tmp_path}/said')
    assert layout_of(tmp_path, lustre).parts[0].stripe_nbytes == 4 * MIB
    assert layout_of(tmp_path / "said", lustre) is None  # the tool fails
    assert layout_of(tmp_path, FileSystem(name="ext4")) is None
    assert layout_of(tmp_path, FileSystem(name="beegfs")) is None


def test_a_tool_that_hangs_is_not_waited_for(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("iobench.storage.striping.TIMEOUT_S", 0.05)
    _tool(tmp_path, "beegfs-ctl", "exec sleep 60")
    assert layout_of(tmp_path, FileSystem(name="beegfs")) is None


def test_the_attribute_of_lustre_says_what_its_tool_prints():
    """One layout, one with a pool, and several; where the file system chose no target yet, none."""
    plain, wide = ROWS[0][2][0], StripedPart(0, -1, 4, 2 * MIB, "raid0", (0, 1, 3, 2))
    assert parse_lov(_lov(plain)) == FileLayout((plain,))
    assert parse_lov(_lov(wide, V3)) == FileLayout((wide,))
    verbose = ROWS[9][2]
    raw = _composite(verbose, [_lov(part) for part in verbose])
    assert len(raw) == 264  # as "lcm_size" of VERBOSE
    assert parse_lov(raw) == parse_lustre(VERBOSE)
    mixed = ROWS[7][2]
    raw = _composite(mixed, [_lov(mixed[0], pattern=0x100), _lov(mixed[1])])
    assert parse_lov(raw) == FileLayout(mixed)
    assert parse_lov(_lov(StripedPart(0, -1, -1, MIB)), is_folder=True) == FileLayout(
        (StripedPart(0, -1, -1, MIB, "raid0"),), default=True
    )


@pytest.mark.parametrize("n", [0, 3, 20, 31, 40, 100, 127, 140, 200])
def test_a_part_of_an_attribute_or_another_one_is_no_layout(n):
    verbose = ROWS[9][2]
    assert parse_lov(_composite(verbose, [_lov(part) for part in verbose])[:n]) is None
    assert parse_lov(b"\0" * n) is None


def test_the_attribute_goes_before_the_tool(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))  # no lfs there
    (tmp_path / "file").write_bytes(b"")
    part = StripedPart(0, -1, 4, 2 * MIB, "raid0", (0, 1, 3, 2))
    asked: list[Any] = []

    def told(path: Any, name: str) -> bytes:
        asked.append((path, name))
        return _lov(part)

    monkeypatch.setattr(os, "getxattr", told)
    assert layout_of(tmp_path / "file", FileSystem(name="lustre")) == FileLayout((part,))
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
