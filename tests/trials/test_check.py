"""``iobench check``: counts, what passes, what fails, what stays open, and what is refused."""

from __future__ import annotations

import json

import msgspec
import pytest
from msgspec.structs import replace

from iobench.analysis.run import Run
from iobench.cli import main
from iobench.errors import FileFormatError, MissingFileError, ProfileError
from iobench.findings import check
from iobench.findings.check import conclude
from iobench.findings.counts import Counts, compare_counts, counts_of, read_counts
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from tests.support.sketched_runs import CONSUMER, SketchedRun

PASSED, ERROR, REGRESSION, OPEN = 0, 1, 3, 4
MACHINE = {"host": "one", "cpus": 2, "cpu_model": "Some CPU", "system": "Linux 6.1"}


# -- counts -------------------------------------------------------------------------------

COUNTS = Counts({
    "batches": 10, "samples": 40, "used_nbytes": 800, "opens": 3, "reads": 80, "read_nbytes": 1600,
    "digests/profile/0": "ab",
})  # fmt: skip


def changed(gone=(), **figures):
    """Return `COUNTS` with some figures other ones, by name."""
    exact = {name: value for name, value in COUNTS.exact.items() if not name.startswith(gone)}
    return Counts({**exact, **figures})


def test_what_was_delivered_is_counted(make_run):
    def chance(run, batch):
        run.add(CONSUMER, Kind.READ, 1, 2, nbytes=7)  # an import, a batch nobody got, a counter
        run.add(CONSUMER, Kind.READ, 1, 2, nbytes=7, batch=900 + batch)
        of = {"batch": batch, "epoch": 0}
        run.add(CONSUMER, Kind.READ, 1, 2, nbytes=1000, sample=0, flags=Flag.IO, **of)
        run.add(CONSUMER, Kind.READ, 1, 2, nbytes=7, flags=Flag.DETAIL, **of)

    found = counts_of(Run(make_run(n_batches=10, extra=chance)))
    assert found.exact == {
        "batches": 10, "samples": 40, "used_nbytes": 800, "opens": None, "reads": 20,
        "read_nbytes": 2000,
    }  # fmt: skip
    assert "opens" in found.unknown


def test_what_is_read_and_decoded_in_one_call_is_unknown_and_not_0(make_run):
    def fused(run, batch):
        run.spans = [{**each, "kind": Kind.FUSED} if each["kind"] == Kind.READ else each
                     for each in run.spans]  # fmt: skip
        run.add(CONSUMER, Kind.READ, 1, 2, nbytes=7)  # an import

    found = counts_of(Run(make_run(n_batches=10, extra=fused)))
    assert (found.exact["reads"], found.exact["read_nbytes"]) == (None, None)
    assert found.unknown["reads"] == "what samples are read with decodes in the same call"


def test_what_a_loop_reads_by_itself_is_unknown_and_not_0():
    run = SketchedRun(kind="script")
    for step in range(4):
        run.work(CONSUMER, 20 * step, {Kind.READ: 9, Kind.STEP: 9})
    found = counts_of(run.open())
    assert (found.exact["batches"], found.exact["reads"]) == (4, None)
    assert found.unknown["reads"] == "what is read without a loader is of no batch"


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


@pytest.mark.parametrize(
    "document",
    [
        "{",
        {"iobench_counts": 1, "runs": {}},
        {"iobench_counts": 2, "runs": {"run": {"exact": {"a": 0.5}}}},
        {"iobench_counts": 2, "runs": {"run": {"exact": {}}}},
    ],
)
def test_another_file_is_refused(tmp_path, document):
    text = document if isinstance(document, str) else json.dumps(document)
    (tmp_path / "counts.json").write_text(text)
    with pytest.raises(FileFormatError, match="holds no counts"):
        read_counts(tmp_path / "counts.json")
    with pytest.raises(MissingFileError, match="with --update"):
        read_counts(tmp_path / "none.json")


# -- gates --------------------------------------------------------------------------------


@pytest.fixture
def outcome(capsys):
    """Return with what ``iobench check`` exits, and what it says in JSON."""

    def check(*words):
        capsys.readouterr()
        code = main(["check", *map(str, words), "--json"])
        text = capsys.readouterr()
        return code, json.loads(text.out) if text.out else {"error": text.err}

    return check


def test_counts_are_written_and_held_against_other_runs(make_run, tmp_path, outcome, capsys):
    file = tmp_path / "counts.json"
    code, found = outcome(make_run("a"), "--counts", file)
    assert (code, "--update" in found["error"]) == (ERROR, True)
    assert outcome(make_run("b"), "--counts", file, "--update")[0] == PASSED
    assert outcome(make_run("c"), "--counts", file)[0] == PASSED
    more, fewer, estimated = make_run("d", reads=3), make_run("e", reads=1), make_run("f", flags=17)
    code, found = outcome(more, "--counts", file)
    assert (code, found["outcome"], found["exit_code"]) == (REGRESSION, "regression", REGRESSION)
    (gate,) = found["gates"]
    difference = {"name": "reads", "expected": 200, "measured": 300, "less_work": False}
    assert difference in gate["differences"]
    code, found = outcome(fewer, "--counts", file)
    assert code == PASSED
    assert {"name": "reads", "expected": 200, "measured": 100, "less_work": True} in (
        found["gates"][0]["differences"]
    )
    code, found = outcome(estimated, "--counts", file)
    assert (code, found["outcome"]) == (OPEN, "inconclusive")
    assert {*found["gates"][0]["unknown"]} == {"reads", "read_nbytes"}
    assert main(["check", str(more), "--counts", str(file), "--markdown"]) == REGRESSION
    assert "\n- reads: 300, expected 200" in capsys.readouterr().out


