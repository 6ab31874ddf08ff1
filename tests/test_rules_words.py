"""Rule 5 of the design: a name means one thing, everywhere."""

from __future__ import annotations

import ast
import re
import runpy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from iobench.cli.app import COMMANDS as TEXTS
from iobench.cli.app import make_app
from iobench.command_options import OPTIONS
from tests.support.source_files import ROOT, SOURCES, nodes_of, text_of

DOCS = ROOT / "iobench" / "docs"
REFERENCE = DOCS / "reference"
READMES = ("README.md", "CONTRIBUTING.md", "plugins/README.md", "converters/README.md")
TOLD = [
    *(ROOT / name for name in READMES),
    *(page for page in sorted(DOCS.rglob("*.md")) if not page.is_relative_to(REFERENCE)),
]
"""What users read, but for what is generated."""
MOST_LINES = 220

NOT_OURS = {
    "record", "iteration", "phase", "op", "event", "track", "node", "stall", "block", "fake",
    "mock", "results",
}  # fmt: skip
"""The words of the column "not" of the design's table."""
# Where a word is somebody else's and means what they mean by it.
ELSEWHERE = {
    "record": (  # of a TFRecord, NumPy, netCDF or span file; to record. Never a sample of ours.
        "converters/iobench_converters/tfrecord.py",
        "converters/iobench_converters/numpy_records.py",
        "iobench/chunks/netcdf/classic.py",
        "iobench/recording/",
        "iobench/stores/tfrecord.py",
        "iobench/torch/",
    ),
    "event": (
        "iobench/compat/deep500/",  # MAX_EVENTS, a public name of Deep500's timer
        "iobench/report/timeline/",  # of traces, as Chrome's format and torch call them
    ),
    "phase": ("iobench/analysis/", "iobench/report/"),  # start-up, fill, steady, drain: of a run
    "fake": ("iobench/testing/fake_clock.py",),  # the fake clock
    "block": (
        "iobench/analysis/",  # of neighbouring steps, as statistics of series have them
        "iobench/loaders/ring/order.py",  # of neighbours, as shuffle='blocks:N' calls them
        "iobench/report/",  # of a document: what stands below another
        "iobench/findings/",
    ),
    "results": (  # of suites, as those who hand them in call them
        "iobench/cli/suite_command.py",
        "iobench/suites/",
    ),
}


# What reports, help and messages do not say -> what they say instead.
NOT_SAID = {
    r"foret(?:old|ell)": "predicted",
    r"in the mean\b": "on average, mean",
    r"in the median\b|in the middle\b": "median",
    r"for want of": "for lack of",
    r"at the most\b": "at most",
    r"at hand\b": "available, found",
    r"go(?:es)? on\b": "continues",
    r"\banew\b": "again",
    r"\ball the same\b": "nevertheless",
    r"\bnobody\b": "not recorded, unknown",
    r"\bbit by bit\b": "gradually",
    r"still at work": "still running",
    r"\bunder way\b": "in flight, running",
    r"\bheld against|\bhold \S+ against": "compared with",
    r"told apart|tell \S+ apart": "separated",
    r"do(?:es)? not tell|did not tell|cannot be told": "is not recorded, is unknown",
    r"\btells? (?:neither|no|none|nobody|nothing|you)\b": "reports no",
    r"\b(?:bytes|samples|reads|requests|times) a (?:second|minute|batch|step)\b": "per second",
    r"\b(?:handover|worker_gap|starved_submit|head_of_line|ipc_wait)\b": "the title of the kind",
}
SENTENCE = 3
"""Words from which on a text is taken for a sentence, and not for a key or a name."""


