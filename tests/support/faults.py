"""Plants known faults in a copy of the tree, one at a time, and says whether the tests find them.

    python tests/support/faults.py [--only ID ...] [--jobs N] [--json FILE] [--before FILE]

Each row of ``faults.toml`` is a fault: what it is, a literal replacement in one file, and the test
files that find it. Outcomes:

found       a named test fails with the fault, and passes without it
SURVIVED    all named tests pass with the fault
no answer   the named tests did not end in time with the fault
broken      the named tests cannot run with the fault: the replacement is no working program
misplaced   the old text is not in the file exactly once, or the new text is no Python: whoever
            moved the code moves the row
no test     a named test file is missing, fails without the fault, or has no test that runs

Exit code 0 if all are found, else 1. With ``--before FILE``, what ``--json`` wrote of an earlier
state, each fault that was found there has to be found.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "support" / "faults.toml"
SOURCES = ("", "plugins", "converters")
"""Folders of the tree from which Python imports its packages."""
PACKAGES = ("iobench", "iobench_maelstrom", "iobench_mlperf_hpc", "iobench_converters")
LIMIT_S = 300
"""For the tests of one fault; several times that for those of all faults without any."""
FOUND, SURVIVED, NO_ANSWER = "found", "SURVIVED", "no answer"
BROKEN, MISPLACED, NO_TEST = "broken", "misplaced", "no test"
PLUGIN = '''
"""Writes which tests failed, how many passed by file, and which modules came from elsewhere."""
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
    packages = tuple(os.environ["FAULTS_PACKAGES"].split())
    elsewhere = sorted(
        str(module.__file__)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in packages
        and getattr(module, "__file__", None)
        and not Path(module.__file__).resolve().is_relative_to(root)
    )
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


@dataclass(frozen=True)
class Result:
    """What became of one fault."""

    id: str
    outcome: str
    detail: str
    seconds: float


class WrongCodeError(Exception):
    """Tests imported packages of another tree: whatever they say, it is not of the copy."""


def read_table(path: Path = TABLE) -> list[Fault]:
    """Return the rows of the table."""
    rows = tomllib.loads(path.read_text())["fault"]
    faults = [Fault(**{**row, "tests": tuple(row["tests"])}) for row in rows]
    ids = [fault.id for fault in faults]
    twice = sorted({each for each in ids if ids.count(each) > 1})
    if twice:
        raise SystemExit(f"{path}: two rows are called {twice[0]}")
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

    def run(
        self, tests: Sequence[str], *, first_only: bool, limit_s: float = LIMIT_S
    ) -> tuple[int, dict[str, Any], str]:
        """Return exit code, what the plugin saw, and the last line; 124 where time ran out."""
        report = self._plugin / "report.json"
        report.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [*(str(self.root / folder) for folder in SOURCES), str(self._plugin)]
            ),
            "IOBENCH_TESTS_PROFILE": "ci",  # properties try the same examples each time
            "FAULTS_REPORT": str(report),
            "FAULTS_ROOT": str(self.root.resolve()),
            "FAULTS_PACKAGES": " ".join(PACKAGES),
            "TMPDIR": str(self._plugin),
        }
        environment.pop("PYTEST_ADDOPTS", None)
        command = [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "faults_report",
            "-m", "not long", *(["-x"] if first_only else []), *tests,
        ]  # fmt: skip
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit_s)
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            output, _ = process.communicate()
            code = 124
        seen = json.loads(report.read_text()) if report.exists() else {}
        if seen.get("elsewhere"):
            raise WrongCodeError(f"{seen['elsewhere'][0]} was imported, expected {self.root}")
        lines = [line for line in output.splitlines() if line.strip()]
        return code, seen, lines[-1] if lines else "no output"


def check_imports(copy: Copy) -> None:
    """Raise WrongCodeError unless a process as tests start it imports the packages of the copy."""
    script = f"import {', '.join(PACKAGES)}\n" + "".join(
        f"print({package}.__file__)\n" for package in PACKAGES
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(copy.root / folder) for folder in SOURCES),
    }
    found = subprocess.run(
        [sys.executable, "-c", script],
        cwd=copy.root.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.split()
    for path in found:
        if not Path(path).resolve().is_relative_to(copy.root.resolve()):
            raise WrongCodeError(f"{path} was imported, expected {copy.root}")


def tests_without_faults(copy: Copy, names: Sequence[str]) -> dict[str, str]:
    """Return what is wrong with each of some test files when there is no fault."""
    code, seen, last = copy.run(names, first_only=False, limit_s=LIMIT_S * max(1, len(names) / 4))
    if not seen:
        return dict.fromkeys(names, f"pytest ended with {code}: {last}")
    wrong = {}
    for name in names:
        failed = [each for each in seen["failed"] if each.startswith(name)]
        if failed:
            wrong[name] = f"{failed[0]} fails without the fault"
        elif not seen["passed"].get(name.partition("::")[0]):
            wrong[name] = f"no test of {name} ran"
    return wrong


def try_fault(copy: Copy, fault: Fault) -> tuple[str, str]:
    """Return outcome and detail of a fault whose tests pass without it."""
    before = (copy.root / fault.file).read_text()
    copy.write(fault.file, planted(fault, copy.root))
    try:
        code, seen, last = copy.run(fault.tests, first_only=True)
    finally:
        copy.write(fault.file, before)
    failed = seen.get("failed", [])
    if code == 124:
        return NO_ANSWER, f"not within {LIMIT_S} s"
    if code == 0:
        return SURVIVED, ", ".join(fault.tests)
    if code == 1 and failed and "::" in failed[0]:
        return FOUND, failed[0]
    return BROKEN, f"pytest ended with {code}: {last}"


def tree_files() -> list[str]:
    """Return the tree's files: tracked, and new ones that are not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return sorted({name for name in listed.split("\0") if name and (ROOT / name).is_file()})


