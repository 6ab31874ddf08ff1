"""What holds for all commands: options, exit codes, completion, progress, and what is missing."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from iobench.cli import main
from iobench.cli.app import make_app
from iobench.cli.own_process import Interrupted
from iobench.cli.screen import TerminalScreen
from iobench.command_options import OPTIONS
from iobench.extras import install_command

COMMANDS = make_app().commands
NAMED = [
    name
    for name, each in COMMANDS.items()
    if any(param.param_type_name == "argument" for param in each.params)
]
"""Commands that are about something that is named."""
PROGRAM = [sys.executable, "-c", "import sys; from iobench.cli import main; sys.exit(main())"]


def in_a_process(*command, **more):
    options = {"capture_output": True, "text": True, "check": False, "timeout": 90} | more
    return subprocess.run(command, **options)


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_use_exits_2_and_an_interrupt_75(name, monkeypatch, capsys):
    words = ["x"] if name == "advise" else []  # it hands the rest on to a profile
    assert main([name, *words, "--no-such-option"]) == 2
    assert "--no-such-option" in capsys.readouterr().err

    def interrupted(*_, **__):
        stopped = Interrupted()
        stopped.add_note("the rest is in runs/x")
        raise stopped

    monkeypatch.setattr("iobench.cli.app.make_app", lambda: interrupted)
    assert main([name]) == 75
    assert capsys.readouterr().err == "iobench: interrupted; the rest is in runs/x\n"


@pytest.mark.parametrize("name", NAMED)
def test_what_is_not_there_exits_1_in_one_line(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    more = {
        "convert": ["--to", "numpy", "out"], "synthesize": ["out", "--scale", "1"],
        "check": ["--max-exposed", "5%"], "run": ["--"], "stage": ["--to", "near"],
    }  # fmt: skip
    words = ["nothing-here", *more.get(name, [])]
    assert main([name, *(words[::-1] if name == "run" else words)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("iobench: ")


def test_options_are_few_and_those_of_the_table():
    assert len(OPTIONS["profile"]) <= 30
    assert sum(map(len, OPTIONS.values())) + len(["--version"]) <= 140
    for name, command in COMMANDS.items():
        has = [each.opts[0] for each in command.params if each.param_type_name == "option"]
        assert has == [*(each.name.partition("/")[0] for each in OPTIONS[name]), "--quiet"]


def test_quiet_leaves_a_script_alone(tmp_path):
    words = ["run", "--quiet", "--out", "run", "--", sys.executable, "-c", "print(1)"]
    done = in_a_process(*PROGRAM, *words, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    assert (tmp_path / "run" / "run.json").exists()


def test_a_reader_that_has_seen_enough_is_no_error():
    command = f"{sys.executable} -c 'from iobench.cli import main; main([\"--help\"])' | head -1"
    done = in_a_process("sh", "-c", command)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.timeout(100)
@pytest.mark.parametrize("megabytes", [60, 600, pytest.param(1000, marks=pytest.mark.long)])
def test_a_limit_of_memory_ends_in_a_line(tmp_path, megabytes):
    """At the start, as libraries in C die of it, and later, where threads and arrays are made."""
    words = (
        f"ulimit -v {megabytes}000; exec {sys.executable} -m iobench profile maelstrom-yr --tiny "
        f"--batches 2 --store-dir {tmp_path}"
    )
    done = in_a_process("bash", "-c", words, cwd=tmp_path)
    assert "Traceback" not in done.stderr
    if megabytes < 1000 or done.returncode:  # that may do, by what is installed and loaded
        assert done.returncode == 1, done.stderr
        assert done.stderr.splitlines()[-1].startswith("iobench: ")


@pytest.mark.parametrize(
    ("shell", "words", "found"),
    [
        ("bash", "iobench pro", "profile"),
        ("zsh", "iobench convert --shard", "--shard-size"),
        ("fish", "iobench info x", "x"),
    ],
)
def test_shells_complete(shell, words, found):
    environment = {**os.environ, "_IOBENCH_COMPLETE": f"{shell}_source"}
    command = [sys.executable, "-c", "import sys; from iobench.cli import main; sys.exit(main([]))"]
    assert "_IOBENCH_COMPLETE" in in_a_process(*command, env=environment, check=True).stdout
    number = words.split()[-1] if shell == "fish" else f"{len(words.split()) - 1}"
    environment |= {
        "_IOBENCH_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": number,
    }  # fmt: skip
    assert found in in_a_process(*command, env=environment, check=True).stdout


# -- what is not installed ----------------------------------------------------------------

DATA = Path(__file__).parents[1] / "data"
TINY = ("maelstrom-ens10", "--tiny", "--store-dir", "stores")
HIDE = """\
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""
MISSING = [
    ("eccodes", TINY, "grib"),
    ("netCDF4", TINY, "netcdf"),
    ("h5py", TINY, "netcdf"),
    ("torch", (*TINY, "--framework", "torch"), "torch"),
    ("eccodes", ("test4.grib", "--sample-dim", "time"), "grib"),
    ("h5netcdf", ("20200301T03Z.nc", "--sample-dim", "leadtime"), "netcdf"),
    ("xarray", ("test4.nc", "--sample-dim", "level"), "netcdf"),
]


