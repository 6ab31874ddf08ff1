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


def test_a_kind_goes_by_its_name_and_anything_else_is_a_label(recorder):
    with activate(recorder):
        for name in ("read", "augment", "H2D", "submit_queue"):
            with stage(name):
                pass
    assert written(recorder) == [
        (Kind.READ, "", -1),
        (Kind.PREPROCESS, "augment", -1),
        (Kind.PREPROCESS, "H2D", -1),
        (Kind.SUBMIT_QUEUE, "", -1),
    ]


def test_several_sorts_of_loading_in_one_are_fused(recorder):
    with activate(recorder):
        for name in ("read+decode", "forward+backward", "read+", "+"):
            with stage(name):
                pass
    assert [(kind, label) for kind, label, _ in written(recorder)] == [
        (Kind.FUSED, "read+decode"),
        (Kind.PREPROCESS, "forward+backward"),
        (Kind.PREPROCESS, "read+"),
        (Kind.PREPROCESS, "+"),
    ]


def test_bytes_may_be_given_before_or_after(recorder):
    with activate(recorder):
        with stage("read", nbytes=5):
            pass
        with stage("read") as timed:
            timed.nbytes = 6
    assert [nbytes for _, _, nbytes in written(recorder)] == [5, 6]


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


def test_nothing_is_recorded_without_a_recording(recorder):
    with stage("read") as timed:
        timed.nbytes = 3
    assert timed.nbytes == -1
    assert stage("read") is stage("read")
    assert written(recorder) == []


def test_names_made_up_per_call_are_not_kept(recorder):
    from iobench.recording.stages import IDLE_LIMIT, _idle_stages

    for index in range(IDLE_LIMIT + 10):
        with stage(f"made up {index}"):
            pass
    assert len(_idle_stages) <= IDLE_LIMIT


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_decorated_function_is_timed_while_recording(recorder, when):
    def double(number: int) -> int:
        """Doc."""
        return 2 * number

    if when == "before":
        double = stage("augment", nbytes=4)(double)
    with activate(recorder):
        if when == "during":
            double = stage("augment", nbytes=4)(double)
        assert double(4) == 8
    assert double(number=5) == 10
    assert (double.__name__, double.__doc__) == ("double", "Doc.")
    assert written(recorder) == [(Kind.PREPROCESS, "augment", 4)]


def test_a_decorated_function_may_call_itself(recorder):
    @stage("walk")
    def depth(n):
        return n and depth(n - 1)

    with activate(recorder):
        depth(3)
    assert len(written(recorder)) == 4


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


def test_without_with_it_stays_active(recorder):
    activate(recorder)
    assert active_recorder() is recorder
    activate(None)
    assert active_recorder() is None
