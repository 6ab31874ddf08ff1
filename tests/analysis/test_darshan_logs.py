"""Darshan's logs beside what the jobs timed themselves: `tests/data/darshan/README.md`."""

import json
from functools import cache
from pathlib import Path

import pytest
from ground_truth_profiles import marked_logs, profile_of_ground_truth

from iobench.analysis.placement import place_segments
from iobench.analysis.run import Run
from iobench.findings.storage import storage_of

pytest.importorskip("darshan", reason="reads Darshan logs")

from iobench.storage.darshan_reader import read_traces

LOGS = Path(__file__).parents[1] / "data" / "darshan"
RAW, COLD, NUMPY, NETCDF = "s1_raw_fork", "s7_cold_fork", "s2_npload_spawn", "s3_netcdf_fork"
PARTIAL, MARKED = "s4_default_partial_w0", "s8_marked_fork"
NETCDF_NBYTES = 14_704_937 + 14_704_970 + 2 * 4_194_304
"""With 4 MiB by ``fread`` of each process, to recognise the format."""


@cache
def profile_of(name):
    return profile_of_ground_truth(LOGS / name / "ground_truth.json")


@cache
def logs_of(name):
    """Return the logs of a run, with markers where it was recorded without them."""
    folder = LOGS / name
    return read_traces([folder]) if name == MARKED else marked_logs(folder, profile_of(name))


@cache
def placed(name):
    return place_segments(profile_of(name), logs_of(name))


@cache
def figures(name, traced=True):
    return storage_of(Run(profile_of(name), logs_of(name) if traced else None).of_rank())


@pytest.mark.parametrize(
    ("name", "found", "segments", "strays"),
    [
        (RAW, 2, (80, 80), 0),
        (COLD, 2, (80, 80), 0),
        (NETCDF, 2, (122, 122), 0),
        # Pipes credited to samples are dropped and counted.
        (NUMPY, 2, (56, 40), 16),
        (PARTIAL, 1, (0, 0), 0),
        (MARKED, 1, (20, 20), 0),
    ],
)
def test_how_much_of_a_run_was_seen(name, found, segments, strays):
    seen = placed(name).coverage
    assert (seen.n_logs, seen.n_segments, seen.n_placed) == (found, *segments)
    assert sum(each.segments["stray"].sum() for each in placed(name).processes) == strays
    assert seen.complete == (name != PARTIAL)
    partial = "consumer (process 22356): Darshan ran out of memory in POSIX, DXT_POSIX"
    assert any(each.startswith(partial) for each in seen.problems) == (name == PARTIAL)


@pytest.mark.parametrize("name", [RAW, COLD, NUMPY, NETCDF, MARKED])
def test_every_read_lies_in_a_stage_of_its_file(name):
    profile = profile_of(name)
    path = LOGS / name / "expected.json"
    told = json.loads(path.read_text())["clock_offset_dxt_to_time_ns"] if path.exists() else []
    n_inside = {each["pid"]: each["contained_max"] for each in told}
    for found in placed(name).processes:
        who = profile.processes[found.process]
        assert found.low_ns <= found.high_ns <= found.low_ns + 4_000
        reads = found.segments[~found.segments["stray"]]
        assert len(reads) == n_inside.get(who.pid, len(reads))
        assert (reads["span"] >= 0).all()
        spans = profile.spans[reads["span"]]
        assert (spans["process"] == found.process).all()
        open_ns = found.high_ns - found.low_ns  # what the marker leaves open
        assert (spans["start_ns"] - open_ns <= reads["start_ns"]).all()
        assert (reads["end_ns"] <= spans["end_ns"] + open_ns).all()
        files = [profile.strings[detail] for detail in spans["detail"]]
        assert files == [found.files[file] for file in reads["file"]]


def counts(row):
    return row.requested_nbytes, row.darshan_nbytes, row.read_calls_nbytes, row.device_nbytes


@pytest.mark.parametrize(
    ("name", "whole", "reasons"),
    [
        (RAW, (81_925_120, 81_925_120, 81_929_733, 397_312), ("page cache",)),
        (COLD, (81_925_120, 81_925_120, 81_930_402, 82_083_840), ()),
        # Headers are read twice; the 182 bytes of strays are in none of it.
        (NUMPY, (81_925_120, 2 * 81_920 + 2 * 40_960_000, None, None), ()),
        (NETCDF, (4 * 10_240_000, NETCDF_NBYTES, None, None), ("compression",)),
        (PARTIAL, (81_925_120, None), None),
        ("s6_dxtv2_fork", (24_577_536, 24_577_536), None),
    ],
)
def test_bytes_of_a_run(name, whole, reasons):
    row = figures(name).bytes[0]
    assert counts(row)[: len(whole)] == whole
    assert reasons is None or row.reasons == reasons


@pytest.mark.parametrize(
    ("name", "stage", "storage_ms"),
    [
        (RAW, "read", 26.9),
        (COLD, "read", 142.8 + 133.5),
        # POSIX and STDIO read times of Darshan's counters, of which no two overlap here.
        (NUMPY, "fused:read+decode", 91.05 + 118.59 + 59.7 + 120.26),
        # The 4 MiB of each opening have no segment; their time is in the stage that opened.
        (NETCDF, "open", 15.9 + 4.6),
        (PARTIAL, "read", None),
        ("s6_dxtv2_fork", "read", None),
    ],
)
def test_storage_time_of_stages(name, stage, storage_ms):
    found = figures(name).in_stages[stage]
    spent = None if found.storage_ns is None else found.storage_ns / 1e6
    assert spent == (None if storage_ms is None else pytest.approx(storage_ms, abs=0.3))
    if name == RAW:
        assert found.busy_ns / 1e6 == pytest.approx(9.7 + 47.2, abs=0.1)


def test_without_darshan_its_figures_are_unknown():
    found = figures(RAW, traced=False)
    assert counts(found.bytes[0]) == (81_925_120, None, 81_929_733, 397_312)
    assert found.bytes[0].reasons == ("page cache",)
    assert (found.in_stages, found.notes) == ({}, ())
