"""Every snippet of every page of the documentation runs."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from pages import CONTINUES, DOCS, chain, commands, needs, pages, run_page

CONTINUED = {
    (page.parent / found[1]).resolve()
    for page in pages()
    if (found := CONTINUES.search(page.read_text()))
}


WHOLE = [p for p in pages() if p.is_relative_to(DOCS) and p.resolve() not in CONTINUED]


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", WHOLE, ids=lambda page: page.stem)
def test_the_snippets_of_a_page_run(page: Path) -> None:
    for module in needs(page):
        pytest.importorskip(module, reason=f"the page needs {module}")
    with tempfile.TemporaryDirectory() as folder:  # a short name: outputs are wrapped
        done = run_page(page, Path(folder).resolve())
    for step, printed in done:
        if step.shown:
            shown = _form(step.shown.removesuffix("..."))
            assert _form(printed)[: len(shown)] == shown, step.code


def _form(text: str) -> str:
    """Return how an output begins, without numbers, their width and digests: runs differ."""
    words = re.sub(r"\b[0-9a-f]{8,}\b", "X", text.strip().partition("\n")[0])
    return re.sub(r"\s*\d+(?:[.,]\d+)*", " N", words)[:40]


def test_commands_of_a_block_are_told_from_their_output() -> None:
    body = "$ one \\\n    --more\nprinted\n$ two\n"
    assert commands(body) == [("one \\\n    --more", "printed"), ("two", "")]


def test_a_page_that_continues_another_runs_after_it() -> None:
    page = DOCS / "tutorial" / "3-convert-and-train.md"
    assert [each.stem for each in chain(page)] == ["2-my-own-script", "3-convert-and-train"]
