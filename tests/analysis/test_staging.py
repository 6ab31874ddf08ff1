"""What is said of staging, of hand-made scripts of which one knows it to the nanosecond."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripts import LOOP, Script

from iobench.analysis.run import Run
from iobench.findings.staging.figures import staging_of, staging_of_job
from iobench.recording.kinds import Kind
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document

COPIER = 2
"""A thread beside the loop."""


def copied(script: Script, start: int, end: int, *, nbytes: int = 1_000, thread: int = 0) -> None:
    script.sketch.add(LOOP, Kind.STAGE_IN, start, end, nbytes=nbytes, thread=thread)


def trained(script: Script, *, epochs: int, n_batches: int = 5, computes_ns: int = 10) -> None:
    """Train on a loader that reads 30 ns a batch, decodes 20 and joins 10, in the loop."""
    loader = script.loader()
    script.sketch.loaders[0].gradients = True
    for _ in range(epochs):
        loader.iter()
        for _ in range(n_batches):
            loader.next()
            script.compute(computes_ns)
        loader.end()


def staged(script: Script):
    return staging_of(Run(script.profile()).of_rank())


def text_of(script: Script) -> str:
    text = TerminalRenderer().render(report_document([Run(script.profile())]))
    return " ".join(text.split())


def test_what_was_copied_before_the_loop_is_exposed_and_stands_beside_the_epochs_after_it() -> None:
    script = Script()
    copied(script, 100, 400)
    copied(script, 200, 600, thread=COPIER)
    script.now = 700
    trained(script, epochs=3)
    found = staged(script)
    assert (found.staged_ns, found.outside_ns, found.waited_ns, found.hidden_ns) == (500, 500, 0, 0)
    assert (found.nbytes, found.bytes_per_s) == (2_000, 4e9)
    epoch_ns = 5 * 70 + 3
    assert (found.epoch_ns, found.n_epochs, found.n_all_epochs) == (epoch_ns, 3, 3)
    assert found.staging_to_epoch == pytest.approx(500 / epoch_ns)
    text = text_of(script)
    assert "Staging took 500 ns: 2.00 kB copied, 4.00 GB/s" in text
    assert "All of that is exposed" in text
    assert "T_staging / T_epoch is 1.42" in text


def test_what_was_copied_beside_the_loop_is_hidden_where_it_computed() -> None:
    script = Script()
    script.now = 1_000
    trained(script, epochs=2)
    # The first batch is waited for until 1,060 and computed on until 1,070, and so on.
    copied(script, 990, 1_075, thread=COPIER)
    found = staged(script)
    assert (found.staged_ns, found.outside_ns, found.waited_ns, found.hidden_ns) == (85, 10, 65, 10)
    assert found.n_epochs == 1  # the first one began before it was over
    assert "10 ns is hidden" in text_of(script)


def test_what_held_the_loop_up_is_not_hidden() -> None:
    script = Script()
    script.now = 1_000
    trained(script, epochs=1)
    copied(script, 1_060, 1_070)  # by the loop itself, between two batches
    copied(script, 1_060, 1_072, thread=COPIER)
    found = staged(script)
    assert (found.staged_ns, found.outside_ns, found.waited_ns, found.hidden_ns) == (12, 10, 2, 0)


@given(
    copies=st.lists(
        st.tuples(st.integers(0, 1_500), st.integers(1, 400), st.sampled_from([0, COPIER, 1])),
        min_size=1, max_size=8,
    ),
    epochs=st.integers(1, 3),
)  # fmt: skip
def test_exposed_and_hidden_add_up_and_agree_with_counting_each_ns(copies, epochs) -> None:
    script = Script()
    script.now = 300
    trained(script, epochs=epochs)
    for start, lasts, thread in copies:
        copied(script, start, start + lasts, thread=thread)
    found = staged(script)
    waits = Run(script.profile()).of_rank().deliveries
    own = {
        ns for start, lasts, thread in copies if thread == 0 for ns in range(start, start + lasts)
    }
    all_ns = {ns for start, lasts, _ in copies for ns in range(start, start + lasts)}
    waited = {
        ns
        for low, high in zip(waits.asked_ns, waits.delivered_ns, strict=True)
        for ns in range(low, high)
    }
    looped = {
        ns
        for low, high in zip(waits.from_ns, waits.until_ns, strict=True)
        for ns in range(low, high)
    }
    assert found.staged_ns == len(all_ns)
    assert found.waited_ns == len((all_ns - own) & waited)
    assert found.hidden_ns == len((all_ns - own) & (looped - waited))
    assert found.outside_ns + found.waited_ns + found.hidden_ns == found.staged_ns


def test_a_source_read_at_the_rate_of_the_copying_would_have_taken_its_bytes_at_that_rate() -> None:
    script = Script()
    copied(script, 0, 6_000, nbytes=600)  # 0.1 bytes a ns; a batch reads 30
    script.now = 7_000
    trained(script, epochs=4)
    found = staged(script)
    # Reading then takes 300 ns a batch instead of 30, in the loop itself.
    epoch_ns = 5 * 70 + 3
    assert found.slowdown == pytest.approx((epoch_ns + 5 * 270) / epoch_ns)
    assert found.at_rate.epochs == pytest.approx(6_000 / (5 * 270))
    assert "staging pays for itself after 4.4 epochs; this run has 4" in text_of(script)


def test_where_the_loop_hides_such_reads_staging_is_said_to_shorten_nothing() -> None:
    script = Script()
    copied(script, 0, 10, nbytes=6_000_000)
    script.now = 100
    trained(script, epochs=2)
    assert "would be no slower" in text_of(script)


def test_what_is_not_known_is_not_said() -> None:
    script = Script()
    copied(script, 0, 10, nbytes=-1)
    copied(script, 5, 20)
    script.now = 15
    trained(script, epochs=1)
    found = staged(script)
    assert (found.nbytes, found.bytes_per_s, found.slowdown, found.epoch_ns) == (None,) * 4
    text = text_of(script)
    assert "the number of bytes copied is unknown" in text
    assert "T_staging / T_epoch is unknown" in text
    there = Script()
    copied(there, 0, 10, nbytes=0)
    there.now = 20
    trained(there, epochs=1)
    assert staged(there).bytes_per_s is None
    assert "Nothing was copied" in text_of(there)
    bare = Script()
    trained(bare, epochs=1)
    assert staged(bare) is None
    assert "T_staging" not in text_of(bare)


def test_a_job_has_the_longest_staging_and_the_bytes_of_all() -> None:
    found = []
    for lasts in (100, 300):
        script = Script()
        copied(script, 0, lasts)
        script.now = 400
        trained(script, epochs=1)
        found.append(staged(script))
    job = staging_of_job(found)
    assert (job.staged_ns, job.nbytes) == (300, 2_000)
