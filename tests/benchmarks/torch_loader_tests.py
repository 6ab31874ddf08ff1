"""PyTorch's own tests of its DataLoader, run with torch's class and with ours, test by test.

``python tests/benchmarks/torch_loader_tests.py test_dataloader.py [CLASS ...]``: the file is
PyTorch's ``test/test_dataloader.py``, of the version installed, from its public repository; it is
no part of this one. Each class runs in a process of its own, once with torch's loader, once with
ours recording. Exit code 1 if a test ends differently.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT_S = 900
# Spawned processes run this too, up to the last condition.
RUNNER = """
import json, os, sys, unittest
folder, name, ours, result = sys.argv[1:]
sys.path.insert(0, folder)
if ours == "ours":
    import iobench, iobench.torch, torch
    torch.utils.data.DataLoader = iobench.torch.DataLoader
    # Processes that a test spawns have a run each; of those, workers join their loader's.
    os.environ["IOBENCH_RUN"] = f"{result}-run-{os.getpid()}"
    os.environ["IOBENCH_RUN_DETAIL"] = "sample"
import test_dataloader as tests

class Result(unittest.TextTestResult):
    started = []
    def startTest(self, test):
        super().startTest(test)
        self.started.append(test.id())

if __name__ == "__main__":
    chosen = unittest.TestLoader().loadTestsFromTestCase(getattr(tests, name))
    done = unittest.TextTestRunner(resultclass=Result, verbosity=2).run(chosen)
    ends = dict.fromkeys(done.started, "passed")
    for end in ("failures", "errors", "skipped", "expectedFailures"):
        ends.update({test.id(): end for test, _ in getattr(done, end)})
    json.dump(ends, open(result, "w"))
"""


def ends_of(folder: Path, name: str, loader: str) -> dict[str, str]:
    """Return how each test of a class ended."""
    result = folder / f"{name}-{loader}.json"
    (folder / "runner.py").write_text(RUNNER)
    words = [sys.executable, str(folder / "runner.py"), str(folder), name, loader, str(result)]
    try:
        subprocess.run(
            words, cwd=folder, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            timeout=LIMIT_S, check=False, stderr=(folder / "log").open("a"),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        print(f"{name}: stopped after {LIMIT_S} s", file=sys.stderr)
    return json.loads(result.read_text()) if result.exists() else {"": "did not end"}


def main() -> int:
    """Print each test that ends differently."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", type=Path, help="PyTorch's test_dataloader.py")
    parser.add_argument("classes", nargs="*", metavar="CLASS")
    arguments = parser.parse_args()
    text, classes, n_different = arguments.path.read_text("utf-8"), arguments.classes, 0
    with tempfile.TemporaryDirectory(prefix="iobench-upstream-") as scratch:
        folder = Path(scratch)
        (folder / "test_dataloader.py").write_text(text, "utf-8")
        for name in classes or re.findall(r"^class (Test\w+)\(", text, re.MULTILINE):
            stock, ours = (ends_of(folder, name, loader) for loader in ("torch", "ours"))
            print(f"{name}: {len(stock)} tests")
            for test in sorted({*stock, *ours}):
                if stock.get(test) != ours.get(test):
                    n_different += 1
                    print(f"DIFFERENT {test}: torch {stock.get(test)}, ours {ours.get(test)}")
    return 1 if n_different else 0


if __name__ == "__main__":
    sys.exit(main())
