"""A run is held against what its own probes got of its storage."""

from __future__ import annotations

from io import StringIO
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from iobench.cli.limits_document import limits_told
from iobench.findings.limits.figures import limit_of, limit_use
from iobench.report.document import Document
from iobench.report.json_walk import to_plain
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.runs.run_facts import RunFacts
from iobench.storage.file_systems import FileSystem
from iobench.storage.limit_figures import ReadFigures, StorageLimits

SECOND = 10**9


def reads(served_by: str, gb_per_s: float, *, threads: int = 1, **more):
    return ReadFigures(
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
        reads("page cache", 8.0),
        reads("page cache", 16.0, threads=4),
        reads("mixed", 99.0, threads=2),
        reads("unknown", 99.0, threads=2),
        ReadFigures(way="direct", threads=8, refused="tmpfs refuses O_DIRECT"),
    ),
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
        (replace(LIMITS, reads=LIMITS.reads[2:]), 1.0),
        (replace(LIMITS, reads=LIMITS.reads[:2]), 0.4),
        (replace(LIMITS, reads=LIMITS.reads[4:]), 0.0),
    ],
)
def test_without_the_evidence_there_is_no_limit(bound, unknown, limits, cold):
    assert limit_use(bound.exposure.whole, limits, readers=1, cold_fraction=cold) is None
    assert limit_use(unknown.exposure.whole, limits, readers=1, cold_fraction=1.0) is None


def held(exposure, *limits, **more):
    """Return how a run with this exposure and configuration is held against its limits."""
    config = {"storage_limits": list(limits), **more}
    return limit_of(SimpleNamespace(about=RunFacts.from_config(config), exposure=exposure))


@pytest.mark.parametrize("probed", ["before", "after"])
def test_json_names_what_was_used_and_of_what(bound, probed):
    told = to_plain(held(bound.exposure, LIMITS.to_dict(), storage_probed=probed))
    assert told["limit_bytes_per_s"] == pytest.approx(8e9)
    assert (told["served_by"], told["threads"]) == (["page cache"], [1])
    assert told["probed"] == probed


def test_without_a_probe_of_its_own_nothing_is_said(bound):
    assert held(bound.exposure) is None
    assert held(bound.exposure, LIMITS.to_dict()) is None
    assert held(bound.exposure, {"version": 0}, storage_probed="before") is None


STEADY = (2.0e9, 1.9e9, 2.1e9, 2.0e9, 2.05e9)


def probed(storage: float, cache: float, turns=STEADY, **more):
    """Return what a probe found: of storage, in these turns, and of the page cache."""
    return replace(
        LIMITS,
        reads=(
            replace(reads("device", storage), way="direct", turns_bytes_per_s=tuple(turns)),
            reads("page cache", cache),
        ),
        **more,
    ).to_dict()


def with_reads(exposure, *, cold, gb_per_s):
    """Return the exposure of a run that read so many GB/s, so much of it from the device."""
    whole = exposure.whole
    read = round(gb_per_s * whole.wall_ns)
    return replace(exposure, whole=replace(whole, read_nbytes=read, cold_fraction=cold))


def said(bound, show, use):
    return " ".join(show(replace(bound, figures={"storage_limit": use})).split())


@pytest.mark.parametrize(
    ("cold", "share", "words"),
    [
        (
            1.0,
            0.1,
            (
                "storage delivered 2.00 GB/s to a reader of the same pattern, so it used 10 % of "
                "it (random"
            ),
        ),
        (
            0.0,
            0.025,
            (
                "the page cache delivered 8.00 GB/s to a reader of the same pattern, so it used "
                "2.5 % of it"
            ),
        ),
    ],
)
def test_a_run_is_held_against_who_served_it(bound, show, cold, share, words):
    run = with_reads(bound.exposure, cold=cold, gb_per_s=0.2)
    both = probed(2.0, 8.0)
    use = held(run, both, storage_probed="before", storage_after=both)
    assert use.used_fraction == pytest.approx(share)
    assert not use.changed
    text = said(bound, show, use)
    assert words in text
    assert "before and after the run" in text
    assert "others" not in text
    assert "limits it" not in text


