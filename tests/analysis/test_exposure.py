"""Exposure of runs that are odd in one way: without compute, batches, an end."""

from schedules import exposed, pool

from iobench.analysis.run import exposure
from iobench.recording.kinds import Kind
from tests.support.sketched_runs import CONSUMER, SketchedRun


def test_an_instant_more_of_readiness_moves_an_instant_of_blame():
    def blamed(ready):
        sketch = SketchedRun({"workers": 1})
        sketch.submit(0, 0, 0, 0)
        sketch.add(("worker", 0), Kind.READ, 0, ready, batch=0)
        sketch.wait(0, 1000, 1100, "worker-0")
        return exposed(sketch.data()).get("read", 0)

    assert [blamed(ready) for ready in (998, 1000, 1001, 1002, 1100)] == [0, 0, 1, 2, 100]


def test_nothing_delivered():
    figures = exposure(SketchedRun({"workers": 2, "expected_workers": ["worker-0"]}).data())
    assert (figures.whole.wall_ns, figures.whole.wait, figures.steady) == (0, None, None)
    assert figures.missing_workers == ("worker-0",)


def test_several_rounds_each_with_their_own_fill_and_nothing_between():
    sketch = SketchedRun({"workers": 0, "prefetch": 0})
    for number, start in enumerate((0, 10_000)):
        sketch.round(start, start + 100, number)
        for step in range(3):
            begin = start + 30 * step
            sketch.add(CONSUMER, Kind.READ, begin, begin + 20, batch=3 * number + step)
            sketch.wait(3 * number + step, begin, begin + 20, "consumer")
    figures = exposure(sketch.data())
    assert (figures.n_rounds, figures.whole.wall_ns, figures.whole.wait_ns) == (2, 200, 120)
    assert (figures.steady.n_batches, figures.steady.wall_ns) == (4, 140)


def test_a_killed_round_ends_with_its_last_span():
    sketch = pool([[5, 3, 1]] * 4, workers=1, step_ns=50)
    spans = [s for s in sketch.spans if s["kind"] != Kind.OTHER and s.get("label") != "shutdown"]
    killed = sketch.with_spans(spans)
    killed.add(CONSUMER, Kind.FORWARD, 159, 180)
    figures = exposure(killed.data())
    assert figures.whole.wall_ns == 180
