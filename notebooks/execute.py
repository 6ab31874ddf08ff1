"""Run the notebooks from top to bottom, and keep what they print: python notebooks/execute.py.

    python notebooks/execute.py                 all of them, saved with their outputs
    python notebooks/execute.py 01 04           those whose names begin so
    python notebooks/execute.py --check         run them, save nothing

Each runs in a fresh kernel of this Python, in an empty folder that is removed afterwards. What is
saved says nothing of the machine: no metadata of kernels, no times of cells, and outputs are
refused that hold an absolute path, a host's or a user's name.
"""

from __future__ import annotations

import argparse
import getpass
import re
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TIMEOUT_S = 300  # of one cell
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# Two names after each other, so that neither "hidden/exposed" nor "</div>" is one; not of URLs.
# Memory as a folder, which advice names, has the same path on every Linux.
ABSOLUTE_PATH = re.compile(r"(?<![\w.<~:/)\]-])/(?!dev/shm\b)[A-Za-z][\w.-]*/[\w.-]+")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# What a reader should not stumble over: the first words of what Python and libraries say.
COMPLAINT = re.compile(r"Traceback \(most recent call last\)|\b\w*(?:Warning|Error): ")


def notebook_paths(*beginnings: str) -> list[Path]:
    """Return the notebooks whose names begin so, all by default."""
    paths = sorted(HERE.glob("[0-9][0-9]_*.ipynb"))
    return [path for path in paths if path.name.startswith(beginnings or ("",))]


def run_notebook(path: Path, folder: Path) -> Any:
    """Return a notebook after a run in a fresh kernel in a folder; nothing is saved.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        If a cell fails; the cell and its error are told.
    """
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook,
        timeout=TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        extra_arguments=["--log-level=ERROR"],  # not that it talks over a port of this machine
    ).execute()
    return tidied(notebook)


def tidied(notebook: Any) -> Any:
    """Return the notebook without what differs from machine to machine; changed in place."""
    import nbformat

    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the times at which it ran
        if cell.cell_type == "code":
            cell.outputs = list(_joined(cell.outputs))
            for output in cell.outputs:
                data = output.get("data", {})
                if len(data) > 1:
                    data.pop("text/plain", None)  # the same again, for who has no browser
    return notebook


def _joined(outputs: list[Any]) -> Iterator[Any]:
    """Yield outputs, pieces of one stream put together: how they are cut is chance."""
    last = None
    for output in outputs:
        same = last is not None and output.output_type == "stream" == last.output_type
        if same and output.name == last.name:
            last.text += output.text
            continue
        if last is not None:
            yield last
        last = output
    if last is not None:
        yield last


def output_texts(notebook: Any) -> Iterator[tuple[int, str]]:
    """Yield the number of each cell with outputs and what they hold as text, pictures left out."""
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", ()):
            texts = [output.get("text", ""), *output.get("traceback", ())]
            kinds = output.get("data", {}).items()
            texts += [value for kind, value in kinds if kind.startswith("text/")]
            for text in texts:
                yield number, COLOUR.sub("", text)


def find_private(notebook: Any) -> list[str]:
    """Return what outputs and metadata tell of the machine they come from."""
    names = {socket.gethostname(), getpass.getuser()} - {"root", "user", "localhost"}
    found = []
    for number, text in output_texts(notebook):
        found += [f"cell {number}: {match[0]}" for match in ABSOLUTE_PATH.finditer(text)]
        for name in names:
            if re.search(rf"\b{re.escape(name)}\b", text):
                found.append(f"cell {number}: {name}")
    if notebook.metadata != METADATA:
        found.append(f"metadata: {dict(notebook.metadata)}")
    return found


def find_complaints(notebook: Any) -> list[str]:
    """Return warnings and errors that outputs show."""
    return [
        f"cell {number}: {match[0]}"
        for number, text in output_texts(notebook)
        for match in COMPLAINT.finditer(text)
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run notebooks and save them; return 1 if outputs say what they must not."""
    parser = argparse.ArgumentParser(description="Run the notebooks from top to bottom.")
    parser.add_argument("names", nargs="*", help="how their names begin; all by default")
    parser.add_argument("--check", action="store_true", help="save nothing")
    chosen = parser.parse_args(arguments)
    paths = notebook_paths(*chosen.names)
    if not paths:
        parser.error(f"no notebook begins with {' or '.join(chosen.names)}")
    wrong = 0
    for path in paths:
        with tempfile.TemporaryDirectory() as folder:
            notebook = run_notebook(path, Path(folder))
        found = find_private(notebook) + find_complaints(notebook)
        wrong += bool(found)
        for line in found:
            print(f"{path.name}: {line}", file=sys.stderr)
        if not (chosen.check or found):
            save_notebook(notebook, path)
        print(f"{path.name}: {'refused' if found else 'ran' if chosen.check else 'saved'}")
    return min(wrong, 1)


def save_notebook(notebook: Any, path: Path) -> None:
    """Write a notebook over its file."""
    import nbformat

    path.write_text(nbformat.writes(notebook).rstrip("\n") + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