def run_faults(faults: Sequence[Fault], jobs: int) -> list[Result]:
    """Plant each fault in turn and print what became of it."""
    results: dict[str, Result] = {}
    lock = threading.Lock()

    def note(fault: Fault, outcome: str, detail: str, seconds: float = 0.0) -> None:
        with lock:
            results[fault.id] = Result(fault.id, outcome, detail, round(seconds, 1))
            print(f"{fault.id:18} {outcome:9} {seconds:5.1f} s  {fault.what}", flush=True)
            print(f"{'':18} {detail}", flush=True)

    left = []
    for fault in faults:
        try:
            planted(fault)
        except ValueError as error:
            note(fault, MISPLACED, str(error))
            continue
        if missing := missing_tests(fault):
            note(fault, NO_TEST, f"there is no {missing[0]}")
            continue
        left.append(fault)
    with tempfile.TemporaryDirectory(prefix="iobench-faults-") as folder:
        files = tree_files()
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(max(1, min(jobs, len(left)))):
            copies.put(Copy(Path(folder) / f"tree-{number}", files))
        wrong: dict[str, str] = {}

        def without(names: Sequence[str]) -> None:
            copy = copies.get()
            try:
                check_imports(copy)
                wrong.update(tests_without_faults(copy, names))
            finally:
                copies.put(copy)

        def one(fault: Fault) -> None:
            bad = [wrong[name] for name in fault.tests if name in wrong]
            if bad:
                note(fault, NO_TEST, bad[0])
                return
            copy = copies.get()
            start = time.monotonic()
            try:
                outcome, detail = try_fault(copy, fault)
            finally:
                copies.put(copy)
            note(fault, outcome, detail, time.monotonic() - start)

        names = sorted({name for fault in left for name in fault.tests})
        start = time.monotonic()
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(without, [part for n in range(jobs) if (part := names[n::jobs])]))
            print(f"without faults: {time.monotonic() - start:.1f} s", flush=True)
            list(pool.map(one, left))
    return [results[fault.id] for fault in faults]


def missed_since(before: Mapping[str, Any], results: Sequence[Result]) -> list[str]:
    """Return what was found in an earlier run and is not found now."""
    now = {result.id: result.outcome for result in results}
    return [
        f"{name}: was found, now {now.get(name, 'not in the table')}"
        for name, result in before.items()
        if result["outcome"] == FOUND and now.get(name) != FOUND
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="ID", help="plant these rows only")
    parser.add_argument("--jobs", type=int, default=1, help="faults tried at a time (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes there")
    parser.add_argument("--before", type=Path, metavar="FILE", help="outcomes to compare with")
    chosen = parser.parse_args(arguments)
    if chosen.jobs < 1:
        parser.error(f"--jobs {chosen.jobs}: expected 1 or more")
    before = {} if chosen.before is None else json.loads(chosen.before.read_text())
    faults = read_table()
    if chosen.only:
        unknown = sorted(set(chosen.only) - {fault.id for fault in faults})
        if unknown:
            parser.error(f"--only {unknown[0]}: the table has no such row")
        faults = [fault for fault in faults if fault.id in chosen.only]
        before = {name: result for name, result in before.items() if name in chosen.only}
    try:
        results = run_faults(faults, chosen.jobs)
    except WrongCodeError as error:
        print(f"the faults are not in the code that is tested: {error}", file=sys.stderr)
        return 1
    counts = dict.fromkeys((FOUND, SURVIVED, NO_ANSWER, BROKEN, MISPLACED, NO_TEST), 0)
    for result in results:
        counts[result.outcome] += 1
    print(", ".join(f"{number} {outcome}" for outcome, number in counts.items() if number))
    if chosen.json is not None:
        told = {result.id: asdict(result) for result in results}
        chosen.json.write_text(json.dumps(told, indent=1) + "\n")
    missed = missed_since(before, results)
    for line in missed:
        print(line)
    return int(counts[FOUND] < len(faults) or bool(missed))


if __name__ == "__main__":
    sys.exit(main())