@pytest.mark.parametrize(
    ("hidden", "arguments", "extra"),
    [pytest.param(*each, marks=[pytest.mark.long] * (n > 0)) for n, each in enumerate(MISSING)],
)
def test_one_line_says_how_to_install_it_and_nothing_was_made(
    iobench, tmp_path, hidden, arguments, extra
):
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide/sitecustomize.py").write_text(HIDE.format(hidden={hidden}))
    for name in ("era5/test4.grib", "era5/test4.nc",
                 "maelstrom-yr/air_temperature/5GB/20200301T03Z.nc"):  # fmt: skip
        shutil.copy(DATA / name, tmp_path)
    done = iobench("profile", *arguments, env=os.environ | {"PYTHONPATH": str(tmp_path / "hide")})
    assert done.returncode == 69
    assert done.stderr.splitlines()[-1].endswith(install_command(extra))
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "iobench-runs").exists()


GRIB = ["numpy>=1", "eccodes>=2.42; extra == 'grib'"]
TO_INSTALL = "pip install 'eccodes>=2.42'"


@pytest.mark.parametrize(
    ("installed", "state", "install"),
    [
        ({"eccodes": "2.42.0+x"}, "eccodes 2.42.0+x", ""),
        ({"eccodes": "2.50"}, "eccodes 2.50", ""),
        ({"eccodes": "2.41.9.post1"}, "eccodes 2.41.9.post1, expected >=2.42", TO_INSTALL),
        ({}, "no eccodes", TO_INSTALL),
    ],
)
def test_doctor_finds_what_is_optional_and_what_installs_the_rest(
    installed, state, install, monkeypatch, capsys, tmp_path
):
    def version(name):
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    (tmp_path / "libdarshan.so").write_bytes(b"")
    monkeypatch.setenv("DARSHAN_LIB", str(tmp_path))
    requires = [*GRIB, "b; extra == 'two'", "eccodes; extra == 'all'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: requires)
    monkeypatch.setattr(importlib.metadata, "version", version)
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["installed"]
    assert found[0] == {"name": "grib", "state": state, "install": install}
    by_name = {each["name"]: each for each in found}
    assert [*by_name][:2] == ["grib", "two"]
    assert "all" not in by_name
    plugin = by_name["climetlab-maelstrom-ens10"]
    assert plugin["install"] == "pip install --no-deps climetlab-maelstrom-ens10==0.1.1"
    assert by_name["Darshan's runtime"]["state"] == str(tmp_path / "libdarshan.so")


# -- progress -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "in_bytes", "shown"),
    [
        ({}, True, ["10.0/10.0 MB", "MB/s"]),
        ({}, False, ["10000000/10000000"]),
        ({"TERM": "dumb"}, False, []),
        ({"JPY_PARENT_PID": "1"}, False, []),  # no cursor moves
    ],
)
def test_progress_is_drawn_on_a_terminal_about_a_hundred_times(
    monkeypatch, variables, in_bytes, shown
):
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    for name, value in {"TERM": "xterm", "COLUMNS": "160", **variables}.items():
        monkeypatch.setenv(name, value)
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    screen = TerminalScreen()
    with screen.progress("converting", in_bytes=in_bytes) as move:
        for done in range(0, 10_000_001, 1_000):
            move(done, 10_000_000)
    screen.note("kept in run")
    text = terminal.getvalue()
    assert all(each in text for each in shown)
    assert text.count("converting") <= 110
    assert ("MB" in text) == in_bytes
    assert shown or text == "kept in run\n"
