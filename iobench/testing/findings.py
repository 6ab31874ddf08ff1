"""The contract of a finding as tests: subclass `FindingTests`, give the finding."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from iobench.recording.kinds import Kind
from iobench.recording.span_reader import Anchor
from iobench.recording.this_process import boot_id, host_name
from iobench.registry import installed_findings
from iobench.testing.sketched_runs import CONSUMER, SketchedRun

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from iobench.analysis.run import Run
    from iobench.findings.contract import Finding
    from iobench.report.document import Section

SketchedSpan = tuple[Kind, int, int, Mapping[str, int | str]]
"""Kind, start, end in ns, and other fields of a span, with texts for ``label`` and ``detail``."""
STEP_NS = 10_000_000


def sketch_run(
    path: Path,
    spans: Iterable[SketchedSpan] | None = None,
    *,
    wall_offset_ns: int = 0,
    **config: Any,
) -> Run:
    """Write a run of one training process with these spans, and open it.

    Without ``spans`` it reads four batches of 1 MB for 4 ms each, and computes for 6 ms.
    ``wall_offset_ns`` is the time since 1970 as its clock begins, ``config`` is for ``run.json``.
    """
    run = SketchedRun({"dataset": "sketched", "format": "source", **config})
    run.process = {
        "pid": os.getpid(), "host": host_name(), "boot_id": boot_id(),
        "anchors": (Anchor(0, wall_offset_ns),),
    }  # fmt: skip
    for kind, start_ns, end_ns, fields in _four_steps() if spans is None else spans:
        run.add(CONSUMER, kind, start_ns, end_ns, **fields)
    return run.write(path)


def _four_steps() -> Iterable[SketchedSpan]:
    for batch in range(4):
        start_ns, of = batch * STEP_NS, {"batch": batch, "epoch": 0, "nbytes": 10**6}
        ready_ns = start_ns + 4 * STEP_NS // 10
        yield Kind.READ, start_ns, ready_ns, of
        yield Kind.WAIT, start_ns, ready_ns, {**of, "detail": "consumer"}
        yield Kind.FORWARD, ready_ns, start_ns + STEP_NS, {"batch": batch, "epoch": 0}


class FindingTests:
    """What every finding keeps. A subclass overrides the fixture ``finding``.

    Where nothing is to say of `sketch_run`'s four batches it overrides ``run`` as well.
    """

    @pytest.fixture
    def finding(self) -> Finding[Any]:
        """Return the finding under test; the subclass gives it."""
        raise NotImplementedError("override the fixture 'finding'")

    @pytest.fixture
    def run(self, tmp_path: Path) -> Run:
        """Return a run that there is something to say of."""
        return sketch_run(tmp_path / "run")

    @pytest.fixture
    def figures(self, finding: Finding[Any], run: Run) -> Any:
        """Return the figures that JSON and the section have."""
        figures = finding.figures(run.of_rank(run.ranks[0]))
        if figures is not None and finding.of_job:
            assert finding.together is not None, "what is of a job needs 'together'"
            return finding.together([figures])
        return figures

    def test_it_is_installed_under_its_name(self, finding: Finding[Any]) -> None:
        """Check that reports know it, and no other of its name."""
        assert [each for each in installed_findings() if each.name == finding.name] == [finding]

    def test_figures_are_a_struct_of_strict_json(self, figures: Any) -> None:
        """Check that JSON has all of them, without NaN, and that they are read back equal."""
        assert figures is not None, "nothing to say: override the fixture 'run'"
        assert isinstance(figures, msgspec.Struct) or dataclasses.is_dataclass(figures)
        json.dumps(msgspec.to_builtins(figures, str_keys=True), allow_nan=False)
        assert _read_back(figures) == figures

    def test_the_section_is_of_the_figures_alone(self, finding: Finding[Any], figures: Any) -> None:
        """Check that what JSON has is enough to say it, and that there is something to say."""
        section = finding.section(figures)
        assert section == finding.section(_read_back(figures))
        _check_section(section)

    def test_of_a_run_without_a_batch_nothing_or_something_is_said(
        self, finding: Finding[Any], tmp_path: Path
    ) -> None:
        """Check that a run that was killed at its start has a report."""
        run = sketch_run(tmp_path / "empty", [(Kind.OTHER, 0, 1, {})])
        figures = finding.figures(run.of_rank(run.ranks[0]))
        if figures is not None and not finding.of_job:
            _check_section(finding.section(figures))

    def test_what_is_of_several_is_of_the_same_type(
        self, finding: Finding[Any], figures: Any
    ) -> None:
        """Check the figures of a job, and of several configurations side by side."""
        for join in (finding.together, finding.side_by_side):
            if join is not None and not finding.of_job:
                joined = join([figures, figures])
                assert joined is None or type(joined) is type(figures)

    def test_it_uses_no_function_of_another_finding(self, finding: Finding[Any]) -> None:
        """Check that it imports structs of others at most: each may change or go."""
        modules = {each.value.partition(":")[0] for each in entry_points(group="iobench.findings")}
        own = {finding.figures.__module__, finding.section.__module__}
        for name in own:
            for statement in ast.walk(ast.parse(inspect.getsource(sys.modules[name]))):
                if isinstance(statement, ast.ImportFrom) and statement.module in modules - own:
                    other = import_module(statement.module)
                    wrong = [
                        each.name for each in statement.names if not _is_struct(other, each.name)
                    ]
                    assert not wrong, f"{name} imports {', '.join(wrong)} of {statement.module}"


def _is_struct(module: Any, name: str) -> bool:
    value = getattr(module, name)
    return isinstance(value, type) and (
        issubclass(value, msgspec.Struct) or dataclasses.is_dataclass(value)
    )


def _read_back(figures: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(figures), type=type(figures))


def _check_section(section: Section | None) -> None:
    assert section is None or (section.key and section.blocks), "say nothing by None"