@pytest.mark.parametrize(
    ("after", "changed"),
    [
        ((0.4e9, 0.42e9, 0.41e9, 0.38e9, 0.4e9), "others use it or the CPUs, or it slows down"),
        (
            (4e9, 4.2e9, 4.1e9, 3.8e9, 4e9),
            "others used it or the CPUs, or it caches what the run read",
        ),
        ((0.4e9, 0.42e9, 0.41e9, 1.95e9, 0.4e9), ""),  # one turn was as fast as one before
        ((1.8e9, 1.85e9, 1.7e9, 1.8e9, 1.75e9), ""),  # apart, and hardly
        ((0.4e9, 0.42e9), ""),  # too few to tell
    ],
)
def test_storage_that_others_load_is_told_from_chance(bound, show, after, changed):
    run = with_reads(bound.exposure, cold=1.0, gb_per_s=0.2)
    rate = sum(after) / len(after) / 1e9
    use = held(
        run, probed(2.0, 8.0), storage_probed="before", storage_after=probed(rate, 8.0, after)
    )
    assert use.changed == bool(changed)
    text = said(bound, show, use)
    assert ("The storage delivered 2.00 GB/s before the run and" in text) == bool(changed)
    assert changed in text


@pytest.mark.parametrize(
    ("cache", "files_nbytes", "share"),
    [
        ({"resident_fraction_before": 0.0}, 10**12, 0.1),
        ({"resident_fraction_before": 0.0, "asked": "cold"}, 1, 0.1),
        ({"resident_fraction_before": 1.0}, 1, 0.025),
        ({"resident_fraction_before": 0.0}, 1, None),  # read again and again: from where?
        ({"resident_fraction_before": 0.5}, 10**12, None),
        ({}, 10**12, None),
    ],
)
def test_where_nobody_counts_the_page_cache_tells_or_it_is_unknown(
    bound, show, cache, files_nbytes, share
):
    run = with_reads(bound.exposure, cold=None, gb_per_s=0.2)
    use = held(
        run, probed(2.0, 8.0), storage_probed="before", cache=cache, files_nbytes=files_nbytes
    )
    text = said(bound, show, use)
    if share is None:
        assert use.limit_bytes_per_s is None
        assert "2.00 GB/s bypassing the page cache and 8.00 GB/s from it" in text
        assert "used is unknown: how much of it came from storage is unknown" in text
    else:
        assert use.used_fraction == pytest.approx(share)
        assert "which held all or none of it before" in text


def test_a_run_faster_than_the_probe_is_not_said_to_use_more_than_all(bound, show):
    run = with_reads(bound.exposure, cold=1.0, gb_per_s=3.0)
    text = said(bound, show, held(run, probed(2.0, 8.0), storage_probed="before"))
    assert "less than the run read: the run reads in another size or order than the probe" in text


def test_what_was_not_probed_is_said_and_why(bound, show):
    use = held(bound.exposure, no_storage_probe="which files are read is unknown")
    told = "The storage was not probed: which files are read is unknown."
    assert told in said(bound, show, use)


def test_a_probe_that_gave_nothing_or_less_than_was_read_is_explained(bound, show):
    def told(*rows):
        probe = replace(LIMITS, reads=rows).to_dict()
        use = held(bound.exposure, probe, storage_probed="before")
        return " ".join(show(replace(bound, figures={"storage_limit": use})).split())

    late = ReadFigures(way="buffered", threads=1, refused="no time was left for it")
    said = told(late)
    assert "storage delivered nothing that could be timed to a reader of the same pattern (" in said
    slow = told(reads("device", 1e-6), reads("page cache", 1e-6))
    assert (
        "less than the run read: the run reads in another size or order than the probe, or the"
    ) in slow
    assert "so it used" not in slow


def test_the_answer_of_a_probe_is_printed_as_it_was_told():
    system = FileSystem(name="ext4", cold="Cold is cold.")
    title, blocks = limits_told(LIMITS, system)
    assert title == "/data: ext4 at /data, local; host here"
    text = " ".join(TerminalRenderer(StringIO()).render(Document(title, blocks)).split())
    for words in (
        "Cold is cold.",
        "Random reads of 23.9 MB, as samples of the store /data/store; 3 files, 4.00 GB",
        "direct: tmpfs refuses O_DIRECT",
        "16.0 GB/s",
        "wrote nothing. Note: 1 folders cannot be read.",
    ):
        assert words in text, words
