"""What skipped in a run of the tests for reasons that no pattern of a file fits.

skips.py files REPORT REASONS   prints the test files, one a line
skips.py check REPORT REASONS   prints the reasons; exit code 1 if there are any

REPORT is what pytest's --junitxml wrote, REASONS a list like skips.txt.
"""

import ast
import fnmatch
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree


def skips(report: Path) -> Iterator[tuple[str, str]]:
    """Yield test file and reason of what skipped; a whole file's reason is in its text."""
    for case in ElementTree.parse(report).iter("testcase"):
        for skip in case.iter("skipped"):
            if skip.get("type") == "pytest.xfail":
                continue
            module = case.get("classname") or case.get("name") or ""
            file = re.match(r"tests(\.[a-z]\w*)*?\.test_\w+(?=\.|$)", module)
            reason = skip.get("message", "")
            if reason == "collection skipped":
                reason = ast.literal_eval(skip.text or "")[2].removeprefix("Skipped: ")
            path = (file.group() if file else module).replace(".", "/")
            yield path + ".py" * bool(file), reason  # else a folder's conftest.py skipped


def main() -> int:
    """Print what was asked for; return the exit code."""
    what, report, reasons = sys.argv[1:]
    lines = Path(reasons).read_text().splitlines()
    listed = [line for line in lines if line and not line.startswith("#")]
    others = [
        each
        for each in skips(Path(report))
        if not any(fnmatch.fnmatchcase(each[1], pattern) for pattern in listed)
    ]
    if what == "files":
        for file in sorted({file for file, _ in others}):
            print(file)
        return 0
    for reason in sorted({reason for _, reason in others}):
        print(f"not in {reasons}: {reason}")
    return bool(others)


if __name__ == "__main__":
    sys.exit(main())
