"""What staging took, of hand-made scripts of which one knows it to the nanosecond."""

from __future__ import annotations

import pytest
from scripts import LOOP, Script

from iobench.analysis.run import Run
from iobench.findings.staging import staging_of, staging_of_job
from iobench.recording.kinds import Kind
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document

COPIER = 2
"""A thread beside the loop."""
EPOCH_NS = 5 * 70 + 3
"""Five batches of 60 ns and 10 ns of compute, and the end of the epoch."""


def script_of(*copies: tuple[int, int, int], epochs: int, begins: int = 0) -> Script:
    """Return a script that copies (thread, start, end), and trains on batches of 70 ns."""
    script = Script()
    for thread, start, end in copies:
        script.sketch.add(LOOP, Kind.STAGE_IN, start, end, nbytes=1_000, thread=thread)
    script.now = begins
    loader = script.loader()
    script.sketch.loaders[0].gradients = True
    for _ in range(epochs):
        loader.iter()
        for _ in range(5):
            loader.next()
            script.compute(10)
        loader.end()
    return script


@pytest.mark.parametrize(
    ("copies", "epochs", "staged_ns", "epoch_ns"),
    [
        (((0, 100, 400), (COPIER, 200, 600)), 3, 500, EPOCH_NS),
        (((COPIER, 690, 775),), 2, 85, EPOCH_NS),  # beside the first epoch
        (((COPIER, 690, 775),), 1, 85, None),
    ],
)
def test_staging_stands_beside_the_epochs_after_it(copies, epochs, staged_ns, epoch_ns) -> None:
    script = script_of(*copies, epochs=epochs, begins=700)
    found = staging_of(Run(script.data()).of_rank())
    assert found is not None
    assert (found.staged_ns, found.nbytes) == (staged_ns, 1_000 * len(copies))
    assert (found.epoch_ns, found.staging_to_epoch) == (epoch_ns, epoch_ns and staged_ns / epoch_ns)


def test_what_is_not_known_is_not_said() -> None:
    script = script_of((0, 0, 10), epochs=1, begins=15)
    script.sketch.add(LOOP, Kind.STAGE_IN, 5, 20, nbytes=-1)
    run = Run(script.data())
    found = staging_of(run.of_rank())
    assert found is not None
    assert (found.nbytes, found.epoch_ns) == (None, None)
    text = TerminalRenderer().render(report_document([run]))
    assert "T_staging / T_epoch is unknown" in text
    assert staging_of(Run(script_of(epochs=1).data()).of_rank()) is None


def test_a_job_has_the_longest_staging_and_the_bytes_of_all() -> None:
    found = []
    for lasts in (100, 300):
        script = script_of((0, 0, lasts), epochs=1, begins=400)
        found.append(staging_of(Run(script.data()).of_rank()))
    job = staging_of_job(found)
    assert (job.staged_ns, job.nbytes) == (300, 2_000)
