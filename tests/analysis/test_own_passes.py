"""What a loop reads by itself, keeps in memory, or does between loader and model: to the ns."""

import pytest

from iobench.analysis.exposure_figures import BEFORE_FORWARD
from iobench.recording.facts import LoaderFacts
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import Anchor
from tests.support.sketched_runs import CONSUMER, SketchedRun


class Loop:
    """A training script in one thread, on a clock of its own."""

    def __init__(self):
        self.run = SketchedRun(kind="script")
        self.run.facts = {"started_ns": 0}
        self.now = self.batch = 0

    def add(self, kind, spent_ns, *, thread=0, **fields):
        self.run.add(CONSUMER, kind, self.now, self.now + spent_ns, thread=thread, **fields)
        self.now += spent_ns

    def idle(self, spent_ns):
        self.now += spent_ns

    def step(self, *, forward_ns=3, detail=""):
        if forward_ns:
            self.add(Kind.FORWARD, forward_ns)
        self.add(Kind.BACKWARD, 5)
        self.add(Kind.STEP, 2, detail=detail)

    def wait(self, spent_ns, *, number=0, loader=0, label="", detail="consumer"):
        batch = -1 if label else self.batch
        self.batch += not label
        self.run.wait(batch, self.now, self.now + spent_ns, detail, sample=number, label=label)
        self.now += spent_ns

    def passed(self, n_batches, *, number=0, wait_ns=10, then=lambda: None, generator=None):
        """A pass over a loader whose batches the loop makes itself; then what is done with each."""
        start_ns = self.now
        self.wait(1, number=number, label="startup", detail=f"loader-{number}")
        for place in range(n_batches):
            self.wait(wait_ns, number=number)
            if generator is not None and not place:
                self.run.add(
                    CONSUMER, Kind.OTHER, self.now, self.now, sample=number, label="between",
                    detail=generator, flags=Flag.DETAIL,
                )  # fmt: skip
            then()
        self.wait(2, number=number, label="shutdown")
        self.run.add(
            CONSUMER, Kind.OTHER, start_ns, self.now, sample=number, label="round",
            detail=f"loader-{number}",
        )  # fmt: skip

    def of_rank(self, *loaders):
        self.run.loaders = [LoaderFacts(n, "torch", "DataLoader", name) for n, name in
                            enumerate(loaders)]  # fmt: skip
        self.run.process = {"anchors": (Anchor(0, 0), Anchor(self.now, self.now))}
        rank = self.run.open().of_rank()
        for part in (rank.exposure.whole, rank.exposure.steady):
            if part is not None:
                assert sum(part.exposed_ns.values()) == part.wait_ns
                between_ns = sum(each or 0 for each in part.between_ns.values())
                assert part.wait_ns + between_ns + part.own_ns + part.compute_ns == part.wall_ns
        return rank


def part_ns(rank):
    return {each.part: each.ns for each in rank.exposure.job.parts if each.ns}


def test_what_a_loop_reads_between_its_steps_is_its_wait():
    loop = Loop()
    loop.add(Kind.READ, 100)  # before the first step
    loop.step()
    for _ in range(3):
        loop.idle(1)
        loop.add(Kind.READ, 20)
        loop.idle(4)
        loop.add(Kind.DECODE, 30)
        loop.idle(6)
        loop.step()
    rank = loop.of_rank()
    whole = rank.exposure.whole
    assert whole.exposed_ns == {"read": 60, "decode": 90}
    assert whole.wait_ns == 150
    assert whole.between_ns == {BEFORE_FORWARD: 3 * (4 + 6)}
    assert whole.wall_ns == 10 + 3 * (1 + 20 + 4 + 30 + 6 + 10)
    assert whole.n_batches == 4
    assert rank.exposure.steps.n_steps == 4
    assert [each.name for each in rank.exposure.loaders] == ["the loop itself"]
    parts = part_ns(rank)
    assert (parts["initial_load"], parts["train_wait"]) == (100, 150)


def test_without_forward_passes_nothing_is_known_to_lie_before_them():
    loop = Loop()
    for _ in range(4):
        loop.add(Kind.FUSED, 20, label="read+decode")
        loop.idle(7)
        loop.step(forward_ns=0)
    whole = loop.of_rank().exposure.whole
    assert whole.exposed_ns["fused:read+decode"] == whole.wait_ns == 60
    assert whole.between_ns == {}
    assert whole.compute_ns == 4 * 7 + 3 * 7


