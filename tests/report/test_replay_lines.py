"""What reports say of a replay: savings with the error beside them, or why nothing is foretold."""

from __future__ import annotations

from schedules import pool

from iobench.analysis.run import Run
from iobench.findings.faster_stages import faster_stages, replay_sentence


def test_workers_slow_in_different_stages_gain_by_all_of_them() -> None:
    # Of two workers one spends 100 ms reading, the other decoding; a step takes 5 ms.
    times = [(100, 0) if batch % 2 else (0, 100) for batch in range(400)]
    durations = [(1_000_000 * read, 1_000_000 * decode, 0) for read, decode in times]
    sketch = pool(durations, workers=2, step_ns=5_000_000)
    run = Run(sketch.profile()).of_rank()
    said = replay_sentence(faster_stages(run))
    assert said.startswith(
        "No single stage will help: the best one alone would save 0 % of the steady state; halving "
        "all of them would save 50 %"
    )
