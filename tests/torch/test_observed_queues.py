"""What the queues to and from worker processes count as recording, with a clock of the test's."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the queues are those of torch's DataLoader")

from iobench.testing import FakeClock
from iobench.torch import observed_queues
from iobench.torch.observation import KnownLoader, WorkersObservation
from iobench.torch.observed_samplers import observed_sampler

pytestmark = pytest.mark.timeout(30)
NUMBERING_NS, SPAN_NS, THEIRS_NS = 7, 5, 1000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(observed_queues, "now_ns", clock.now_ns)
    monkeypatch.setattr(observed_queues, "cpu_ns", clock.cpu_ns)
    return clock


@pytest.fixture
def observation(clock: FakeClock) -> WorkersObservation:
    """Return one that takes its time for each number of a batch and each span."""

    def next_batch() -> int:
        clock.advance(NUMBERING_NS)
        return 0

    recorder = SimpleNamespace(clock=clock, own_ns=0, emit=lambda *_, **__: clock.advance(SPAN_NS))
    recording: Any = SimpleNamespace(
        recorder=recorder, closed=False, wants=lambda _: True, next_batch=next_batch
    )
    log: Any = SimpleNamespace(epoch=0)
    return WorkersObservation(KnownLoader(recording, Any), log, ahead=2, pins=False)


def test_what_noting_a_batch_takes_is_counted_once_and_nothing_of_torchs(
    clock: FakeClock, observation: WorkersObservation
) -> None:
    class Sampler:
        def __iter__(self) -> Iterator[list[int]]:
            clock.advance(THEIRS_NS)
            yield [3]

    queue = observed_queues.ObservedContext(multiprocessing, observation).Queue()
    receive = queue.arrival._receive

    def received() -> Any:
        clock.advance(THEIRS_NS)  # the wait for it
        return receive()

    queue.arrival._receive = received
    recorder = observation.recorder
    (index,) = observed_sampler(Sampler(), observation)
    assert recorder.own_ns == NUMBERING_NS + SPAN_NS
    queue.put((0, index))
    assert recorder.own_ns == NUMBERING_NS + SPAN_NS, "it has its number"
    assert queue.get(timeout=20) == (0, 3)
    assert recorder.own_ns == NUMBERING_NS + 2 * SPAN_NS
    queue.put((1, [4]))  # nothing was drawn for it
    assert recorder.own_ns == 2 * NUMBERING_NS + 2 * SPAN_NS
    queue.close()
