"""Plants known faults in a copy of the tree, one at a time, and says whether the tests find them.

    python tests/support/faults.py [--only ID ...] [--jobs N]

Each row of ``faults.toml`` is a fault: what it is, a literal replacement in one file, and the test
files that find it. Outcomes:

found       a named test fails with the fault, and passes without it
SURVIVED    all named tests pass with the fault
no answer   the named tests did not end in time, or cannot run with the fault
misplaced   the old text is not in the file exactly once, or the new text is no Python: whoever
            moved the code moves the row
no test     a named test file is missing, fails without the fault, or has no test that runs

Exit code 0 if all are found, else 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "support" / "faults.toml"
SOURCES = ("", "plugins", "converters")
"""Folders of the tree from which Python imports its packages."""
LIMIT_S = 300
"""For the tests of one fault; several times that for those of all faults without any."""
FOUND, SURVIVED, NO_ANSWER = "found", "SURVIVED", "no answer"
MISPLACED, NO_TEST = "misplaced", "no test"
PLUGIN = '''
"""Writes which tests failed, how many passed by file, and which of our modules are of elsewhere."""
import json, os, sys
from pathlib import Path

failed, passed = [], {}

def pytest_runtest_logreport(report):
    if report.failed:
        failed.append(report.nodeid)
    elif report.when == "call" and report.passed:
        name = report.nodeid.partition("::")[0]
        passed[name] = passed.get(name, 0) + 1

def pytest_collectreport(report):
    if report.failed:
        failed.append(report.nodeid)

def pytest_sessionfinish(session):
    root = os.environ["FAULTS_ROOT"]
    ours = [str(m.__file__) for name, m in list(sys.modules.items())
            if name.startswith("iobench") and getattr(m, "__file__", None)]
    elsewhere = [path for path in ours if not Path(path).resolve().is_relative_to(root)]
    told = {"failed": failed, "passed": passed, "elsewhere": elsewhere}
    Path(os.environ["FAULTS_REPORT"]).write_text(json.dumps(told))
'''


@dataclass(frozen=True)
class Fault:
    """One row of the table."""

    id: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def read_table(path: Path = TABLE) -> list[Fault]:
    """Return the rows of the table."""
    rows = tomllib.loads(path.read_text())["fault"]
    faults = [Fault(**{**row, "tests": tuple(row["tests"])}) for row in rows]
    name, count = Counter(fault.id for fault in faults).most_common(1)[0]
    if count > 1:
        raise SystemExit(f"{path}: two rows are called {name}")
    return faults


def planted(fault: Fault, root: Path = ROOT) -> str:
    """Return the text of the file with the fault; raise ValueError where it cannot be planted."""
    path = root / fault.file
    if not path.is_file():
        raise ValueError(f"there is no {fault.file}")
    text = path.read_text()
    if (count := text.count(fault.old)) != 1:
        raise ValueError(f"the old text is {count} times in {fault.file}, expected once")
    faulty = text.replace(fault.old, fault.new)
    if faulty == text:
        raise ValueError("old and new text are the same")
    try:
        compile(faulty, fault.file, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ValueError(f"the new text is no Python: {error}") from error
    return faulty


def missing_tests(fault: Fault, root: Path = ROOT) -> list[str]:
    """Return the named test files that are not there."""
    return [name for name in fault.tests if not (root / name.partition("::")[0]).is_file()]


class Copy:
    """A copy of the tree's files, tracked and not ignored, as they are now."""

    def __init__(self, root: Path, files: Sequence[str]) -> None:
        self.root = root
        for name in files:
            target = root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target, follow_symlinks=False)
        self._plugin = root.parent / f"{root.name}-plugin"
        self._plugin.mkdir()
        (self._plugin / "faults_report.py").write_text(PLUGIN)
        self._changed_s = int(time.time())

    def write(self, name: str, text: str) -> None:
        """Write a file whose compiled form of before is known to be outdated."""
        path = self.root / name
        path.write_text(text)
        self._changed_s += 2  # compiled files are of a size and of whole seconds
        os.utime(path, (self._changed_s, self._changed_s))

    def run(self, tests: Sequence[str], *options: str, limit_s: float) -> dict[str, Any]:
        """Return what the plugin saw; nothing where time ran out or pytest did not begin."""
        report = self._plugin / "report.json"
        report.unlink(missing_ok=True)
        paths = [*(str(self.root / folder) for folder in SOURCES), str(self._plugin)]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "IOBENCH_TESTS_PROFILE": "ci",  # properties try the same examples each time
            "FAULTS_REPORT": str(report),
            "FAULTS_ROOT": str(self.root.resolve()),
            "TMPDIR": str(self._plugin),
        }
        environment.pop("PYTEST_ADDOPTS", None)
        command = [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "faults_report",
            "-m", "not long", *options, *tests,
        ]  # fmt: skip
        process = subprocess.Popen(
            command, cwd=self.root, env=environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            return {}
        seen = json.loads(report.read_text()) if report.exists() else {}
        if seen.get("elsewhere"):
            raise SystemExit(f"{seen['elsewhere'][0]} was imported, expected {self.root}")
        return seen

    def without_faults(self, names: Sequence[str]) -> dict[str, str]:
        """Return what is wrong with each of some test files when there is no fault."""
        seen = self.run(names, limit_s=LIMIT_S * max(1, len(names) / 4))
        if not seen:
            return dict.fromkeys(names, "pytest did not end")
        wrong = {}
        for name in names:
            failed = [each for each in seen["failed"] if each.startswith(name)]
            if failed:
                wrong[name] = f"{failed[0]} fails without the fault"
            elif not seen["passed"].get(name.partition("::")[0]):
                wrong[name] = f"no test of {name} ran"
        return wrong

    def outcome(self, fault: Fault) -> tuple[str, str]:
        """Return outcome and detail of a fault whose tests pass without it."""
        before = (self.root / fault.file).read_text()
        self.write(fault.file, planted(fault, self.root))
        try:
            seen = self.run(fault.tests, "-x", limit_s=LIMIT_S)
        finally:
            self.write(fault.file, before)
        failed = seen.get("failed")
        if not seen or (failed and "::" not in failed[0]):
            return NO_ANSWER, failed[0] if failed else f"not within {LIMIT_S} s"
        return (FOUND, failed[0]) if failed else (SURVIVED, ", ".join(fault.tests))


def tree_files() -> list[str]:
    """Return the tree's files: tracked, and new ones that are not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted({name for name in listed.split("\0") if name and (ROOT / name).is_file()})


def run_faults(faults: Sequence[Fault], jobs: int) -> Counter[str]:
    """Plant each fault in turn and print what became of it; return how many of each outcome."""
    outcomes: Counter[str] = Counter()

    def note(fault: Fault, outcome: str, detail: str, seconds: float = 0.0) -> None:
        outcomes[outcome] += 1
        told = f"{fault.id:18} {outcome:9} {seconds:5.1f} s  {fault.what}"
        print(f"{told}\n{'':18} {detail}", flush=True)

    left = []
    for fault in faults:
        try:
            planted(fault)
        except ValueError as error:
            note(fault, MISPLACED, str(error))
            continue
        if missing := missing_tests(fault):
            note(fault, NO_TEST, f"there is no {missing[0]}")
        else:
            left.append(fault)
    with tempfile.TemporaryDirectory(prefix="iobench-faults-") as folder:
        files = tree_files()
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(max(1, min(jobs, len(left)))):
            copies.put(Copy(Path(folder) / f"tree-{number}", files))
        wrong: dict[str, str] = {}

        def without(names: Sequence[str]) -> None:
            copy = copies.get()
            wrong.update(copy.without_faults(names))
            copies.put(copy)

        def one(fault: Fault) -> None:
            if bad := [wrong[name] for name in fault.tests if name in wrong]:
                note(fault, NO_TEST, bad[0])
                return
            copy, start = copies.get(), time.monotonic()
            outcome, detail = copy.outcome(fault)
            copies.put(copy)
            note(fault, outcome, detail, time.monotonic() - start)

        names = sorted({name for fault in left for name in fault.tests})
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(without, [part for n in range(jobs) if (part := names[n::jobs])]))
            list(pool.map(one, left))
    return outcomes


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="ID", help="plant these rows only")
    parser.add_argument("--jobs", type=int, default=1, help="faults tried at a time (default: 1)")
    chosen = parser.parse_args()
    faults = read_table()
    if unknown := sorted({*(chosen.only or ())} - {fault.id for fault in faults}):
        parser.error(f"--only {unknown[0]}: the table has no such row")
    faults = [fault for fault in faults if not chosen.only or fault.id in chosen.only]
    outcomes = run_faults(faults, max(1, chosen.jobs))
    print(", ".join(f"{number} {outcome}" for outcome, number in outcomes.items()))
    return int(outcomes[FOUND] < len(faults))


if __name__ == "__main__":
    sys.exit(main())
