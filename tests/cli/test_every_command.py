"""What holds for all commands: their options, and what they exit with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from iobench.cli import main
from iobench.cli.app import make_app
from iobench.cli.own_process import Interrupted
from iobench.command_options import OPTIONS

COMMANDS: dict[str, Any] = make_app().commands


def needs_words(command: Any) -> bool:
    """Tell whether a command is about something that is named."""
    return any(each.param_type_name == "argument" for each in command.params)


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_use_exits_2(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["x"] if name == "advise" else []  # it hands the rest on to a profile
    assert main([name, *words, "--no-such-option"]) == 2
    assert "--no-such-option" in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name, each in COMMANDS.items() if needs_words(each)])
def test_what_is_not_there_exits_1_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    more = {
        "convert": ["--to", "numpy", "out"], "synthesize": ["out", "--scale", "1"],
        "check": ["--max-exposed", "5%"], "run": ["--"],
    }  # fmt: skip
    words = ["nothing-here", *more.get(name, [])]
    assert main([name, *(words[::-1] if name == "run" else words)]) == 1
    told = capsys.readouterr().err
    assert told.startswith("iobench: ")
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_an_interrupt_exits_75(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        stopped = Interrupted()
        stopped.add_note("the rest is in runs/x")
        raise stopped

    monkeypatch.setattr("iobench.cli.app.make_app", lambda: interrupted)
    assert main([name]) == 75
    assert capsys.readouterr().err == "iobench: interrupted; the rest is in runs/x\n"


def test_options_are_few_and_those_of_the_table() -> None:
    assert len(OPTIONS["profile"]) <= 30
    assert sum(map(len, OPTIONS.values())) + len(["--version"]) <= 140
    for name, command in COMMANDS.items():
        has = [each.opts[0] for each in command.params if each.param_type_name == "option"]
        assert has == [*(each.name.partition("/")[0] for each in OPTIONS[name]), "--quiet"]


def test_quiet_leaves_a_script_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "iobench", "run", "--quiet", "--out", "run", "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", "print(1)"],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    assert (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize("words", [["--help"], ["profile", "--no-such-option"], ["convert"]])
def test_help_and_wrong_use_take_little_time(words: list[str]) -> None:
    """Of the least of three: what others on the machine do counts for none of them."""
    code = (
        "import resource, subprocess, sys\n"
        "subprocess.run([sys.executable, '-m', 'iobench', *sys.argv[1:]], capture_output=True)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(used.ru_utime + used.ru_stime)"
    )
    took = [
        float(subprocess.check_output([sys.executable, "-c", code, *words], timeout=60))
        for _ in range(3)
    ]
    assert min(took) <= 0.15


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("iobench pro", "profile"),
        ("iobench convert --shard", "--shard-size"),
        ("iobench info x", "x"),
    ],
)
def test_shells_complete(shell: str, words: str, found: str) -> None:
    environment = {**os.environ, "_IOBENCH_COMPLETE": f"{shell}_source"}
    command = [sys.executable, "-c", "import sys; from iobench.cli import main; sys.exit(main([]))"]
    source = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert "_IOBENCH_COMPLETE" in source.stdout
    environment |= {
        "_IOBENCH_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": words.split()[-1] if shell == "fish" else f"{len(words.split()) - 1}",
    }
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert found in done.stdout
