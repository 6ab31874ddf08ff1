"""The contract of a finding as tests: subclass `FindingTests`, give the finding."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from iobench.analysis.run import Run
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.registry import installed_findings
from iobench.testing.fake_clock import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.findings.contract import Finding
    from iobench.report.document import Section

STEP_NS = 10_000_000
READ_NS = 4_000_000


def example_run(path: Path, n_batches: int) -> Run:
    """Return a run that reads batches of 1 MB for 4 ms each, and computes for 6 ms."""
    directory = RunDirectory.create(path, {"dataset": "recorded", "format": "source"})
    with directory.recorder(role="consumer", clock=FakeClock()) as recorder:
        recorder.emit(Kind.OTHER, 0, 1)
        for batch in range(n_batches):
            start_ns = batch * STEP_NS
            ready_ns, of = start_ns + READ_NS, {"batch": batch, "epoch": 0}
            loop = recorder.string("consumer")
            recorder.emit(Kind.READ, start_ns, ready_ns, nbytes=10**6, **of)
            recorder.emit(Kind.WAIT, start_ns, ready_ns, nbytes=10**6, detail=loop, **of)
            recorder.emit(Kind.FORWARD, ready_ns, start_ns + STEP_NS, **of)
    directory.gather()
    return Run(path)


class FindingTests:
    """What every finding keeps. A subclass overrides the fixture ``finding``.

    Where nothing is to say of the four batches of `example_run` it overrides ``run`` as well.
    """

    @pytest.fixture
    def finding(self) -> Finding[Any]:
        """Return the finding under test; the subclass gives it."""
        raise NotImplementedError("override the fixture 'finding'")

    @pytest.fixture
    def run(self, tmp_path: Path) -> Run:
        """Return a run that there is something to say of."""
        return example_run(tmp_path / "run", 4)

    @pytest.fixture
    def figures(self, finding: Finding[Any], run: Run) -> Any:
        """Return the figures that JSON and the section have."""
        figures = finding.figures(run.of_rank(run.ranks[0]))
        if figures is not None and finding.of_job:
            assert finding.together is not None, "what is of a job needs 'together'"
            return finding.together([figures])
        return figures

    def test_it_is_installed_under_its_name(self, finding: Finding[Any]) -> None:
        assert [each for each in installed_findings() if each.name == finding.name] == [finding]

    def test_figures_are_a_struct_of_strict_json(self, finding: Finding[Any], figures: Any) -> None:
        assert figures is not None, "nothing to say: override the fixture 'run'"
        for each in figures if isinstance(figures, tuple) else (figures,):
            assert isinstance(each, msgspec.Struct) or dataclasses.is_dataclass(each)
        json.dumps(msgspec.to_builtins(figures, str_keys=True), allow_nan=False)
        assert _read_back(finding, figures) == figures

    def test_the_section_is_of_the_figures_alone(self, finding: Finding[Any], figures: Any) -> None:
        section = finding.section(figures)
        assert section == finding.section(_read_back(finding, figures))
        _check_section(section)

    def test_of_a_run_without_a_batch_nothing_or_something_is_said(
        self, finding: Finding[Any], tmp_path: Path
    ) -> None:
        run = example_run(tmp_path / "empty", 0)
        figures = finding.figures(run.of_rank(run.ranks[0]))
        if figures is not None and not finding.of_job:
            _check_section(finding.section(figures))

    def test_what_is_of_several_is_of_the_same_type(
        self, finding: Finding[Any], figures: Any
    ) -> None:
        for join in (finding.together, finding.side_by_side):
            if join is not None and not finding.of_job:
                joined = join([figures, figures])
                assert joined is None or type(joined) is type(figures)


def _read_back(finding: Finding[Any], figures: Any) -> Any:
    """Return figures as JSON's schema has them."""
    return msgspec.json.decode(msgspec.json.encode(figures), type=finding.struct)


def _check_section(section: Section | None) -> None:
    assert section is None or (section.key and section.blocks), "say nothing by None"
