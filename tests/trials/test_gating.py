"""``iobench check`` on runs: what passes, what fails, what stays open, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from iobench.analysis.run import Run
from iobench.cli import main
from iobench.findings import check
from iobench.findings.check import Doubt, Outcome, conclude, exposed_share

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import MakeRun

PASSED, ERROR, REGRESSION, OPEN = 0, 1, 3, 4


@pytest.mark.thorough
def test_counts_are_written_and_held_against_other_runs(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = str(tmp_path / "counts.json")
    assert main(["check", str(make_run("a")), "--counts", kept]) == ERROR
    assert "no such file; create it from a known good run with --update" in capsys.readouterr().err
    assert main(["check", str(make_run("b")), "--counts", kept, "--update"]) == PASSED
    text = " ".join(capsys.readouterr().out.split())
    assert "so not compared: opens, bytes requested from the system" in text
    assert main(["check", str(make_run("c")), "--counts", kept]) == PASSED
    assert "passed: counts of the run\n11 figures as expected\n" in capsys.readouterr().out
    more = str(make_run("d", reads=3))
    assert main(["check", more, "--counts", kept]) == REGRESSION
    told = capsys.readouterr().out
    assert "regression: counts of the run" in told
    assert "\nreads: 300, expected 200" in told
    assert "\nspans of read: 300, expected 200" in told
    assert "if this is intended, use --update" in told
    fewer = str(make_run("e", reads=1))
    assert main(["check", fewer, "--counts", kept]) == PASSED
    told = capsys.readouterr().out
    assert "passed: counts of the run\nreads: 100, expected 200: less" in told
    assert (
        "less work than the file expects passes; use --update to require it of later runs"
    ) in told
    assert main(["check", fewer, "--counts", kept, "--json"]) == PASSED
    [gate] = json.loads(capsys.readouterr().out)["gates"]
    assert {"reads", "read_nbytes"} <= {each["name"] for each in gate["improvements"]}
    assert main(["check", more, "--counts", kept, "--update"]) == PASSED
    assert main(["check", more, "--counts", kept]) == PASSED


def test_counts_that_a_run_does_not_tell_stay_open(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = str(tmp_path / "counts.json")
    assert main(["check", str(make_run("a")), "--counts", kept, "--update"]) == PASSED
    estimated = make_run("b", flags=17)
    assert main(["check", str(estimated), "--counts", kept, "--json"]) == OPEN
    out = capsys.readouterr().out
    told = json.loads(out[out.index('{\n "gates"') :])
    assert (told["outcome"], told["exit_code"]) == ("inconclusive", 4)
    assert set(told["gates"][0]["unknown"]) == {
        "reads", "read_nbytes", "stages/read/spans", "stages/read/nbytes",
    }  # fmt: skip


def test_counts_of_a_run_that_was_killed_are_not_kept(
    make_run: MakeRun,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, kept = make_run(), tmp_path / "counts.json"
    process = replace(Run(run).data.processes[0], closed=False)
    killed = replace(Run(run).data, processes=(process,))
    monkeypatch.setattr(check, "Run", lambda _: Run(killed))
    assert main(["check", str(run), "--counts", str(kept), "--update"]) == ERROR
    assert "expected a run that has finished" in capsys.readouterr().err
    assert not kept.exists()


def test_a_run_of_several_formats_has_counts_of_each(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = str(tmp_path / "counts.json")
    make_run("first/source")
    make_run("first/zarr", reads=1)
    make_run("second/source")
    make_run("second/zarr", reads=2)
    make_run("third/numpy")
    assert main(["check", str(tmp_path / "first"), "--counts", kept, "--update"]) == PASSED
    assert main(["check", str(tmp_path / "second"), "--counts", kept]) == REGRESSION
    told = capsys.readouterr().out
    assert "passed: counts of source" in told
    assert "regression: counts of zarr" in told
    assert main(["check", str(tmp_path / "third"), "--counts", kept]) == ERROR
    assert "expects nothing of numpy, only of source, zarr" in capsys.readouterr().err
    make_run("fourth/source")
    assert main(["check", str(tmp_path / "fourth"), "--counts", kept]) == ERROR
    assert "expects zarr too, which" in capsys.readouterr().err


def test_exposed_share_is_exact_and_has_an_interval(make_run: MakeRun) -> None:
    found = exposed_share(Run(make_run(wait_ns=250_000)).of_rank())
    assert found.exposed_fraction == pytest.approx(0.2)
    assert (found.low_fraction, found.high_fraction) == pytest.approx((0.2, 0.2))
    path = make_run("uneven", wait_ns=lambda k: 100_000 * (1 + k * 7919 % 11))
    uneven = exposed_share(Run(path).of_rank())
    assert 0 < uneven.low_fraction < uneven.exposed_fraction < uneven.high_fraction < 1
    assert uneven.high_fraction - uneven.low_fraction < 0.2
    assert exposed_share(Run(make_run("short", n_batches=10)).of_rank()).low_fraction is None


@pytest.mark.parametrize(
    ("wait_ns", "limit", "code"),
    [(50_000, "5%", PASSED), (50_000, "0.03", REGRESSION), (250_000, "5 %", REGRESSION)],
)
def test_the_exposed_share_has_a_limit(
    make_run: MakeRun, wait_ns: int, limit: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(make_run(wait_ns=wait_ns)), "--max-exposed", limit]) == code
    assert "steps, steady state" in capsys.readouterr().out


def test_a_limit_inside_the_interval_stays_open(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    uneven = make_run(wait_ns=lambda batch: 1000 + 2_000_000 * (batch % 37 == 5))
    assert main(["check", str(uneven), "--max-exposed", "5%"]) == OPEN
    assert "the interval contains the limit" in capsys.readouterr().out
    assert main(["check", str(make_run("s", n_batches=9)), "--max-exposed", "5%"]) == OPEN
    assert "fewer than 48 steady-state steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("interval", "lost", "unknown", "concluded"),
    [
        ((0.03, 0.05), 0, 0, (Outcome.PASSED, None)),
        ((0.06, 0.07), 0, 0, (Outcome.REGRESSION, None)),
        ((0.06, 0.07), 0, 0.02, (Outcome.INCONCLUSIVE, Doubt.UNKNOWN)),
        ((0.06, 0.07), 0, 0.005, (Outcome.REGRESSION, None)),
        ((0.03, 0.04), 1, 0, (Outcome.INCONCLUSIVE, Doubt.LOST)),
        ((0.04, 0.06), 0, 0, (Outcome.INCONCLUSIVE, Doubt.INCLUDES_LIMIT)),
        ((None, None), 0, 0, (Outcome.INCONCLUSIVE, Doubt.SHORT)),
    ],
)
def test_what_is_concluded_of_an_interval(
    interval: tuple[float | None, float | None],
    lost: int,
    unknown: float,
    concluded: tuple[Outcome, Doubt | None],
) -> None:
    assert conclude(interval, 0.05, lost=lost, unknown=unknown) == concluded


def test_a_stored_run_is_held_against(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = str(make_run("stored", wait_ns=50_000))
    assert main(["check", str(make_run("same")), "--against", stored]) == PASSED
    worse = str(make_run("worse", wait_ns=300_000))
    capsys.readouterr()
    assert main(["check", worse, "--against", stored]) == REGRESSION
    assert "exposed time per sample: +24 % (+24 % to +24 %)" in capsys.readouterr().out
    assert main(["check", worse, "--against", stored, "--margin", "25%"]) == PASSED
    assert main(["check", stored, "--against", worse]) == PASSED
    assert main(["check", str(make_run("few", n_batches=9)), "--against", stored]) == OPEN


@pytest.mark.parametrize(
    "other", [{"cpu_model": "Another CPU"}, {"cpus": 4}, {"system": "Darwin 24"}, {"cpu_model": ""}]
)
def test_another_machine_is_refused_unless_told(
    make_run: MakeRun, other: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    machine = {"host": "two", "cpus": 2, "cpu_model": "Some CPU", "system": "Linux 5.14", **other}
    stored = str(make_run("stored"))
    new = str(make_run("new", config={"machine": machine}))
    assert main(["check", new, "--against", stored]) == ERROR
    error = capsys.readouterr().err
    assert "another machine" in error
    assert next(iter(other)) in error
    assert "--any-machine" in error
    assert main(["check", new, "--against", stored, "--any-machine"]) == PASSED


def test_other_formats_and_datasets_are_refused(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run("one/source")
    make_run("other/zarr")
    assert main(["check", str(tmp_path / "one"), "--against", str(tmp_path / "other")]) == ERROR
    assert "expected the same formats" in capsys.readouterr().err
    yr, ens = (str(make_run(name, config={"dataset": name})) for name in ("yr", "ens"))
    assert main(["check", yr, "--against", ens]) == ERROR
    assert "dataset is ens" in capsys.readouterr().err


def test_a_regression_counts_more_than_what_is_open(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = str(tmp_path / "counts.json")
    assert main(["check", str(make_run("a")), "--counts", kept, "--update"]) == PASSED
    short, long_wait = make_run("b", n_batches=9), make_run("c", wait_ns=900_000)
    assert main(["check", str(long_wait), "--counts", kept]) == PASSED
    assert main(["check", str(long_wait), "--counts", kept, "--max-exposed", "5%"]) == REGRESSION
    # Other counts, and too short for a share.
    assert main(["check", str(short), "--counts", kept, "--max-exposed", "5%"]) == REGRESSION


def test_a_summary_goes_to_stdout_or_is_added_to_a_file(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(make_run())
    words = [run, "--against", run]
    assert main(["check", *words, "--markdown"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("## ✅ iobench check: passed\n\n✅ **passed: exposed time of ")
    summary = tmp_path / "summary.md"
    summary.write_text("of another step\n")
    assert main(["check", *words, "--markdown", str(summary)]) == 0
    assert "passed: exposed time of " in capsys.readouterr().out
    assert summary.read_text().rstrip() == f"of another step\n{told.rstrip()}"
    assert main(["check", *words, "--markdown", str(tmp_path)]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_json_has_all_figures(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(make_run())
    assert main(["check", run, "--against", run, "--max-exposed", "50%", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["outcome"] == "passed"
    share, growth = told["gates"]
    both = {"gate", "outcome", "doubt", "run"}
    assert share.keys() >= {*both, "limit_fraction"}
    assert growth.keys() >= {*both, "margin_fraction", "growth_fraction", "low_fraction"}
