"""``stage``: what it writes while a recording is active, and that it is nothing else."""

import pytest

from iobench.errors import OptionError
from iobench.recording.activation import activate, active_recorder
from iobench.recording.kinds import Kind
from iobench.recording.recorder import Recorder
from iobench.recording.span_reader import read_span_file
from iobench.recording.stages import stage
from iobench.testing import FakeClock


@pytest.fixture
def clock():
    return FakeClock(start_ns=10)


@pytest.fixture
def recorder(tmp_path, clock):
    with Recorder(tmp_path, role="consumer", clock=clock) as recorder:
        yield recorder


def written(recorder):
    file = read_span_file(recorder.path)
    return [(Kind(s["kind"]), file.strings[s["label"]], int(s["nbytes"])) for s in file.spans]


@pytest.mark.parametrize(
    ("name", "kind", "label"),
    [
        ("read", Kind.READ, ""),
        ("submit_queue", Kind.SUBMIT_QUEUE, ""),
        ("augment", Kind.PREPROCESS, "augment"),
        ("H2D", Kind.PREPROCESS, "H2D"),
        ("read+decode", Kind.FUSED, "read+decode"),
        ("forward+backward", Kind.PREPROCESS, "forward+backward"),
        ("read+", Kind.PREPROCESS, "read+"),
    ],
)
def test_a_kind_goes_by_its_name_and_anything_else_is_a_label(recorder, name, kind, label):
    with stage(name) as idle:
        idle.nbytes = 3
    with activate(recorder):
        with stage(name, nbytes=5):
            pass
        with stage(name) as timed:
            timed.nbytes = 6
    assert (idle.nbytes, stage(name).nbytes) == (-1, -1), "nothing is recorded"
    assert written(recorder) == [(kind, label, 5), (kind, label, 6)]


def test_nested_stages_carry_the_position_and_exact_times(recorder, clock):
    with activate(recorder):
        recorder.position(3, 1, 8)
        with stage("read"):
            clock.advance(5)
            with stage("open"):
                clock.advance(2)
    spans = read_span_file(recorder.path).spans
    assert spans[["start_ns", "end_ns"]].tolist() == [(15, 17), (10, 17)]
    assert spans[["batch", "epoch", "sample"]].tolist() == [(3, 1, 8)] * 2


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_decorated_function_is_timed_while_recording(recorder, when):
    def depth(number: int) -> int:
        """Doc."""
        return number and 1 + depth(number=number - 1)

    if when == "before":
        depth = stage("augment", nbytes=4)(depth)
    with activate(recorder):
        if when == "during":
            depth = stage("augment", nbytes=4)(depth)
        assert depth(2) == 2
    assert depth(number=5) == 5
    assert (depth.__name__, depth.__doc__) == ("depth", "Doc.")
    assert written(recorder) == [(Kind.PREPROCESS, "augment", 4)] * 3


def generator():
    yield 1


async def coroutine():
    return 1


@pytest.mark.parametrize("function", [generator, coroutine])
def test_functions_whose_call_does_no_work_are_refused(function):
    with pytest.raises(OptionError, match=r"cannot decorate .*use 'with stage"):
        stage("read")(function)


def test_exceptions_pass_untouched_and_the_span_is_written(recorder):
    error = KeyError("the user's own")
    with activate(recorder), pytest.raises(KeyError) as caught, stage("augment"):
        raise error
    assert caught.value is error
    assert written(recorder) == [(Kind.PREPROCESS, "augment", -1)]


def test_activating_takes_effect_at_once_and_is_undone(recorder):
    with activate(recorder) as inside:
        assert inside is active_recorder() is recorder
        with activate(None):
            assert active_recorder() is None
        assert active_recorder() is recorder
    assert active_recorder() is None
    activate(recorder)
    assert active_recorder() is recorder
    activate(None)
    assert active_recorder() is None
