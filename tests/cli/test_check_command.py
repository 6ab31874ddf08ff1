"""``iobench check`` from the command line: what it takes, two commands, its summaries."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from iobench.analysis.intervals import RoundRatio
from iobench.cli import check_command, main
from iobench.cli.check_command import TrialProgress, split_commands, with_stdout
from iobench.cli.interrupts import Interrupted
from iobench.subjects.check.gates import PairedGate
from iobench.testing import FakeClock
from iobench.trials import paired_commands

PYTHON = [sys.executable, "-S", "-E", "-c"]


@pytest.mark.parametrize(
    ("words", "own", "commands"),
    [
        ("RUN --against OLD", "RUN --against OLD", ()),
        ("--cpu -- a -x --against -- b --y", "--cpu", ("a -x", "b --y")),
        ("-- a --against b -- c --against -- d", "", ("a --against b -- c", "d")),
        ("-- a --against -- b --against -- c", "", ("a", "b --against -- c")),
        ("-- a", "", ("a",)),
        ("--", "", ("",)),
        ("-- a --against --", "", ("a", "")),
        ("-- --against -- b", "", ("", "b")),
    ],
)
def test_the_first_against_with_dashes_ends_the_first_command(
    words: str, own: str, commands: tuple[str, ...]
) -> None:
    expected = (own.split(), tuple(command.split() for command in commands))
    assert split_commands(words.split()) == expected


@pytest.mark.parametrize(
    ("words", "own"),
    [
        ("RUN --markdown", "RUN --markdown -"),
        ("RUN --markdown --json", "RUN --markdown - --json"),
        ("RUN --markdown sum.md", "RUN --markdown sum.md"),
        ("RUN --markdown - --cpu", "RUN --markdown - --cpu"),
        ("RUN --cpu", "RUN --cpu"),
    ],
)
def test_markdown_needs_no_file(words: str, own: str) -> None:
    assert with_stdout(words.split()) == own.split()


def test_two_commands_run_in_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    code = main(
        [
            "check", "--rounds", "6", "--markdown", str(tmp_path / "summary.md"), "--margin", "1",
            "--", "sh", "-c", f"echo new --against -- {tmp_path} >> {log}", "--against", "--",
            "sh", "-c", f"echo old >> {log}",
        ]
    )  # fmt: skip
    assert code in (0, 3, 4)
    told = capsys.readouterr()
    assert "time of two commands, " in told.out
    first = f"new --against -- {tmp_path}"
    lines = log.read_text().splitlines()
    assert lines[:6] == [first, "old", "old", "old", "old", first]
    assert "iobench check: " in (tmp_path / "summary.md").read_text()
    before, after, *_ = told.err.splitlines()
    assert before.startswith("6 rounds of three runs")
    assert after.startswith("a round took ")
    assert after.endswith(", or less if the result is clear earlier")


def test_a_long_comparison_says_in_a_pipe_how_far_it_is() -> None:
    clock, said, moved = FakeClock(), [], []
    told = TrialProgress(12, said.append, lambda *each: moved.append(each), clock)
    for n_ran in range(1, 40):
        clock.advance(10 * 10**9)
        told.ran(n_ran, 39)
    assert moved == [(n_ran, 39) for n_ran in range(1, 40)]
    assert said[1] == (
        "a round took 30.0 s: the 12 counted rounds take about 360 s, or less if the result is "
        "clear earlier"
    )
    assert said[2] == "1 of 12 rounds, about 330 s left"
    assert len(said) == 13
    assert told.n_rounds == 12


@pytest.mark.thorough
def test_a_command_that_does_more_is_a_regression(capsys: pytest.CaptureFixture[str]) -> None:
    # By CPU time, of two commands a factor of dozens apart: no noise of a machine is as large.
    code = main(
        [
            "check", "--cpu", "--rounds", "6", "--json", "--",
            *PYTHON, "sum(range(3 * 10**6))", "--against", "--", *PYTHON, "pass",
        ]
    )  # fmt: skip
    told = json.loads(capsys.readouterr().out)
    assert code == told["exit_code"] == 3
    gate = told["gates"][0]
    assert gate["gate"] == "commands"
    assert gate["ratio"] > 2
    assert gate["low"] > gate["band_high"]
    assert gate["reference"][-1] == "pass"


def test_a_command_that_fails_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        ["check", "--", *PYTHON, "pass", "--against", "--", *PYTHON, "raise SystemExit('no')"]
    )
    assert code == 1
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("iobench: the reference, round 1: ")
    assert "exit code 1, expected 0; no" in error
    assert main(["check", "--", "no-such-program", "--against", "--", "true"]) == 1
    assert "the command, round 1: no-such-program: cannot be started" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "expected RUN, or -- COMMAND"),
        ("-- a", "expected two commands"),
        ("-- a --against --", "expected two commands"),
        ("RUN -- a --against -- b", "leave out RUN"),
        ("RUN", "nothing to compare it with"),
        ("RUN --update", "expected RUN --counts FILE --update"),
        ("RUN --counts c.json --update --max-exposed 5%", "expected RUN --counts FILE --update"),
        ("RUN --counts c.json --rounds 9", "--rounds: has no effect here"),
        ("RUN --counts c.json --cpu", "--cpu: has no effect here"),
        ("RUN --counts c.json --margin 9%", "--margin: has no effect here"),
        ("RUN --max-exposed 5% --any-machine", "it needs --against RUN"),
        ("RUN --counts c.json --update --markdown", "and not --update"),
        ("RUN --max-exposed five", "expected a share such as 5% or 0.05"),
        ("RUN --max-exposed 500%", "expected a share such as 5% or 0.05"),
        ("RUN --max-exposed nan", "expected a share such as 5% or 0.05"),
        ("RUN --counts c.json --json --markdown", "both go to stdout"),
        ("RUN --max-exposed 5%", "RUN: is no directory"),
        ("RUN --counts c.json", "c.json: no such file"),
    ],
)
def test_what_cannot_be_done_is_said(
    words: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check", *words.split()]) == 1
    assert message in capsys.readouterr().err


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = PairedGate(
        ("python", "a_b.py"), ("python", "<old>.py"), RoundRatio(12, 1.0, 0.99, 1.01, 0.99, 1.01),
        1.0, 1.0, 0.05, by_cpu=False,
    )  # fmt: skip
    told: Callable[..., PairedGate] = lambda *args, **more: gate  # noqa: E731
    monkeypatch.setattr(check_command, "_paired", told)


COMMANDS = ["--", "a", "--against", "--", "b"]


@pytest.mark.usefixtures("passing")
def test_a_summary_goes_to_stdout_or_is_added_to_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--markdown", *COMMANDS]) == 0
    told = capsys.readouterr().out
    assert told.startswith("## ✅ iobench check: passed\n\n✅ **passed: time of two commands")
    assert "python a_b.py" in told  # no emphasis inside a word
    assert r"'\<old>.py'" in told
    summary = tmp_path / "summary.md"
    summary.write_text("of another step\n")
    assert main(["check", "--markdown", str(summary), *COMMANDS]) == 0
    assert "passed: time of two commands" in capsys.readouterr().out
    assert summary.read_text().rstrip() == f"of another step\n{told.rstrip()}"
    assert main(["check", "--markdown", str(tmp_path), *COMMANDS]) == 1
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.usefixtures("passing")
def test_json_has_all_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--json", *COMMANDS]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["outcome"] == "passed"
    assert told["gates"][0].keys() >= {
        "gate", "outcome", "doubt", "command", "reference", "by_cpu", "margin_fraction",
        "noise_fraction", "n_rounds", "ratio", "low", "high", "band_low", "band_high",
    }  # fmt: skip


def test_an_interrupt_leaves_no_conclusion(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*commands: object, ran: Callable[[int, int], None], **more: object) -> None:
        for n_ran in range(1, 10):
            ran(n_ran, 24)
        raise Interrupted

    monkeypatch.setattr(paired_commands, "compare_commands", interrupted)
    assert main(["check", "--rounds", "7", *COMMANDS]) == 75
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.endswith(
        "iobench: interrupted; only 2 of 7 rounds were run, too few to decide\n"
    )
