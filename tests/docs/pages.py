"""Runs the snippets of a page of the documentation, and writes what they print into the page.

    python tests/docs/pages.py iobench/docs/tutorial/1-first-profile.md

A block with ``title="FILE"`` is written to that file; ``--8<-- "FILE"`` in it stands for the text
of a file of the repository. A block of Python without a title is run as
a script of its own. In a ``console`` block each line with ``$ `` is run by bash, in the page's
folder; what follows it is the output. The output ends with ``...`` where the page shows its
beginning alone; ``@`` or ``@12`` in its place stands for an output that is not recorded yet. Blocks
of ``bash`` are parsed by bash and not run.

Comments of a page: ``<!-- continues FILE -->`` (in the folder of that page, after it),
``<!-- needs: torch, mlflow -->`` (modules).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "iobench" / "docs"
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INCLUDE = re.compile(r"^--8<-- \"([^\"]+)\"$", re.MULTILINE)
CONTINUES = re.compile(r"<!-- continues (\S+) -->")
NEEDS = re.compile(r"<!-- needs: ([^>]+) -->")
TIMEOUT_S = 240


@dataclass(frozen=True)
class Step:
    """One thing that a block does, and the output that the page shows of it."""

    language: str
    code: str
    title: str | None = None
    shown: str = ""


def pages() -> list[Path]:
    """Return the pages that have snippets to run."""
    texts = {path: path.read_text() for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]}
    return [path for path, text in texts.items() if _steps_of(text)]


def chain(page: Path) -> list[Path]:
    """Return the pages whose folder a page continues, and the page."""
    found = CONTINUES.search(page.read_text())
    return [*(chain(page.parent / found[1]) if found else []), page]


def needs(page: Path) -> list[str]:
    """Return the modules that a page names, with those of the pages it continues."""
    lists = [found for each in chain(page) for found in NEEDS.findall(each.read_text())]
    return [name.strip() for names in lists for name in names.split(",")]


def steps(page: Path) -> list[Step]:
    """Return what the blocks of a page do."""
    return _steps_of(page.read_text())


def _steps_of(text: str) -> list[Step]:
    found = []
    for language, title, written in BLOCK.findall(text):
        body = INCLUDE.sub(lambda found: (ROOT / found[1]).read_text().rstrip("\n"), written)
        if language == "console":
            found += [Step("console", code, shown=shown) for code, shown in commands(body)]
        elif title or language in ("python", "bash"):
            found.append(Step(language, body, title or None))
    return found


def commands(body: str) -> list[tuple[str, str]]:
    """Return the commands of a block with the output that is shown of each."""
    found: list[tuple[list[str], list[str]]] = []
    goes_on = False
    for line in body.splitlines():
        if line.startswith("$ "):
            found.append(([line[2:]], []))
        elif goes_on:
            found[-1][0].append(line)
        elif found:
            found[-1][1].append(line)
        goes_on = found[-1][0][-1].endswith("\\") and not found[-1][1] if found else False
    return [("\n".join(code), "\n".join(shown)) for code, shown in found]


def run(step: Step, folder: Path) -> str:
    """Do a step in a folder and return what it printed; raise `AssertionError` if it fails."""
    if step.title:
        (folder / step.title).parent.mkdir(parents=True, exist_ok=True)
        (folder / step.title).write_text(step.code)
        return ""
    words = ["bash", "-euo", "pipefail", "-c", step.code]
    if step.language == "bash":
        words = ["bash", "-n", "-c", step.code]
    if step.language == "python":
        words = [sys.executable, "-W", "error::DeprecationWarning", "-c", step.code]
    done = subprocess.run(
        words, cwd=folder, env=_environment(folder), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{step.code}\nexit {done.returncode}\n{done.stdout}"
    return done.stdout.replace(f"{folder}/", "")


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("IOBENCH_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return kept | {
        "PATH": path, "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb", "OMP_NUM_THREADS": "1",
        "IOBENCH_STORE_DIR": str(folder / "stores"), "XDG_CACHE_HOME": str(folder / "cache"),
        "TMPDIR": str(folder), "USER": "user", "TF_CPP_MIN_LOG_LEVEL": "3",
    }  # fmt: skip


def run_page(page: Path, folder: Path) -> list[tuple[Step, str]]:
    """Do all steps of a page, after those of the pages that it continues."""
    every = [step for each in chain(page) for step in steps(each)]
    return [(step, run(step, folder)) for step in every]


def record(page: Path, folder: Path) -> None:
    """Write what the commands of a page print into the page."""
    for each in chain(page)[:-1]:
        for step in steps(each):
            run(step, folder)

    def renewed(found: re.Match[str]) -> str:
        language, title, body = found.groups()
        if language == "console":
            body = "".join(_recorded(Step("console", *pair), folder) for pair in _pairs(body))
        else:
            for step in _steps_of(found[0]):
                run(step, folder)
        return f"```{language}{f' title={chr(34)}{title}{chr(34)}' if title else ''}\n{body}```"

    page.write_text(BLOCK.sub(renewed, page.read_text()))


def _pairs(body: str) -> list[tuple[str, None, str]]:
    return [(code, None, shown) for code, shown in commands(body)]


def _recorded(step: Step, folder: Path) -> str:
    lines = [line.rstrip() for line in run(step, folder).strip("\n").splitlines()]
    before = step.shown.splitlines()
    if found := re.fullmatch(r"@(\d*)", step.shown):
        before = ["..."] * (int(found[1]) + 1) if found[1] else ["all"]
    if before and before[-1] == "...":
        lines = [*lines[: len(before) - 1], "..."] if len(lines) >= len(before) else lines
    elif not before:
        lines = []
    code = "\n".join(step.code.splitlines())
    return "\n".join([f"$ {code}", *lines, ""])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as new:
            record(Path(name).resolve(), Path(new).resolve())
