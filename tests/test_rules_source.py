"""Rules 3 and 7 of the design, and what no tracked file may hold."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.faults import missing_tests, planted, read_table
from tests.support.source_files import ROOT, SOURCES, nodes_of, project, text_of

TOP_LEVEL = {
    ".ci", ".github", ".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md", "CONTRIBUTING.md",
    "LICENSE", "README.md", "converters", "iobench", "notebooks", "plugins", "pyproject.toml",
    "tests",
}  # fmt: skip
CLOCKS = {"now", "utcnow", "today", "monotonic", "perf_counter", "perf_counter_ns", "time_ns"}
CPU_COUNT = re.compile(r"\b(?:process_)?cpu_count\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:root|work|tmp/dev)/\w")
INDEX_SETTING = re.compile(r"(?:--(?:extra-)?index-url|--find-links|PIP_\w*INDEX\w*)[ =]+\S")


RUNS_DATA = re.compile(
    r"allow_pickle ?= ?True|\byaml\.(?:unsafe_)?load\b|shell ?= ?True|\b(?:torch|joblib)\.load\("
    r"|\bos\.system\(|\b(?:marshal|shelve|dill|cloudpickle)\b|(?<![.\w])(?:eval|exec)\("
)
UNPICKLES = {
    "iobench/datasets/setup_processes.py",
    "iobench/storage/darshan_reader.py",
    "iobench/testing/datasets.py",
    "iobench/testing/loaders.py", "iobench/testing/stores.py",
    "iobench/loaders/ring/process_source.py",
    "converters/iobench_converters/on_dask.py", "iobench/adapters/table.py",
}  # fmt: skip
"""What unpickles: from pipes of processes that were started here, never from a file.

The table of adapters names the module alone, as it times how long threads wait for its pipes.
"""


MAY_READ_CLOCKS = ("iobench/recording/", "iobench/launch/boot/iobench_boot.py")
"""The last one times imports before any module of iobench could be one of them."""


def test_the_clock_is_read_in_recording_only() -> None:
    wrong = []
    for path in SOURCES:
        if path.relative_to(ROOT).as_posix().startswith(MAY_READ_CLOCKS):
            continue
        for node in nodes_of(path):
            if isinstance(node, ast.Import):
                read = not {alias.name for alias in node.names}.isdisjoint({"time", "timeit"})
            elif isinstance(node, ast.ImportFrom):
                read = node.module in {"time", "timeit"}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                read = node.func.attr in CLOCKS
            else:
                continue
            if read:
                wrong.append(f"{path}:{node.lineno}: {ast.unparse(node)}")
    assert wrong == []


def test_the_tests_that_ci_names_are_there() -> None:
    named = re.findall(r"tests/[\w/]+(?:\.py)?", (ROOT / ".ci" / "run").read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_nothing_counts_the_cpus_of_the_machine() -> None:
    wrong = [path for path in SOURCES if CPU_COUNT.search(text_of(path))]
    assert wrong == []


def test_nothing_that_data_say_is_run() -> None:
    texts = {path.relative_to(ROOT).as_posix(): text_of(path) for path in SOURCES}
    found = {name for name, text in texts.items() if RUNS_DATA.search(text)}
    assert found == set()
    unpickle = ("pickle.load", "multiprocessing.connection")
    unpickles = {name for name, text in texts.items() if any(each in text for each in unpickle)}
    assert unpickles == UNPICKLES


def test_test_data_is_small_and_says_where_it_is_from() -> None:
    files = [path for path in (ROOT / "tests" / "data").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 20 << 20
    if files:
        told = (ROOT / "tests" / "data" / "README.md").read_text()
        assert [path.name for path in files if path.name not in told + "README.md"] == []


def test_the_base_sets_no_upper_bounds() -> None:
    told = project()["project"]
    assert [line for line in told["dependencies"] if re.search(r"[<=]=|<|~=|!=", line)] == []


def test_no_module_is_named_like_one_of_the_standard_library() -> None:
    names = {path.stem for path in SOURCES} | {path.parent.name for path in SOURCES}
    assert names & set(sys.stdlib_module_names) == set()


def test_every_import_package_says_that_it_is_typed() -> None:
    for package in project()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert (ROOT / package / "py.typed").exists()


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so there is no list of tracked files")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def test_the_top_level_holds_what_the_design_lists(tracked: list[Path]) -> None:
    assert {path.relative_to(ROOT).parts[0] for path in tracked} <= TOP_LEVEL


def test_tracked_files_name_no_machine_and_no_index(tracked: list[Path]) -> None:
    for path in tracked:
        try:
            text = path.read_text()
        except (UnicodeDecodeError, FileNotFoundError):
            continue  # data, or deleted and not yet committed
        for pattern in (MACHINE_PATH, INDEX_SETTING):
            found = pattern.search(text)
            assert found is None, f"{path}: {found and found[0]}"


def test_each_fault_of_the_table_can_be_planted_and_names_tests_that_are_there() -> None:
    wrong = []
    for fault in read_table():
        try:
            planted(fault)
        except ValueError as error:
            wrong.append(f"{fault.id}: {error}")
        wrong += [f"{fault.id}: there is no {name}" for name in missing_tests(fault)]
    assert wrong == [], "whoever moves code or tests moves the rows of tests/support/faults.toml"
