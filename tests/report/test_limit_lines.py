"""A run is held against the limits that were kept of its storage, and against no others."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import pytest

from iobench.cli.limits_document import limits_told
from iobench.profiles.run_facts import RunFacts
from iobench.report.document import Document
from iobench.report.json_walk import to_plain
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.storage.file_systems import FileSystem, NfsMount
from iobench.storage.limit_figures import OpenFigures, ReadFigures, StorageLimits
from iobench.storage.striping import FileLayout, StripedPart
from iobench.subjects.limits.figures import limit_of, limit_use

SECOND = 10**9


def reads(served_by: str, gb_per_s: float, *, threads: int = 1, order: str = "random", **more):
    return ReadFigures(
        order=order,
        way="buffered",
        threads=threads,
        n_reads=100,
        nbytes=round(gb_per_s * 1e9),
        wall_ns=SECOND,
        latency_ns=(1_000_000, 2_000_000, 3_000_000, 4_000_000),
        resident_fraction=0.0,
        device_nbytes=round(gb_per_s * 1e9),
        served_by=served_by,
        **more,
    )


LIMITS = StorageLimits(
    path="/data",
    mount="/data",
    host="here",
    file_system="ext4",
    reach="local",
    wall_ns=1_795_500_000 * SECOND,
    like="samples of the store /data/store",
    request_nbytes=23_900_000,
    n_files=3,
    files_nbytes=4_000_000_000,
    reads=(
        reads("device", 1.5),
        reads("device", 2.0, threads=2),
        reads("device", 4.0, threads=2, order="sequential"),
        reads("page cache", 8.0),
        reads("page cache", 16.0, threads=4),
        reads("mixed", 99.0, threads=2),
        reads("unknown", 99.0, threads=2),
        ReadFigures(order="random", way="direct", threads=8, refused="tmpfs refuses O_DIRECT"),
    ),
    opens=(OpenFigures(threads=1, n_opens=10, wall_ns=10_000, latency_ns=(1, 2, 3, 4_000)),),
    memcpy_bytes_per_s={1: 9e9},
    spent_ns=3 * SECOND,
    read_nbytes=10**9,
    notes=("1 folders cannot be read",),
)


@pytest.mark.parametrize(
    ("cold", "readers", "limit", "served_by"),
    [
        (1.0, 1, 1.5e9, ["device"]),
        (0.93, 2, 2.0e9, ["device"]),
        (0.0, 1, 8e9, ["page cache"]),
        (0.05, 8, 16e9, ["page cache"]),
        (0.5, 1, 1 / (0.5 / 1.5e9 + 0.5 / 8e9), ["device", "page cache"]),
    ],
)
def test_the_limit_is_that_of_reads_served_alike(bound, cold, readers, limit, served_by):
    window = bound.exposure.whole
    use = limit_use(window, LIMITS, readers=readers, cold_fraction=cold)
    assert use.limit_bytes_per_s == pytest.approx(limit)
    assert use.used_bytes_per_s == pytest.approx(window.read_nbytes / window.wall_ns * 1e9)
    assert list(use.served_by) == served_by


@pytest.mark.parametrize(
    ("limits", "cold"),
    [
        (LIMITS, None),
        (replace(LIMITS, reads=LIMITS.reads[3:]), 1.0),
        (replace(LIMITS, reads=LIMITS.reads[:3]), 0.4),
        (replace(LIMITS, reads=LIMITS.reads[5:]), 0.0),
    ],
)
def test_without_the_evidence_there_is_no_limit(bound, unknown, limits, cold):
    assert limit_use(bound.exposure.whole, limits, readers=1, cold_fraction=cold) is None
    assert limit_use(unknown.exposure.whole, limits, readers=1, cold_fraction=1.0) is None


def held(exposure, *limits, files=(), mounts=None, probed=None):
    """Return how a run with this exposure and configuration is held against its limits."""
    config = {"storage_limits": list(limits)} | ({} if mounts is None else {"mounts": mounts})
    config |= {} if probed is None else {"storage_probed": probed}
    rows = tuple(SimpleNamespace(scope="file", name=name) for name in files)
    run = SimpleNamespace(
        about=RunFacts.from_config(config),
        exposure=exposure,
        once=lambda make: SimpleNamespace(rows=rows),
    )
    return limit_of(run)


def test_a_report_names_what_was_used_and_of_what(bound, show):
    use = held(bound.exposure, LIMITS.to_dict())
    text = " ".join(show(replace(bound, figures={"storage_limit": use})).split())
    assert "What storage can do Used " in text
    assert " of 8.00 GB/s (random reads of 23.9 MB from the page cache, 1 thread" in text
    told = to_plain(use)
    assert told["limit_bytes_per_s"] == pytest.approx(8e9)
    assert (told["served_by"], told["threads"]) == (["page cache"], [1])
    assert held(bound.exposure) is None
    assert held(bound.exposure, LIMITS.to_dict(), replace(LIMITS, mount="/b").to_dict()) is None
    assert held(bound.exposure, {"version": 0}) is None


@pytest.mark.parametrize("own", [(), LIMITS.reads[:3]])
def test_a_probe_that_tells_no_limit_leaves_those_that_were_kept(bound, show, own):
    late = ReadFigures(order="random", way="buffered", threads=1, refused="no time was left for it")
    probe = replace(LIMITS, reads=(late, *own)).to_dict()
    use = held(bound.exposure, probe, LIMITS.to_dict(), probed="before")
    assert (use.limit_bytes_per_s, use.probed) == (pytest.approx(8e9), "")
    assert "by 'iobench limits' on" in show(replace(bound, figures={"storage_limit": use}))
    use = held(bound.exposure, probe, probed="before")
    assert (use.limit_bytes_per_s, use.reason) == (None, "no time was left for it")


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (["/data/a", "/data/b/c"], True),
        (["/data/a", "relative/b"], True),
        (["/data/a", "/home/b"], False),
        (["/data/nested/a"], False),
        (["/database/a"], False),
        ([], False),
    ],
)
def test_a_script_is_held_against_the_mount_its_files_lie_on(bound, files, told):
    mounts = ["/", "/data", "/data/nested"]
    use = held(bound.exposure, LIMITS.to_dict(), files=files, mounts=mounts)
    assert (use is not None) == told


def test_the_answer_of_a_probe_is_printed_as_it_was_told():
    layout = FileLayout(
        (StripedPart(0, 1 << 20, 0, 1 << 20, "mdt"), StripedPart(1 << 20, -1, 4, 4 << 20)),
        default=True,
    )
    system = FileSystem(name="ext4", cold="Cold is cold.", doubt="statfs tells nfs")
    nfs = NfsMount("4.2", "tcp", 1 << 20, 2, n_reads=1000, read_mean_ns=3_100_000)
    title, blocks = limits_told(LIMITS, system, layout, nfs, "kept for /data")
    assert title == "/data: ext4 at /data, local; host here"
    text = " ".join(TerminalRenderer(StringIO()).render(Document(title, blocks)).split())
    for words in (
        "In doubt: statfs tells nfs. Cold is cold.",
        "New files are laid out: with the metadata from 0 to 1.05 MB; "
        "stripes of 4.19 MB over 4 targets from 1.05 MB to the end",
        "NFS 4.2 over tcp, 2 connections; a request reads 1.05 MB at most 1,000 requests to read "
        "since it was mounted, by all on this machine, took 3.10 ms in the mean",
        "Kept for /data.",
        "Reads of 23.9 MB, as samples of the store /data/store; 3 files, 4.00 GB",
        "random, direct, 8 threads: tmpfs refuses O_DIRECT",
        "16.0 GB/s",
        "Opens: 1,000,000/s by 1 thread",
        "Copies within memory: 9.00 GB/s by 1 thread",
        "wrote nothing. Note: 1 folders cannot be read.",
    ):
        assert words in text, words
