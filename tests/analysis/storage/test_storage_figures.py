"""Ledger, storage time and reads of the runs beside the Darshan logs, number by number."""

from functools import cache
from pathlib import Path

import pytest
from ground_truth_profiles import marked_logs, profile_of_ground_truth

from iobench.analysis.run import Run
from iobench.subjects.storage.figures import storage_of

pytest.importorskip("darshan", reason="reads Darshan logs")

LOGS = Path(__file__).parents[2] / "data" / "darshan"


@cache
def figures(name):
    profile = profile_of_ground_truth(LOGS / name / "ground_truth.json")
    return storage_of(Run(profile, marked_logs(LOGS / name, profile)).of_rank())


def row(name, scope="run", starts=""):
    (found,) = (
        each for each in figures(name).rows if each.scope == scope and each.name.startswith(starts)
    )
    return found


def gaps(found):
    return {(gap.name, *gap.between): gap.nbytes for gap in found.gaps}


def stage(name, spelled):
    (found,) = (each for each in figures(name).stages if each.stage == spelled)
    return found


def test_raw_reads_from_the_cache():
    whole = row("s1_raw_fork")
    assert whole.settled
    assert (whole.asked, whole.posix, whole.stdio, whole.segments) == (
        81_925_120, 81_925_120, 0, 81_925_120,
    )  # fmt: skip
    assert (whole.rchar, whole.device) == (81_929_733, 397_312)
    assert gaps(whole) == {
        ("own reads", "rchar", "posix+stdio"): 4613,
        ("page cache", "device", "rchar"): 397_312 - 81_929_733,
    }
    for worker in ("worker-0", "worker-1"):
        part = row("s1_raw_fork", "process", worker)
        assert part.settled
        assert part.asked == part.posix == part.segments == 40_962_560
    files = [each for each in figures("s1_raw_fork").rows if each.scope == "file"]
    assert len(files) == 40
    assert all(each.asked == each.posix == each.segments == 2_048_128 for each in files)
    assert all(each.settled and not each.gaps and each.rchar is None for each in files)


def test_storage_time_of_raw_reads():
    read = stage("s1_raw_fork", "read")
    assert read.verdict == "from cache"
    assert not read.rest_is_bound
    busy_ms = [part.busy_ns / 1e6 for part in read.processes]
    storage_ms = [part.storage_ns / 1e6 for part in read.processes]
    assert busy_ms == pytest.approx([9.7, 47.2], abs=0.05)
    assert storage_ms == pytest.approx([8.3, 18.6], abs=0.05)
    assert read.rest_ns == read.busy_ns - read.storage_ns
    assert read.storage_ns / 1e6 == pytest.approx(26.9, abs=0.1)


def test_cold_reads_come_from_the_device():
    whole = row("s7_cold_fork")
    assert whole.settled
    assert (whole.rchar, whole.device) == (81_930_402, 82_083_840)
    # Whole pages of 40 files, less what iobench read itself.
    assert gaps(whole) == {
        ("own reads", "rchar", "posix+stdio"): 5282,
        ("read-ahead", "device", "rchar"): 40 * 3968 - 5282,
    }
    read = stage("s7_cold_fork", "read")
    assert read.verdict == "from device"
    assert [part.storage_ns / 1e6 for part in read.processes] == pytest.approx(
        [142.8, 133.5], abs=0.1
    )


def test_numpy_load_reads_headers_twice():
    whole = row("s2_npload_spawn")
    assert whole.settled
    assert (whole.posix, whole.stdio) == (2 * 81_920 + 182, 2 * 40_960_000)
    assert (whole.segments, whole.rchar) == (2 * 81_920, None)
    assert gaps(whole) == {
        ("header read twice", "posix+stdio", "asked"): 40 * 3968,
        ("stray segments", "posix+stdio", "asked"): 182,
        ("stray segments", "posix", "segments"): 182,
    }
    first = row("s2_npload_spawn", "process", "worker-0")
    assert first.posix + first.stdio == 41_041_920
    assert gaps(first) == {("header read twice", "posix+stdio", "asked"): 79_360}


def test_storage_time_of_numpy_load_has_that_of_fread():
    (read,) = figures("s2_npload_spawn").stages
    assert read.stage == "fused:read+decode"
    assert read.rest_is_bound
    assert read.verdict == "unknown"
    # POSIX and STDIO read times of Darshan's counters, of which no two overlap here.
    assert [part.storage_ns / 1e6 for part in read.processes] == pytest.approx(
        [91.05 + 118.59, 59.7 + 120.26], abs=0.2
    )
    assert read.rest_ns > 0


