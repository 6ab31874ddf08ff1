"""Counts of a run: exact, of what was delivered, and unknown where they are chance."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from iobench.analysis.run import Run
from iobench.errors import FileFormatError, MissingFileError, ProfileError
from iobench.findings.counts import (
    Counts,
    compare_counts,
    counts_of,
    read_counts,
)
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from tests.support.sketched_runs import CONSUMER, SketchedRun

COUNTS = Counts(
    {
        "batches": 10,
        "samples": 40,
        "used_nbytes": 800,
        "opens": 3,
        "reads": 80,
        "read_nbytes": 1600,
        "digests/profile/0": "ab",
    },
)


def changed(gone: tuple[str, ...] = (), **figures: Any) -> Counts:
    """Return `COUNTS` with some figures other ones, by name."""
    exact = {name: value for name, value in COUNTS.exact.items() if not name.startswith(gone)}
    return Counts({**exact, **figures})


def test_what_was_delivered_is_counted(make_run):
    def chance(run: SketchedRun, batch: int) -> None:
        run.add(CONSUMER, Kind.READ, 1, 2, nbytes=7)  # an import, a batch nobody got, a counter
        run.add(CONSUMER, Kind.READ, 1, 2, nbytes=7, batch=900 + batch)
        of = {"batch": batch, "epoch": 0}
        run.add(CONSUMER, Kind.READ, 1, 2, nbytes=1000, sample=0, flags=Flag.IO, **of)
        run.add(CONSUMER, Kind.READ, 1, 2, nbytes=7, flags=Flag.DETAIL, **of)

    found = counts_of(Run(make_run(n_batches=10, extra=chance)))
    assert found.exact == {
        "batches": 10,
        "samples": 40,
        "used_nbytes": 800,
        "opens": None,
        "reads": 20,
        "read_nbytes": 2000,
    }
    assert "opens" in found.unknown


def test_what_is_read_and_decoded_in_one_call_is_unknown_and_not_0(make_run):
    def fused(run: SketchedRun, batch: int) -> None:
        run.spans = [{**each, "kind": Kind.FUSED} if each["kind"] == Kind.READ else each
                     for each in run.spans]  # fmt: skip
        run.add(CONSUMER, Kind.READ, 1, 2, nbytes=7)  # an import

    found = counts_of(Run(make_run(n_batches=10, extra=fused)))
    assert (found.exact["reads"], found.exact["read_nbytes"]) == (None, None)
    assert found.unknown["reads"] == "what samples are read with decodes in the same call"


def test_calls_that_are_sums_are_counted(make_run):
    runs = (
        make_run("singly", n_batches=5, reads=4, nbytes=100),
        make_run("sums", n_batches=5, reads=1, flags=Flag.SUMMED, nbytes=400),
    )
    singly, sums = (counts_of(Run(path)).exact for path in runs)
    assert singly == sums


@pytest.mark.parametrize(
    ("flags", "config"),
    [
        (Flag.SUMMED | Flag.ESTIMATED, {}),
        (Flag.SUMMED, {"kind": "script", "detail": "auto"}),
    ],
)
def test_what_was_not_all_seen_is_unknown(make_run, flags, config):
    found = counts_of(Run(make_run(n_batches=4, flags=flags, config=config)))
    assert (found.exact["reads"], found.exact["read_nbytes"]) == (None, None)
    assert "--detail sample" in found.unknown["reads"]
    assert found.exact["used_nbytes"] == 320


def test_a_run_that_its_time_ended_is_refused(make_run):
    by_time = {"asked": {"batches": 200, "steady_s": 60.0}}
    with pytest.raises(ProfileError, match=r"after 10 batches.*--batches N or --epochs E"):
        counts_of(Run(make_run("short", n_batches=10, config=by_time)))
    whole = counts_of(Run(make_run("long", n_batches=200, config=by_time)))
    assert whole.exact["batches"] == 200
    with pytest.raises(ProfileError, match="no loader delivered a batch"):
        counts_of(Run(make_run("none", n_batches=0)))


def test_lost_spans_leave_nothing_exact(make_run):
    profile = Run(make_run(n_batches=4)).data
    process = replace(profile.processes[0], lost=3)
    found = counts_of(Run(msgspec.structs.replace(profile, processes=(process,))))
    assert "3 spans lost" in found.unknown["reads"]
    assert [found.exact[name] for name in ("samples", "reads")] == [None] * 2


@pytest.mark.parametrize(
    ("found", "differences"),
    [
        (changed(), []),
        (changed(opens=4), [("opens", 3, 4, False)]),
        (changed(**{"digests/profile/0": "cd"}), [("digests/profile/0", "ab", "cd", False)]),
        (changed(("digests/",)), [("digests/profile/0", "ab", None, False)]),
        (changed(batches=9, reads=70), [("batches", 10, 9, False), ("reads", 80, 70, True)]),
    ],
)
def test_differences_and_less_work_are_named(found, differences):
    compared, unknown = compare_counts(COUNTS, found)
    assert [*map(msgspec.structs.astuple, compared)] == differences
    assert not unknown


def test_what_a_run_does_not_record_is_no_difference():
    without = changed(("digests/",), opens=None)
    found = replace(without, unknown={"opens": "o", "digests": "d"})
    assert compare_counts(COUNTS, found) == ((), {"opens": "o", "digests/profile/0": "d"})
    assert compare_counts(without, COUNTS) == ((), {})


def counts_file(**run: Any) -> str:
    return json.dumps({"iobench_counts": 2, "runs": {"run": run}})


@pytest.mark.parametrize(
    "document",
    [
        "{",
        json.dumps({"iobench_counts": 1, "runs": {}}),
        counts_file(exact={"a": 0.5}),
        counts_file(exact={}),
    ],
)
def test_another_file_is_refused(tmp_path, document):
    (tmp_path / "counts.json").write_text(document)
    with pytest.raises(FileFormatError, match="holds no counts"):
        read_counts(tmp_path / "counts.json")
    with pytest.raises(MissingFileError, match="with --update"):
        read_counts(tmp_path / "none.json")
