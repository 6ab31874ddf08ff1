"""The fixture ``iobench_counts``, in pytest sessions of their own inside this process."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

# What a session inside this process imports first is forgotten after it, and imported again.
import iobench.subjects.check.gated_runs
import iobench.subjects.check.section  # noqa: F401
from iobench.testing import pytest_plugin

pytest_plugins = ["pytester"]

# A loader of nobody's framework: it says what it does as iobench's own do.
TEST = """
from iobench.recording.session import current_recording
from iobench.recording.stages import stage
from iobench.recording.delivery_log import DeliveryLog

READS = {reads}

def batches(n_batches):
    recording = current_recording()
    log = DeliveryLog(recording, recording.add_loader("own", "Loader", "x", batch_size=2))
    for _ in range(n_batches):
        number = recording.next_batch()
        log.ask(number)
        for _ in range(READS):
            with stage("read", nbytes=50):
                pass
        log.deliver(number, nbytes=100, maker="consumer")
        yield number
    log.ask()
    log.end()

def test_loader(iobench_counts):
    with iobench_counts("counts/loader.json"):
        assert len(list(batches({n_batches}))) == {n_batches}
"""


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("IOBENCH_RUN", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the others take long
    pytester.makeini("[pytest]\nfilterwarnings = error")
    return pytester


def _run(
    session: pytest.Pytester, *options: str, reads: int = 2, n_batches: int = 5, test: str = TEST
) -> pytest.RunResult:
    session.makepyfile(test.format(reads=reads, n_batches=n_batches))
    return session.runpytest_inprocess("-p", "iobench.testing.pytest_plugin", *options)


def test_the_file_is_written_and_compared(session: pytest.Pytester) -> None:
    missing = _run(session)
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["*loader.json: no such file*pytest --iobench-update writes*"])
    _run(session, "--iobench-update").assert_outcomes(passed=1)
    kept = json.loads((session.path / "counts" / "loader.json").read_text())["runs"]["run"]
    assert kept["exact"]["reads"] == 10
    assert kept["exact"]["read_nbytes"] == 500
    assert kept["at_most"]["peak_nbytes"] is None
    _run(session).assert_outcomes(passed=1)


def test_differences_fail_the_test_by_name(session: pytest.Pytester) -> None:
    _run(session, "--iobench-update").assert_outcomes(passed=1)
    found = _run(session, reads=3)
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(
        [
            "iobench: not the counts in *loader.json:",
            "  reads: 15, expected 10",
            "  bytes read: 750, expected 500",
            "  if that is meant: pytest --iobench-update",
        ]
    )
    assert "Traceback" not in found.stdout.str()
    found = _run(session, n_batches=6)
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["  samples: 12, expected 10"])
    assert "per sample" not in found.stdout.str()  # each is made as it was


def test_pytest_finds_the_plugin_by_itself() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"iobench": pytest_plugin.__name__}


def test_a_test_that_fails_itself_says_so(session: pytest.Pytester) -> None:
    _run(session, "--iobench-update").assert_outcomes(passed=1)
    broken = TEST.replace("== {n_batches}", "== 99")
    found = _run(session, reads=3, test=broken)
    found.assert_outcomes(failed=1)
    assert "not the counts" not in found.stdout.str()
    assert "== 99" in found.stdout.str()


def test_nothing_delivered_is_no_pass(session: pytest.Pytester) -> None:
    found = _run(session, "--iobench-update", n_batches=0)
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["*no loader delivered a batch*"])
    found.stdout.no_fnmatch_line("*writes the file*")


def test_the_plugin_imports_next_to_nothing() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules); import iobench.testing.pytest_plugin\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {name.split(".")[0] for name in answer} - set(sys.stdlib_module_names) == {"iobench"}
    assert "numpy" not in answer
    assert len([name for name in answer if name.startswith("iobench")]) < 8