def _names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every name a module gives to something, with its line."""
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def _words(name: str) -> set[str]:
    """Return the words of a name: ``make_TFRecords`` holds make, tf, record and records."""
    words = {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}
    return words | {word.removesuffix("s") for word in words}


def test_names_keep_to_our_words() -> None:
    wrong = []
    for path in SOURCES:
        place = path.relative_to(ROOT).as_posix()
        allowed = {word for word, places in ELSEWHERE.items() if place.startswith(places)}
        named = [(1, path.stem), *_names(path)]
        refused = NOT_OURS - allowed
        wrong += [f"{place}:{line}: {name}" for line, name in named if _words(name) & refused]
    assert wrong == []


def _sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module that may reach a user, with their lines: no docstrings."""
    nodes = nodes_of(path)
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            alone |= {id(value) for value in node.values}
            texts = [each.value for each in node.values if isinstance(each, ast.Constant)]
            yield node.lineno, " ".join(" {} ".join(texts).split())
        elif isinstance(node, ast.Constant) and id(node) not in alone:
            words = node.value.split() if isinstance(node.value, str) else ()
            if len(words) >= SENTENCE:
                yield node.lineno, " ".join(words)


def _not_said(text: str) -> list[str]:
    return [
        f"{found[0]!r}, say {instead}"
        for word, instead in NOT_SAID.items()
        if (found := re.search(word, text, re.IGNORECASE))
    ]


def test_sentences_that_users_read_use_the_words_of_the_field() -> None:
    places = [(f"{path}:{line}", text) for path in SOURCES for line, text in _sentences(path)]
    for page in TOLD:
        prose = re.sub(
            r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL | re.MULTILINE
        )
        places.append((str(page), " ".join(prose.split())))
    wrong = [f"{place}: {each}" for place, text in places for each in _not_said(text)]
    assert wrong == []


def test_a_class_name_stands_for_one_class() -> None:
    names = Counter(
        name for path in SOURCES for name in re.findall(r"(?m)^class ([A-Za-z]\w*)", text_of(path))
    )
    several = {name for name, count in names.items() if count > 1}
    assert several == {"CPUGPUTimer"}  # Deep500's name in each framework's module


def test_a_command_is_called_like_its_module_and_says_what_it_does() -> None:
    for name, text in TEXTS.items():
        assert text.help.splitlines()[0].endswith("."), name
    files = {path.stem for path in (ROOT / "iobench" / "cli").glob("*_command.py")}
    assert files == {f"{name}_command" for name in TEXTS}


def test_every_option_has_a_help_text() -> None:
    for name, options in OPTIONS.items():
        assert [each.name for each in options if not each.help.endswith((".", "]"))] == [], name


def test_the_pages_of_the_reference_are_what_the_code_says() -> None:
    written = runpy.run_path(str(ROOT / ".ci" / "write_pages.py"))["pages"]()
    kept = {
        path.relative_to(REFERENCE).as_posix(): path.read_text() for path in REFERENCE.rglob("*.md")
    }
    assert written == kept, "python .ci/write_pages.py writes them again"


def test_readme_is_read_to_its_end_and_links_what_is_there() -> None:
    for name in READMES:
        text = (ROOT / name).read_text()
        assert len(text.splitlines()) <= MOST_LINES
        for link in re.findall(r"\]\(([^)#\s]+)", text):
            if "://" not in link:
                assert ((ROOT / name).parent / link).exists(), f"{name} links {link}"


def test_the_readme_names_no_option_that_is_not_there() -> None:
    there = {
        option
        for command in make_app().commands.values()
        for param in command.params
        for option in (*param.opts, *param.secondary_opts)
    }
    commands = "|".join(TEXTS)
    pages = "\n".join(page.read_text() for page in TOLD)
    told = re.findall(rf"iobench (?:{commands})\b[^`\n]*", pages)
    options = {option for line in told for option in re.findall(r"(?<=\s)--[a-z-]+", line)}
    assert options <= {*there, "--help", "--quiet", "--nproc-per-node"}


def test_pages_of_the_documentation_link_what_is_there() -> None:
    linked = {DOCS / "index.md"}
    for page in DOCS.rglob("*.md"):
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page} links {link}"
                linked.add((page.parent / link).resolve())
    assert set(DOCS.rglob("*.md")) - linked == set()


def test_a_decision_has_at_most_120_words() -> None:
    pages = [page for page in (DOCS / "decisions").rglob("*.md") if page.name != "index.md"]
    words = {str(page): len(page.read_text().split("\n\n", 2)[2].split()) for page in pages}
    assert len(pages) > 50
    assert {page: n for page, n in words.items() if n > 120} == {}
