"""What a gate found, as the Markdown of a job's summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from iobench.analysis.gates import CountsGate, Outcome, worst_outcome
from iobench.report.check_text import DOUBTS, WORDS, gate_lines, gate_title
from iobench.report.markdown_page import escaped

if TYPE_CHECKING:
    from iobench.report.check_text import Gate

__all__ = ["check_markdown"]

SIGNS: Final = {
    Outcome.PASSED: "✅",
    Outcome.REGRESSION: "❌",
    Outcome.INCONCLUSIVE: "❔",
}


def check_markdown(gates: Sequence[Gate]) -> Iterator[str]:
    """Yield the lines of a summary: the outcome, then each gate and what it found."""
    outcome = worst_outcome([gate.judged[0] for gate in gates])
    yield f"### {SIGNS[outcome]} iobench check: {WORDS[outcome]}"
    yield ""
    for gate in gates:
        judged, doubt = gate.judged
        yield f"- {SIGNS[judged]} **{WORDS[judged]}**: {escaped(gate_title(gate))}"
        for line in gate_lines(gate):
            yield f"  - {escaped(line.strip())}"
        if doubt is not None and not isinstance(gate, CountsGate):
            yield f"  - {escaped(DOUBTS[doubt])}"
    yield ""
