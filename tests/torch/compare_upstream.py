"""PyTorch's own tests of its DataLoader, run with torch's class and with ours, test by test.

``python tests/torch/compare_upstream.py test_dataloader.py [-k WORD]``: the file is PyTorch's
``test/test_dataloader.py``, of the version installed, from its public repository; it is no part of
this one. Each class of it runs in a process of its own, once with torch's loader, once with ours
recording. Exit code 1 if a test ends differently.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

# Spawned processes run this too, up to the last condition.
RUNNER = """
import json, os, sys, unittest
sys.path.insert(0, {folder!r})
if {ours}:
    import iobench, iobench.recording, iobench.torch, torch
    torch.utils.data.DataLoader = iobench.torch.DataLoader
    # Processes that a test spawns have a run each; of those, workers join their loader's.
    os.environ["IOBENCH_RUN"] = {run!r} + f"-{{os.getpid()}}"
    os.environ["IOBENCH_RUN_DETAIL"] = "sample"
    if __name__ == "__main__":
        assert iobench.recording.session.current_recording() is not None
import test_dataloader as tests
if {ours}:
    assert tests.DataLoader is iobench.torch.DataLoader


class Result(unittest.TextTestResult):
    ends = {{}}

    def note(self, test, end, told=""):
        self.ends[test.id()] = (end, str(told)[-1500:])

    def addSuccess(self, test):
        super().addSuccess(test); self.note(test, "passed")

    def addFailure(self, test, error):
        super().addFailure(test, error); self.note(test, "failed", self.failures[-1][1])

    def addError(self, test, error):
        super().addError(test, error); self.note(test, "error", self.errors[-1][1])

    def addSkip(self, test, reason):
        super().addSkip(test, reason); self.note(test, "skipped", reason)

    def addExpectedFailure(self, test, error):
        super().addExpectedFailure(test, error); self.note(test, "expected failure")

    def stopTest(self, test):
        super().stopTest(test)
        with open({result!r}, "w") as file:
            json.dump(self.ends, file)


if __name__ == "__main__":
    loader = unittest.TestLoader()
    loader.testNamePatterns = {patterns!r}
    chosen = loader.loadTestsFromTestCase(getattr(tests, {name!r}))
    unittest.TextTestRunner(resultclass=Result, verbosity=2).run(chosen)
"""


def run(folder: Path, name: str, words: list[str], *, ours: bool, limit_s: int) -> dict[str, list]:
    """Return how each test of a class ended: (end, what it told)."""
    with tempfile.TemporaryDirectory(prefix="iobench-upstream-") as scratch:
        result = Path(scratch) / "result.json"
        script = Path(scratch) / "runner.py"
        text = RUNNER.format(
            folder=str(folder), ours=ours, run=str(Path(scratch) / "run"), result=str(result),
            name=name, patterns=[f"*{word}*" for word in words] or None,
        )  # fmt: skip
        script.write_text(text)
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            subprocess.run(
                [sys.executable, str(script)], cwd=folder, env=environment, timeout=limit_s,
                check=False, stdout=subprocess.DEVNULL, stderr=(Path(folder) / "log").open("a"),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            print(f"{name}: stopped after {limit_s} s", file=sys.stderr)
        return json.loads(result.read_text()) if result.exists() else {}


def classes(path: Path) -> list[str]:
    """Return the names of the test classes of the file."""
    code = (
        "import sys, unittest; sys.path.insert(0, sys.argv[1]); import test_dataloader as t;"
        "print(*(n for n, c in vars(t).items() if isinstance(c, type) and "
        "issubclass(c, unittest.TestCase) and c.__module__ == 'test_dataloader'))"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(path.parent)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return told.split()


def main() -> int:
    """Compare, and print the counts and every difference."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path, help="PyTorch's test/test_dataloader.py")
    parser.add_argument("-k", dest="words", action="append", default=[], help="only tests so named")
    parser.add_argument("--classes", nargs="*", help="only these classes")
    parser.add_argument("--limit", type=int, default=900, help="seconds a class may take")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="iobench-upstream-") as scratch:
        copy = Path(scratch) / "test_dataloader.py"
        copy.write_text(options.path.read_text("utf-8"), "utf-8")
        ends: dict[bool, dict[str, list]] = {False: {}, True: {}}
        for name in options.classes or classes(copy):
            for ours in (False, True):
                found = run(copy.parent, name, options.words, ours=ours, limit_s=options.limit)
                ends[ours].update(found)
                print(
                    name, "ours" if ours else "torch", dict(Counter(e[0] for e in found.values()))
                )
    different = 0
    for test in sorted(ends[False].keys() | ends[True].keys()):
        stock = ends[False].get(test, ["not run", ""])
        ours = ends[True].get(test, ["not run", ""])
        if stock[0] != ours[0]:
            different += 1
            print(f"DIFFERENT {test}: torch {stock[0]}, ours {ours[0]}\n{ours[1] or stock[1]}")
    for ours, label in ((False, "torch"), (True, "ours")):
        print(label, json.dumps(Counter(end[0] for end in ends[ours].values())))
    print(f"{different} different")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
