"""A run is held against what its own probes got of its storage."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from iobench.findings.limits import limit_of
from iobench.runs.run_facts import RunFacts
from iobench.storage.probe_figures import ReadFigures, StorageLimits

SECOND = 10**9


def reads(served_by: str, gb_per_s: float, threads: int = 1) -> ReadFigures:
    nbytes = round(gb_per_s * 1e9)
    return ReadFigures(
        way="direct", threads=threads, n_reads=100, nbytes=nbytes, wall_ns=SECOND,
        bytes_per_s=float(nbytes), reads_per_s=100.0, served_by=served_by,
    )  # fmt: skip


LIMITS = StorageLimits(
    path="/data",
    mount="/data",
    host="here",
    file_system="ext4",
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
)


def held(exposure, *limits, cold=None, gb_per_s=0.2, readers=1, **config):
    """Return how a run that read so much, so much of it from the device, is held against probes."""
    whole = exposure.whole
    nbytes = None if gb_per_s is None else round(gb_per_s * whole.wall_ns)
    whole = replace(whole, read_nbytes=nbytes, cold_fraction=cold)
    config = {"storage_limits": [to_builtins(each) for each in limits], **config}
    if limits:
        config.setdefault("storage_probed", "before")
    exposure = replace(exposure, whole=whole, workers=readers)
    return limit_of(SimpleNamespace(about=RunFacts.from_config(config), exposure=exposure))


@pytest.mark.parametrize(
    ("cold", "readers", "limit"),
    [
        (1.0, 1, 1.5e9),
        (0.93, 2, 2.0e9),
        (0.0, 1, 8e9),
        (0.05, 8, 16e9),
        (0.5, 1, 1 / (0.5 / 1.5e9 + 0.5 / 8e9)),
    ],
)
def test_the_limit_is_that_of_reads_served_alike(bound, cold, readers, limit):
    use = held(bound.exposure, LIMITS, cold=cold, readers=readers)
    assert use.limit_bytes_per_s == pytest.approx(limit)
    assert use.used_bytes_per_s == pytest.approx(0.2e9)
    assert use.used_fraction == pytest.approx(0.2e9 / limit)


@pytest.mark.parametrize(
    ("rows", "cold", "gb_per_s", "why"),
    [
        (LIMITS.reads, None, 0.2, "how much of it came from storage is unknown"),
        (LIMITS.reads[2:], 1.0, 0.2, "no reads that were served in the same way"),
        (LIMITS.reads, 1.0, None, "were not counted"),
    ],
)
def test_without_the_evidence_there_is_no_limit(bound, rows, cold, gb_per_s, why):
    use = held(bound.exposure, replace(LIMITS, reads=rows), cold=cold, gb_per_s=gb_per_s)
    assert (use.limit_bytes_per_s, use.used_fraction) == (None, None)
    assert why in use.reason


def test_of_two_probes_the_limit_is_the_mean(bound):
    after = to_builtins(replace(LIMITS, reads=(reads("device", 0.5),)))
    use = held(bound.exposure, LIMITS, cold=1.0, storage_after=after)
    assert use.limit_bytes_per_s == pytest.approx(1e9)


@pytest.mark.parametrize(
    ("cache", "files_nbytes", "share"),
    [
        ({"resident_fraction_before": 0.0}, 10**12, 0.2 / 1.5),
        ({"resident_fraction_before": 0.0, "asked": "cold"}, 1, 0.2 / 1.5),
        ({"resident_fraction_before": 1.0}, 1, 0.025),
        ({"resident_fraction_before": 0.0}, 1, None),  # read again and again: from where?
        ({"resident_fraction_before": 0.5}, 10**12, None),
        ({}, 10**12, None),
    ],
)
def test_where_nobody_counts_the_page_cache_tells_or_it_is_unknown(
    bound, cache, files_nbytes, share
):
    use = held(bound.exposure, LIMITS, cache=cache, files_nbytes=files_nbytes)
    assert use.used_fraction == (None if share is None else pytest.approx(share))
