"""Our own findings keep the contract of a finding; one that does not is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.registry import installed_findings
from iobench.report.document import Section, sentences
from iobench.testing import FindingTests
from iobench.testing.findings import READ_NS, STEP_NS
from tests.support.sketched_runs import CONSUMER, SketchedRun

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.analysis.run import Run
    from iobench.findings.contract import Finding

OURS = {each.name: each for each in installed_findings()}
MORE: dict[str, dict[str, Any]] = {
    "storage": {},
    "mlperf_utilisation": {},
    "replay": {},
    "next_steps": {},
    "staging": {"kind": Kind.STAGE_IN},
    "device": {"kind": Kind.FORWARD, "batch": 0, "flags": Flag.DEVICE | Flag.DETAIL, "thread": 1},
}
"""What a run needs beside four batches for a finding to have something to say of it."""


@pytest.mark.parametrize("name", MORE)
class TestSpeaking(FindingTests):
    @pytest.fixture
    def finding(self, name: str) -> Finding[Any]:
        return OURS[name]

    @pytest.fixture
    def run(self, name: str, tmp_path: Path) -> Run:
        sketch = SketchedRun(dataset="sketched", format="source")
        for batch in range(4):
            start_ns, of = batch * STEP_NS, {"batch": batch, "epoch": 0, "nbytes": 10**6}
            ready_ns = start_ns + READ_NS
            sketch.add(CONSUMER, Kind.READ, start_ns, ready_ns, **of)
            sketch.wait(batch, start_ns, ready_ns, "consumer", epoch=0, nbytes=10**6)
            sketch.add(CONSUMER, Kind.FORWARD, ready_ns, start_ns + STEP_NS, batch=batch, epoch=0)
        if MORE[name]:
            sketch.add(CONSUMER, start_ns=5, end_ns=9, nbytes=8, **MORE[name])
        return sketch.write(tmp_path / "run")


@pytest.mark.parametrize("finding", OURS.values(), ids=OURS)
class TestAll:
    test_installed = FindingTests.test_it_is_installed_under_its_name
    test_without_a_batch = FindingTests.test_of_a_run_without_a_batch_nothing_or_something_is_said
    test_imports = FindingTests.test_it_uses_no_function_of_another_finding


class Wrong(msgspec.Struct):
    value: Any
    hidden: Any = msgspec.field(default=None, name="value2")


@pytest.mark.parametrize(
    ("struct", "figures"),
    [
        (int, 3),
        (dict, {"a": 1}),
        (Wrong, Wrong(float("nan"))),
        (Wrong, Wrong(np.arange(3))),
        (Wrong, None),
        (Section, Wrong(1)),
    ],
)
def test_other_figures_are_refused(struct: Any, figures: Any) -> None:
    finding: Any = SimpleNamespace(struct=struct)
    with pytest.raises((AssertionError, ValueError, TypeError)):
        FindingTests().test_figures_are_a_struct_of_strict_json(finding, figures)


@pytest.mark.parametrize(
    "section",
    [
        lambda figures: Section("x", "X", ()),
        lambda figures: Section("x", "X", sentences([str(id(figures))])),
    ],
)
def test_sections_of_nothing_or_of_something_else_are_refused(section: Any) -> None:
    finding: Any = SimpleNamespace(section=section, struct=Wrong)
    with pytest.raises(AssertionError):
        FindingTests().test_the_section_is_of_the_figures_alone(finding, Wrong(1))
