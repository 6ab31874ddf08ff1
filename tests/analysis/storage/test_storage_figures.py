"""Bytes, storage time and reads of the runs beside the Darshan logs, number by number."""

from functools import cache
from pathlib import Path

import pytest
from ground_truth_profiles import marked_logs, profile_of_ground_truth

from iobench.analysis.run import Run
from iobench.findings.storage import storage_of

pytest.importorskip("darshan", reason="reads Darshan logs")

LOGS = Path(__file__).parents[2] / "data" / "darshan"
NETCDF = 14_704_937 + 14_704_970 + 2 * 4_194_304
"""With 4 MiB by ``fread`` of each process, to recognise the format."""


@cache
def figures(name, traced=True):
    profile = profile_of_ground_truth(LOGS / name / "ground_truth.json")
    logs = marked_logs(LOGS / name, profile) if traced else None
    return storage_of(Run(profile, logs).of_rank())


def counts(row):
    return row.requested_nbytes, row.darshan_nbytes, row.read_calls_nbytes, row.device_nbytes


@pytest.mark.parametrize(
    ("name", "whole", "reasons"),
    [
        ("s1_raw_fork", (81_925_120, 81_925_120, 81_929_733, 397_312), ("page cache",)),
        ("s7_cold_fork", (81_925_120, 81_925_120, 81_930_402, 82_083_840), ()),
        # Headers are read twice; the 182 bytes of strays are in none of it.
        ("s2_npload_spawn", (81_925_120, 2 * 81_920 + 2 * 40_960_000, None, None), ()),
        ("s3_netcdf_fork", (4 * 10_240_000, NETCDF, None, None), ("compression",)),
        ("s4_default_partial_w0", (81_925_120, None), None),
        ("s6_dxtv2_fork", (24_577_536, 24_577_536), None),
    ],
)
def test_bytes_of_a_run(name, whole, reasons):
    row = figures(name).bytes[0]
    assert counts(row)[: len(whole)] == whole
    assert reasons is None or row.reasons == reasons


@pytest.mark.parametrize(
    ("name", "n_files", "of_worker"),
    [("s1_raw_fork", 40, 40_962_560), ("s2_npload_spawn", 40, 41_041_920)],
)
def test_bytes_of_processes_and_files(name, n_files, of_worker):
    _, *rows = figures(name).bytes
    processes, files = rows[:2], rows[2:]
    assert [row.darshan_nbytes for row in processes] == [of_worker] * 2
    assert len(files) == n_files
    if name == "s1_raw_fork":
        assert {counts(row) for row in files} == {(2_048_128, 2_048_128, None, None)}


@pytest.mark.parametrize(
    ("name", "stage", "storage_ms", "verdict"),
    [
        ("s1_raw_fork", "read", 26.9, "from cache"),
        ("s7_cold_fork", "read", 142.8 + 133.5, "from device"),
        # POSIX and STDIO read times of Darshan's counters, of which no two overlap here.
        ("s2_npload_spawn", "fused:read+decode", 91.05 + 118.59 + 59.7 + 120.26, "unknown"),
        # The 4 MiB of each opening have no segment; their time is in the stage that opened.
        ("s3_netcdf_fork", "open", 15.9 + 4.6, "unknown"),
        ("s4_default_partial_w0", "read", None, "unknown"),
        ("s6_dxtv2_fork", "read", None, "unknown"),
    ],
)
def test_storage_time_of_stages(name, stage, storage_ms, verdict):
    (found,) = (each for each in figures(name).stages if each.stage == stage)
    spent = None if found.storage_ns is None else found.storage_ns / 1e6
    assert spent == (None if storage_ms is None else pytest.approx(storage_ms, abs=0.3))
    assert found.verdict == verdict
    if name == "s1_raw_fork":
        assert found.busy_ns / 1e6 == pytest.approx(9.7 + 47.2, abs=0.1)


@pytest.mark.parametrize(
    ("name", "n_reads", "is_known"),
    [
        ("s7_cold_fork", 40, False),  # the 40 reads at the ends of files returned nothing
        ("s2_npload_spawn", 40, False),  # those of its stages
        ("s3_netcdf_fork", 122, True),
    ],
)
def test_single_reads(name, n_reads, is_known):
    found = figures(name)
    assert sum(found.read_sizes.values()) == n_reads
    assert (found.sequential_fraction is not None) == is_known
    if is_known:
        assert found.read_sizes["< 1 MiB"] == 40  # uncompressed steps


def test_without_darshan_its_figures_are_unknown():
    found = figures("s1_raw_fork", traced=False)
    assert counts(found.bytes[0]) == (81_925_120, None, 81_929_733, 397_312)
    assert found.bytes[0].reasons == ("page cache",)
    assert [(each.verdict, each.storage_ns) for each in found.stages] == [("from cache", None)] * 2
    assert (sum(found.read_sizes.values()), found.notes) == (40, ())
