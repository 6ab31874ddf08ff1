"""What ran and what did not: no test runs twice in ``.ci/run``, and none silently never.

``IOBENCH_TESTS_PASSED=FILE`` leaves out the tests that the file lists and adds those that pass;
``IOBENCH_TESTS_SKIPS=FILE`` fails a run in which a test skips for a reason that the file does not
list. No options: pytest runs inside some tests, and would not know them.
"""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


PASSED, SKIPS = "IOBENCH_TESTS_PASSED", "IOBENCH_TESTS_SKIPS"


def leave_out_passed(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what passed before, in every worker alike."""
    listed = os.environ.get(PASSED)
    if listed is None or not Path(listed).exists():
        return
    passed = set(Path(listed).read_text().splitlines())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
    items[:] = [item for item in items if item.nodeid not in passed]


class WhatRan:
    """Sees all reports, in the process that started the run."""

    def __init__(self) -> None:
        self._passed, skips = os.environ.get(PASSED), os.environ.get(SKIPS)
        lines = [] if skips is None else Path(skips).read_text().splitlines()
        self._allowed = [line for line in lines if line and not line.startswith("#")]
        self._skips = skips
        self._ids: list[str] = []
        self._not_allowed: dict[str, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._ids.append(report.nodeid)
        self._see(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._see(report)

    def _see(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if self._skips is None or not report.skipped or hasattr(report, "wasxfail"):
            return
        told = report.longrepr
        reason = told[2] if isinstance(told, tuple) else str(told)
        reason = reason.removeprefix("Skipped: ")
        if not any(fnmatch.fnmatchcase(reason, allowed) for allowed in self._allowed):
            self._not_allowed[reason] = self._not_allowed.get(reason, 0) + 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._passed is not None:
            with Path(self._passed).open("a") as file:
                file.writelines(f"{name}\n" for name in self._ids)
        if self._not_allowed and session.exitstatus == 0:
            session.exitstatus = 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for reason, count in sorted(self._not_allowed.items()):
            terminalreporter.write_line(f"NOT IN {self._skips}: [{count}] {reason}", red=True)