@pytest.mark.parametrize("kind", [Kind.CHECKPOINT, Kind.STAGE_IN])
def test_what_other_work_of_a_loop_reads_is_no_wait(kind):
    loop = Loop()
    for _ in range(4):
        loop.step()
        loop.run.add(CONSUMER, Kind.READ, loop.now + 2, loop.now + 9)
        loop.add(kind, 11)
        loop.add(Kind.READ, 5)
    assert loop.of_rank().exposure.whole.exposed_ns == {"read": 15}


def test_a_loop_that_few_reads_serve_is_not_said_to_wait_for_nothing_else():
    loop = Loop()
    for number in range(10):
        if number in (3, 6):
            loop.add(Kind.READ, 50)
        loop.idle(30)
        loop.step()
    rank = loop.of_rank()
    assert not rank.exposure.has_consumer
    assert rank.exposure.unjoined_ns == 9 * 30 + 2 * 50


def test_reads_of_other_threads_are_not_known_to_be_waited_for():
    loop = Loop()
    for _ in range(4):
        loop.step()
        loop.add(Kind.READ, 500_000_000, thread=1)
    rank = loop.of_rank()
    assert rank.exposure.unjoined_ns == 1_500_000_000
    assert "initial_load" not in part_ns(rank)
    assert rank.exposure.job.load_ns == 0


def test_reads_of_a_script_without_steps_are_no_initial_load():
    loop = Loop()
    for _ in range(4):
        loop.add(Kind.READ, 10)
        loop.idle(100)
    job = loop.of_rank().exposure.job
    assert (job.load_ns, job.reload_ns, job.part("initial_load").ns) == (40, 40, 0)
    assert any("once or in a loop" in text for text in job.unknown)


def test_what_is_read_within_a_pass_of_a_loader_is_waited_for_too():
    loop = Loop()

    def then():
        loop.idle(4)
        loop.add(Kind.READ, 8)
        loop.idle(5)
        loop.step()

    loop.passed(3, then=then, generator="")
    loop.add(Kind.READ, 1_000)  # after it
    whole = loop.of_rank("D").exposure.whole
    assert whole.exposed_ns["read"] == 3 * 8
    assert whole.wait_ns == 1 + 3 * 10 + 2 + 3 * 8
    assert whole.between_ns == {BEFORE_FORWARD: 3 * 9}
    assert whole.n_batches == 3


def test_batches_taken_before_the_first_step_are_an_initial_load():
    loop = Loop()
    loop.passed(4, wait_ns=100)
    for _ in range(3 * 4):
        loop.idle(1)
        loop.step()
    rank = loop.of_rank("D")
    exposure, parts = rank.exposure, part_ns(rank)
    assert (exposure.n_initial, exposure.initial_ns) == (4, 1 + 4 * 100 + 2)
    assert (exposure.whole.n_batches, exposure.whole.wait_ns) == (12, 0)
    assert exposure.whole.wall_ns == 12 * 11 - 1
    assert parts["initial_load"] == 403
    assert "train_wait" not in parts


@pytest.mark.parametrize("change", ["worked on", "for each epoch", "one batch", "evaluation"])
def test_other_passes_before_the_first_step_are_none(change):
    loop = Loop()
    then = (lambda: loop.idle(9)) if change == "worked on" else (lambda: None)
    if change == "evaluation":
        loop.wait(1, label="startup", detail="loader-0 validation")
    loop.passed(1 if change == "one batch" else 4, then=then)
    for _ in range(4):
        loop.step()
    if change == "for each epoch":
        loop.passed(4, number=1)
        for _ in range(4):
            loop.step()
    assert loop.of_rank("D", "D").exposure.n_initial == 0


@pytest.mark.parametrize("generator", ["", "regridded", None])
def test_what_lies_between_loader_and_model_is_a_part_of_its_own(generator):
    loop = Loop()

    def then():
        loop.idle(30)
        loop.add(Kind.H2D, 4)  # named: of what is computed
        loop.idle(1)
        loop.step()

    loop.passed(5, then=then, generator=generator)
    whole = loop.of_rank("D").exposure.whole
    known = {} if generator is None else {generator or BEFORE_FORWARD: 5 * 31}
    assert whole.between_ns == known
    assert whole.compute_ns == 5 * (4 + 10) + (0 if known else 5 * 31)


def test_a_forward_pass_on_several_batches_follows_all_of_them():
    loop, count = Loop(), iter(range(100))

    def then():
        loop.idle(7)
        if next(count) % 2:
            loop.step()

    loop.passed(4, then=then, generator="pairs")
    assert loop.of_rank("D").exposure.whole.between_ns == {"pairs": 4 * 7}


def test_a_generator_before_no_recorded_forward_pass_is_said_without_its_time():
    loop = Loop()
    loop.passed(4, then=lambda: loop.step(forward_ns=0), generator="regridded")
    assert loop.of_rank("D").exposure.whole.between_ns == {"regridded": None}