def test_netcdf_is_sniffed_and_compressed():
    whole = row("s3_netcdf_fork")
    assert whole.settled
    assert (whole.asked, whole.posix) == (4 * 10_240_000, 14_704_937 + 14_704_970)
    assert (whole.stdio, whole.segments) == (2 * 4_194_304, whole.posix)
    found = gaps(whole)
    assert found.pop(("format sniffing", "posix+stdio", "asked")) == 2 * 4_194_304
    tables = found.pop(("metadata", "posix+stdio", "asked"))
    assert 0 < tables < 30_000
    compressed = whole.posix - tables - 2 * 10_240_000
    assert found == {("compression", "posix+stdio", "asked"): compressed - 2 * 10_240_000}
    assert row("s3_netcdf_fork", "file").name == "/srv/iobench-demo/samples.nc"
    assert stage("s3_netcdf_fork", "fused:read+decode").rest_is_bound
    assert not stage("s3_netcdf_fork", "read").rest_is_bound
    # The 4 MiB of each opening have no segment; their time is in the stage that opened.
    opened = stage("s3_netcdf_fork", "open")
    assert opened.storage_ns / 1e6 == pytest.approx(15.9 + 4.6, abs=0.2)


def test_a_partial_log_settles_nothing():
    whole = row("s4_default_partial_w0")
    assert not whole.settled
    assert (whole.asked, whole.posix) == (81_925_120, 8_192_512)
    assert gaps(whole)["partial log", "posix+stdio", "asked"] == 8_192_512 - 81_925_120
    assert not figures("s4_default_partial_w0").traced.coverage.complete
    files = [each for each in figures("s4_default_partial_w0").rows if each.scope == "file"]
    assert sum(each.posix is None for each in files) == 36
    assert not any(each.settled for each in files)
    assert stage("s4_default_partial_w0", "read").storage_ns is None


def test_segments_that_cannot_be_read_are_unknown():
    whole = row("s6_dxtv2_fork")
    assert whole.settled
    assert whole.asked == whole.posix == 24_577_536
    assert whole.segments is None
    read = stage("s6_dxtv2_fork", "read")
    assert (read.storage_ns, read.rest_ns) == (None, None)


def test_reads_are_ranked_by_what_they_cost():
    found = figures("s7_cold_fork")
    costs = [read.exposed_ns for read in found.costliest]
    assert 0 < len(costs) <= 20
    assert costs == sorted(costs, reverse=True)
    assert all(read.offset == 0 and read.nbytes == 2_048_128 for read in found.costliest)
    access = found.access
    assert access.of_segments
    assert access.n_reads == 40  # the 40 reads at the ends of files returned nothing
    assert 0 < access.top_fraction < 0.2 < 0.5 < access.top_exposed_fraction <= 1


def test_reads_of_numpy_load_are_those_of_its_stages():
    found = figures("s2_npload_spawn")
    assert not found.access.of_segments
    assert found.access.n_reads == 40
    assert {read.offset for read in found.costliest} == {None}
    assert found.access.consecutive_fraction is None
    assert found.sanity.nbytes == 81_925_120  # of the samples' files, without what imports read


def test_order_and_size_of_netcdf_reads():
    access = figures("s3_netcdf_fork").access
    assert access.n_reads == 122
    assert sum(access.size_counts) == 122
    assert sum(access.size_nbytes) == 29_409_907
    assert access.size_counts[access.size_edges.index(1 << 20)] == 40  # uncompressed steps
    total = access.consecutive_fraction + access.sequential_fraction + access.random_fraction
    assert total == pytest.approx(1)
    assert access.reread_factor == pytest.approx(1.0005, abs=1e-4)
    assert access.small_read_fraction == pytest.approx(42 / 122)


def test_without_a_tracer_there_are_fewer_columns():
    profile = profile_of_ground_truth(LOGS / "s1_raw_fork" / "ground_truth.json")
    found = storage_of(Run(profile).of_rank())
    assert found.traced is None
    whole = found.rows[0]
    assert whole.settled
    assert (whole.posix, whole.stdio, whole.segments) == (None, None, None)
    assert gaps(whole) == {
        ("own reads", "rchar", "asked"): 4613,
        ("page cache", "device", "rchar"): 397_312 - 81_929_733,
    }
    assert [each.verdict for each in found.stages] == ["from cache", "from cache"]
    assert all(each.storage_ns is None for each in found.stages)
    assert not found.access.of_segments
    assert found.access.n_reads == 40