def test_counts_of_a_run_that_was_killed_are_not_kept(make_run, tmp_path, capsys, monkeypatch):
    run, kept = make_run(), tmp_path / "counts.json"
    process = replace(Run(run).data.processes[0], closed=False)
    killed = replace(Run(run).data, processes=(process,))
    monkeypatch.setattr(check, "Run", lambda _: Run(killed))
    assert main(["check", str(run), "--counts", str(kept), "--update"]) == ERROR
    assert "killed or is still running" in capsys.readouterr().err
    assert not kept.exists()


def test_a_run_of_several_formats_has_counts_of_each(make_run, tmp_path, outcome):
    file = tmp_path / "counts.json"
    for name in ("first/source", "first/zarr", "second/source", "third/numpy"):
        make_run(name)
    make_run("second/zarr", reads=2 + 1)
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    assert outcome(first, "--counts", file, "--update")[0] == PASSED
    code, found = outcome(second, "--counts", file)
    assert code == REGRESSION
    assert {each["run"]: each["outcome"] for each in found["gates"]} == {
        "source": "passed", "zarr": "regression",
    }  # fmt: skip
    code, found = outcome(third, "--counts", file)
    assert (code, "expects counts of source, zarr" in found["error"]) == (ERROR, True)


def uneven(batch):
    return 1000 + 2_000_000 * (batch % 37 == 5)


@pytest.mark.parametrize(
    ("how", "limit", "code", "share"),
    [
        ({"wait_ns": 50_000}, "5%", PASSED, 1 / 21),
        ({"wait_ns": 50_000}, "0.03", REGRESSION, 1 / 21),
        ({"wait_ns": 250_000}, "5 %", REGRESSION, 0.2),
        ({"wait_ns": uneven}, "5%", OPEN, None),
        ({"n_batches": 9}, "5%", OPEN, None),
    ],
)
def test_the_exposed_share_has_a_limit_and_an_interval(make_run, how, limit, code, share, outcome):
    exit_code, found = outcome(make_run(**how), "--max-exposed", limit)
    (gate,) = found["gates"]
    low, fraction, high = (gate[f"{name}_fraction"] for name in ("low", "exposed", "high"))
    assert exit_code == code
    if share is not None:
        assert (low, fraction, high) == pytest.approx((share, share, share))
    elif low is not None:
        assert 0 <= low < fraction < high < 1
        assert gate["doubt"] == "interval_includes_limit"
    else:
        assert gate["doubt"] == "short"


def test_lost_spans_leave_it_open():
    assert conclude(0.03, 0.04, 0.05, lost=1) == ("inconclusive", "lost")


def test_a_stored_run_is_held_against(make_run, outcome):
    stored, worse = make_run("stored", wait_ns=50_000), make_run("worse", wait_ns=300_000)
    for run, against, margin, expected in (
        (make_run("same"), stored, "5%", PASSED),
        (worse, stored, "5%", REGRESSION),
        (worse, stored, "25%", PASSED),
        (stored, worse, "5%", PASSED),
        (make_run("few", n_batches=9), stored, "5%", OPEN),
    ):
        code, found = outcome(run, "--against", against, "--margin", margin)
        assert code == expected
        if run is worse:
            (gate,) = found["gates"]
            assert gate["growth_fraction"] == pytest.approx(250 / 1050, abs=0.001)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"machine": MACHINE | {"cpu_model": "Another CPU"}}, "cpu_model Another CPU"),
        ({"machine": MACHINE | {"cpus": 4}}, "cpus 4"),
        ({"machine": MACHINE | {"cpu_model": ""}}, "cpu_model unknown"),
        ({"machine": MACHINE | {"host": "two", "system": "Linux 5.14"}}, ""),
        ({"dataset": "ens"}, "dataset"),
    ],
)
def test_a_run_of_another_machine_or_dataset_is_refused(make_run, config, words, outcome):
    stored, new = make_run("stored"), make_run("new", config=config)
    code, found = outcome(new, "--against", stored)
    assert (code, words in found.get("error", "")) == (ERROR if words else PASSED, True)
    allowed = PASSED if "machine" in config else ERROR
    assert outcome(new, "--against", stored, "--any-machine")[0] == allowed


def test_runs_of_other_formats_are_refused(make_run, tmp_path, outcome):
    make_run("one/source")
    make_run("other/zarr")
    code, found = outcome(tmp_path / "one", "--against", tmp_path / "other")
    assert (code, "formats zarr" in found["error"]) == (ERROR, True)


def test_a_regression_counts_more_than_what_is_open(make_run, tmp_path, capsys):
    kept = str(tmp_path / "counts.json")
    assert main(["check", str(make_run("a")), "--counts", kept, "--update"]) == PASSED
    short, long_wait = make_run("b", n_batches=9), make_run("c", wait_ns=900_000)
    assert main(["check", str(long_wait), "--counts", kept]) == PASSED
    assert main(["check", str(long_wait), "--counts", kept, "--max-exposed", "5%"]) == REGRESSION
    # Other counts, and too short for a share.
    assert main(["check", str(short), "--counts", kept, "--max-exposed", "5%"]) == REGRESSION
