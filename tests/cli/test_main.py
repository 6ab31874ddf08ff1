from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from iobench.cli import main
from iobench.errors import OptionError


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("iobench 0.")


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("profile", "report", "list", "synthesize", "cache"))


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert "maelstrom-ens10" in {row["name"] for row in listed["datasets"]}
    assert listed["formats"][0] == "source"


def test_a_dataset_that_needs_an_option_is_listed_with_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def needing(name: str) -> None:
        raise OptionError(f"{name}: say --option day=N")

    monkeypatch.setattr("iobench.registry.find_dataset", needing)
    assert main(["list", "--json"]) == 0
    [title, *_] = {row["title"] for row in json.loads(capsys.readouterr().out)["datasets"]}
    assert title == "say --option day=N"


def test_report_of_no_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert str(tmp_path) in captured.err


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{sys.executable} -c 'from iobench.cli import main; main([\"--help\"])' | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.timeout(100)
@pytest.mark.parametrize("megabytes", [60, 600, 1000])
def test_a_limit_of_memory_ends_in_a_line(tmp_path: Path, megabytes: int) -> None:
    """At the start, as libraries in C die of it, and later, where threads and arrays are made."""
    words = (
        f"ulimit -v {megabytes}000; exec {sys.executable} -m iobench profile maelstrom-yr --tiny "
        f"--batches 2 --store-dir {tmp_path}"
    )
    done = subprocess.run(
        ["bash", "-c", words], capture_output=True, text=True, timeout=90, check=False, cwd=tmp_path
    )
    assert "Traceback" not in done.stderr
    if megabytes < 1000 or done.returncode:  # that may do, by what is installed and loaded
        assert done.returncode == 1, done.stderr
        assert done.stderr.splitlines()[-1].startswith("iobench: ")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "not enough memory or threads: an allocation failed"),
        (RuntimeError("can't start new thread"), "threads: can't start new thread; take fewer"),
        (ImportError("a.so: failed to map segment from shared object"), "failed to map segment"),
    ],
)
def test_memory_that_is_refused_is_said_in_a_line(
    error: Exception,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse() -> None:
        raise error

    monkeypatch.setattr("iobench.cli.app.make_app", refuse)
    assert main(["list"]) == 1
    captured = capsys.readouterr().err
    assert said in captured
    assert len(captured.splitlines()) == 1
