"""Our own findings keep the contract of a finding; one that does not is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from iobench.registry import installed_findings
from iobench.report.document import Section, sentences
from iobench.testing import FindingTests

if TYPE_CHECKING:
    from iobench.findings.contract import Finding

SPEAKING = ("storage", "mlperf_utilisation")
"""Findings that have something to say of four batches."""
OURS = {each.name: each for each in installed_findings()}


@pytest.mark.parametrize("name", SPEAKING)
class TestSpeaking(FindingTests):
    @pytest.fixture
    def finding(self, name: str) -> Finding[Any]:
        return OURS[name]


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
