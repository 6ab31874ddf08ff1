"""Ledger, storage time and reads of the runs beside the Darshan logs, number by number."""

from functools import cache
from pathlib import Path

import pytest
from ground_truth_profiles import marked_logs, profile_of_ground_truth

from iobench.analysis.run import Run
from iobench.findings.storage.figures import storage_of

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


def differences(found):
    return {each.between: (each.nbytes, each.reason) for each in found.differences}


def stage(name, spelled):
    (found,) = (each for each in figures(name).stages if each.stage == spelled)
    return found


def test_raw_reads_from_the_cache():
    whole = row("s1_raw_fork")
    assert (whole.requested, whole.darshan) == (81_925_120, 81_925_120)
    assert (whole.read_calls, whole.device) == (81_929_733, 397_312)
    assert differences(whole) == {
        ("read_calls", "darshan"): (4613, ""),  # iobench's own
        ("device", "read_calls"): (397_312 - 81_929_733, "page cache"),
    }
    for worker in ("worker-0", "worker-1"):
        part = row("s1_raw_fork", "process", worker)
        assert part.requested == part.darshan == 40_962_560
    files = [each for each in figures("s1_raw_fork").rows if each.scope == "file"]
    assert len(files) == 40
    assert all(each.requested == each.darshan == 2_048_128 for each in files)
    assert all(not each.differences and each.read_calls is None for each in files)


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
    assert (whole.read_calls, whole.device) == (81_930_402, 82_083_840)
    # Whole pages of 40 files, less what iobench read itself.
    assert differences(whole) == {
        ("read_calls", "darshan"): (5282, ""),
        ("device", "read_calls"): (40 * 3968 - 5282, ""),
    }
    read = stage("s7_cold_fork", "read")
    assert read.verdict == "from device"
    assert [part.storage_ns / 1e6 for part in read.processes] == pytest.approx(
        [142.8, 133.5], abs=0.1
    )


def test_numpy_load_reads_headers_twice():
    whole = row("s2_npload_spawn")
    assert (whole.darshan, whole.read_calls) == (2 * 81_920 + 2 * 40_960_000, None)
    assert differences(whole) == {("darshan", "requested"): (40 * 3968, "")}
    # The 182 bytes of strays are in none of it.
    for worker in ("worker-0", "worker-1"):
        assert row("s2_npload_spawn", "process", worker).darshan == 41_041_920


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


def test_netcdf_is_compressed():
    whole = row("s3_netcdf_fork")
    # With 4 MiB by `fread` of each process, to recognise the format.
    darshan = 14_704_937 + 14_704_970 + 2 * 4_194_304
    assert (whole.requested, whole.darshan) == (4 * 10_240_000, darshan)
    assert differences(whole) == {
        ("darshan", "requested"): (darshan - 4 * 10_240_000, "compression")
    }
    assert row("s3_netcdf_fork", "file").name == "/srv/iobench-demo/samples.nc"
    assert stage("s3_netcdf_fork", "fused:read+decode").rest_is_bound
    assert not stage("s3_netcdf_fork", "read").rest_is_bound
    # The 4 MiB of each opening have no segment; their time is in the stage that opened.
    opened = stage("s3_netcdf_fork", "open")
    assert opened.storage_ns / 1e6 == pytest.approx(15.9 + 4.6, abs=0.2)


def test_of_a_partial_log_no_bytes_are_shown():
    whole = row("s4_default_partial_w0")
    assert (whole.requested, whole.darshan) == (81_925_120, None)
    assert not figures("s4_default_partial_w0").traced.coverage.complete
    assert stage("s4_default_partial_w0", "read").storage_ns is None


def test_segments_that_cannot_be_read_are_unknown():
    whole = row("s6_dxtv2_fork")
    assert whole.requested == whole.darshan == 24_577_536
    read = stage("s6_dxtv2_fork", "read")
    assert (read.storage_ns, read.rest_ns) == (None, None)


def test_few_reads_cost_most_of_the_wait():
    access = figures("s7_cold_fork").access
    assert access.of_segments
    assert access.n_reads == 40  # the 40 reads at the ends of files returned nothing
    assert 0 < access.top_fraction < 0.2 < 0.5 < access.top_exposed_fraction <= 1


def test_reads_of_numpy_load_are_those_of_its_stages():
    found = figures("s2_npload_spawn")
    assert not found.access.of_segments
    assert found.access.n_reads == 40
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
    assert whole.darshan is None
    assert differences(whole) == {
        ("read_calls", "requested"): (4613, ""),
        ("device", "read_calls"): (397_312 - 81_929_733, "page cache"),
    }
    assert [each.verdict for each in found.stages] == ["from cache", "from cache"]
    assert all(each.storage_ns is None for each in found.stages)
    assert not found.access.of_segments
    assert found.access.n_reads == 40
