"""Pipelines of grain that the training process works off itself, in its loop and in threads."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "analysis" / "support"))
pytest.importorskip("grain", reason="its pipelines are what is recorded")
import grain
from reference import reference

import iobench
from iobench.analysis.replay.loader_run import LoaderRule
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import RankRun, Run, exposure
from iobench.cli import main
from iobench.profiles.reading import open_profile
from iobench.recording.kinds import Kind
from iobench.recording.session import record
from iobench.recording.span_file import Flag

NO_THREADS = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
READ_S, MAP_S = 0.003, 0.001
NS = 1_000_000_000


def spans_of(profile: Any, kind: Kind, label: str = "") -> Any:
    spans = profile.spans[profile.spans["kind"] == kind]
    return spans[spans["label"] == profile.string_number(label)] if label else spans


def first_rank(path: Path) -> RankRun:
    return Run.open(path).of_rank()


def delivered(profile: Any) -> Any:
    waits = spans_of(profile, Kind.WAIT)
    return waits[waits["batch"] >= 0]


def test_the_loop_makes_all_itself(
    tmp_path: Path, hooks: Any, fields: Callable[..., Any], scale: Callable[..., Any]
) -> None:
    data = grain.MapDataset.source(fields(12, READ_S)).shuffle(seed=1).map(scale(MAP_S)).batch(4)
    data = data.to_iter_dataset(NO_THREADS)
    with record(tmp_path / "run"):
        batches = [*data, *data]
    profile = open_profile(tmp_path / "run")
    waits = delivered(profile)
    assert len(np.unique(waits["batch"])) == len(batches) == 6
    assert waits["epoch"].tolist() == [0, 0, 0, 1, 1, 1]
    assert waits["nbytes"].tolist() == [4 * (8 * 8 * 4 + 8)] * 6
    whole = exposure(profile).whole
    all_waits = spans_of(profile, Kind.WAIT)
    assert sum(whole.exposed_ns.values()) == (all_waits["end_ns"] - all_waits["start_ns"]).sum()
    # Without workers nothing is hidden; sleeps may take longer, and never less.
    busy_ns = {each.stage: each.busy_ns for each in whole.stages}
    assert whole.exposed_ns["fused"] == busy_ns["fused"] >= 24 * READ_S * NS
    assert busy_ns["preprocess:Scale"] >= 24 * MAP_S * NS
    assert busy_ns["preprocess:Scale"] < busy_ns["fused"]
    assert len(spans_of(profile, Kind.COLLATE)) == 6
    (loader,) = profile.facts[0].loaders
    assert (loader.framework, loader.name, loader.batch_size) == ("grain", "Fields", 4)
    assert (loader.workers, loader.threads, loader.unseen) == (0, 0, [])
    (recorded,) = recorded_runs(first_rank(tmp_path / "run"))
    assert recorded.rule is LoaderRule.SERIAL


def test_advice_is_in_words_of_grain(
    tmp_path: Path, hooks: Any, fields: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    data = grain.MapDataset.source(fields(80, READ_S)).batch(2).to_iter_dataset(NO_THREADS)
    with record(tmp_path / "run"):
        for _ in range(3):
            assert sum(1 for _ in data) == 40
    assert main(["advise", str(tmp_path / "run")]) == 0
    told = capsys.readouterr().out
    assert "grain.DataLoader(..., worker_count=" in told
    assert "MultiprocessingOptions(num_workers=" in told
    assert "    DataLoader(" not in told


def test_threads_that_make_whole_batches_can_be_replayed(
    tmp_path: Path, hooks: Any, fields: Callable[..., Any]
) -> None:
    data = grain.MapDataset.source(fields(40, READ_S)).batch(4)
    data = data.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=3))
    with record(tmp_path / "run"):
        n_batches = sum(1 for _ in data)
    profile = open_profile(tmp_path / "run")
    made = spans_of(profile, Kind.FUSED)
    assert sorted(made["batch"].tolist()) == sorted(delivered(profile)["batch"].tolist())
    assert (made["end_ns"] - made["start_ns"] >= 4 * READ_S * NS).all()
    assert len(np.unique(made["thread"])) == 2
    (recorded,) = recorded_runs(first_rank(tmp_path / "run"))
    assert (recorded.rule, recorded.workers, recorded.reason) == (LoaderRule.THREADS, 2, "")
    assert len(recorded) == n_batches == 10


@pytest.mark.parametrize("keeps", [None, 3])
def test_samples_of_threads_are_of_the_batch_that_took_them(
    tmp_path: Path, hooks: Any, fields: Callable[..., Any], keeps: int | None
) -> None:
    data = grain.MapDataset.source(fields(40)).to_iter_dataset(
        grain.ReadOptions(num_threads=3, prefetch_buffer_size=16)
    )
    if keeps is not None:
        data = data.filter(lambda element: element["number"] % keeps == 0)
    with record(tmp_path / "run"):
        batches = [batch["number"].tolist() for batch in data.batch(5)]
    profile = open_profile(tmp_path / "run")
    made = spans_of(profile, Kind.FUSED)
    of_batch = {
        number: made["sample"][made["batch"] == number].tolist()
        for number in delivered(profile)["batch"].tolist()
    }
    for samples, batch in zip(of_batch.values(), batches, strict=True):
        # Of those that a filter drops, each is of the batch for which it was looked at.
        kept = [each for each in sorted(samples) if keeps is None or each % keeps == 0]
        assert kept == batch
    (recorded,) = recorded_runs(first_rank(tmp_path / "run"))
    assert recorded.rule is LoaderRule.OPAQUE
    assert recorded.reason == "its threads make samples of several batches at once"


def test_batches_are_those_of_a_plain_run(
    tmp_path: Path, fields: Callable[..., Any], jitter: Callable[..., Any]
) -> None:
    def batches() -> list[Any]:
        data = grain.MapDataset.source(fields(24)).seed(3).shuffle().random_map(jitter())
        loader = data.repeat(2).to_iter_dataset().batch(4)
        iterator = iter(loader)
        found = [next(iterator) for _ in range(3)]
        state = iterator.get_state()
        again = iter(loader)
        again.set_state(state)
        return [found, [*iterator], [*again], type(again).__name__, state]

    from iobench.jax import hooks

    plain = batches()
    hooks.install()
    try:
        with record(tmp_path / "run"):
            recorded = batches()
    finally:
        hooks.uninstall()
    np.testing.assert_equal(recorded, plain)
    assert "next" not in vars(type(iter(grain.MapDataset.range(2))))
    profile = open_profile(tmp_path / "run")
    (loader,) = profile.facts[0].loaders
    (unseen,) = loader.unseen
    assert unseen == "epochs: a pass of this loader goes over its samples 2 times; it counts as one"
    starts = spans_of(profile, Kind.WAIT, "startup")["detail"].tolist()
    assert [profile.strings[each] for each in starts] == ["loader-0", "loader-0 resumed"]


def test_a_pass_is_known_by_the_name_of_its_loader(
    tmp_path: Path, hooks: Any, fields: Callable[..., Any]
) -> None:
    names = {"iter": iter, "grain": grain, "fields": fields}
    script = (
        "val_data = grain.MapDataset.source(fields(8)).batch(4)\n"
        "train_data = grain.MapDataset.source(fields(16)).batch(4)\n"
        "for _ in train_data: pass\n"
        "for _ in val_data: pass\n"
    )
    with record(tmp_path / "run"):
        exec(script, names)
    deliveries = first_rank(tmp_path / "run").deliveries
    roles = deliveries.role[deliveries.batch >= 0].tolist()
    assert roles == ["training"] * 4 + ["validation"] * 2


class Numbers(grain.DatasetIterator):
    """An iterator of a user's own, that grain's statistics know nothing of."""

    def __init__(self, n_numbers: int) -> None:
        super().__init__()
        self.next, self.n_numbers = 0, n_numbers

    def __next__(self) -> Any:
        if self.next == self.n_numbers:
            raise StopIteration
        time.sleep(READ_S)
        self.next += 1
        return np.array([self.next])

    def get_state(self) -> dict[str, int]:
        return {"next": self.next}

    def set_state(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class OwnData(grain.IterDataset):
    def __iter__(self) -> Any:
        return Numbers(12)


def is_even(element: Any) -> bool:
    time.sleep(MAP_S)
    return bool(element[0] % 2 == 0)


def test_iterators_and_filters_of_the_users_are_told(tmp_path: Path, hooks: Any) -> None:
    with record(tmp_path / "run"):
        assert sum(1 for _ in OwnData()) == 12
        assert [each[:, 0].tolist() for each in OwnData().filter(is_even).batch(2)] == [
            [2, 4], [6, 8], [10, 12]
        ]  # fmt: skip
    profile = open_profile(tmp_path / "run")
    whole = exposure(profile).whole
    busy_ns = {each.stage: each.busy_ns for each in whole.stages}
    assert whole.exposed_ns["fused"] == busy_ns["fused"] >= 24 * READ_S * NS
    assert busy_ns["preprocess:is_even"] >= 12 * MAP_S * NS
    assert profile.facts[0].unseen == []


def test_pipelines_that_are_mixed_are_told_to_be(
    tmp_path: Path, hooks: Any, fields: Callable[..., Any]
) -> None:
    threads = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)
    one, other = (grain.MapDataset.source(fields(8)).to_iter_dataset(threads) for _ in range(2))
    with record(tmp_path / "run"):
        n_batches = sum(1 for _ in grain.IterDataset.mix([one, other]).batch(4))
    profile = open_profile(tmp_path / "run")
    assert len(delivered(profile)) == n_batches
    (recorded,) = recorded_runs(first_rank(tmp_path / "run"))
    assert recorded.rule is LoaderRule.OPAQUE
    assert recorded.reason.startswith("it mixes several pipelines")
    made = spans_of(profile, Kind.FUSED)
    assert np.isin(made["batch"][made["batch"] >= 0], delivered(profile)["batch"]).all()


def test_a_thread_ahead_of_the_loop_hands_on_what_it_made(
    tmp_path: Path, hooks: Any, fields: Callable[..., Any]
) -> None:
    data = grain.MapDataset.source(fields(12, READ_S)).to_iter_dataset(NO_THREADS).batch(3)
    ahead = grain.experimental.ThreadPrefetchIterDataset(data, prefetch_buffer_size=2)
    with record(tmp_path / "run"):
        assert [each["number"].tolist() for each in ahead] == [
            [0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]
        ]  # fmt: skip
    profile = open_profile(tmp_path / "run")
    for kind, n_spans in ((Kind.FUSED, 3), (Kind.COLLATE, 1)):
        made = spans_of(profile, kind)
        assert [(made["batch"] == each).sum() for each in delivered(profile)["batch"]] == (
            [n_spans] * 4
        )
    expected = {stage: ns for stage, ns in exposure(profile).whole.exposed_ns.items() if ns}
    assert reference(profile) == pytest.approx(expected, abs=20, rel=0.01)


def test_short_samples_are_summed(
    tmp_path: Path, hooks: Any, fields: Callable[..., Any], scale: Callable[..., Any]
) -> None:
    data = grain.MapDataset.source(fields(12, READ_S)).map(scale(MAP_S)).to_iter_dataset(NO_THREADS)
    with record(tmp_path / "run", detail="batch"):
        assert sum(1 for _ in data.batch(4).map(lambda batch: batch)) == 3
    profile = open_profile(tmp_path / "run")
    for kind, label, least_s in ((Kind.FUSED, "", READ_S), (Kind.PREPROCESS, "Scale", MAP_S)):
        made = spans_of(profile, kind, label)
        assert made["batch"].tolist() == delivered(profile)["batch"].tolist()
        assert (made["flags"] == Flag.SUMMED).all()
        assert (made["pieces"] == 4).all()
        assert (made["end_ns"] - made["start_ns"] >= 4 * least_s * NS).all()
    whole = exposure(profile).whole
    assert sum(each.busy_ns for each in whole.stages) == whole.wait_ns
    assert len(spans_of(profile, Kind.COLLATE)) == 3


def test_an_error_of_the_users_is_theirs(
    tmp_path: Path, hooks: Any, fields: Callable[..., Any]
) -> None:
    def fail(element: Any) -> Any:
        if element["number"] == 5:
            raise LookupError("number five")
        return element

    data = grain.MapDataset.source(fields(8)).map(fail).to_iter_dataset().batch(2)
    with record(tmp_path / "run"), pytest.raises(LookupError, match="number five"):
        for _ in data:
            pass
    profile = open_profile(tmp_path / "run")
    assert len(delivered(profile)) == 2
    assert len(spans_of(profile, Kind.WAIT, "failed")) == 1


def test_an_evaluation_between_batches_makes_no_evaluation_of_their_pass(
    tmp_path: Path, hooks: Any, fields: Callable[..., Any]
) -> None:
    """JAX has no optimiser whose steps tell; the loop keeps one iterator for all epochs."""
    data = grain.MapDataset.source(fields(16)).repeat(2).batch(4)
    other = grain.MapDataset.source(fields(8)).batch(4)
    with record(tmp_path / "run"):
        iterator = iter(data)
        for _ in range(2):
            assert len([next(iterator) for _ in range(4)]) == 4
            with iobench.stage("evaluate"):
                assert sum(1 for _ in other) == 2
            with iobench.stage("evaluate"):
                pass  # of something in memory
    deliveries = first_rank(tmp_path / "run").deliveries
    roles = {
        number: {*deliveries.role[(deliveries.loader == number) & (deliveries.batch >= 0)].tolist()}
        for number in (0, 1)
    }
    assert roles == {0: {""}, 1: {"evaluation"}}


def test_the_steps_that_are_asked_for(
    tmp_path: Path, hooks: Any, fields: Callable[..., Any]
) -> None:
    data = grain.MapDataset.source(fields(40)).to_iter_dataset(NO_THREADS).batch(2)
    ahead = grain.experimental.ThreadPrefetchIterDataset(data, prefetch_buffer_size=2)
    with record(tmp_path / "run", steps=range(8, 14)):
        assert sum(1 for _ in ahead) == 20
    profile = open_profile(tmp_path / "run")
    waits = delivered(profile)
    assert len(waits) == 6
    joined = spans_of(profile, Kind.COLLATE)
    # Of the first ones some were made before the window, and not recorded.
    assert np.isin(waits["batch"][4:], joined["batch"]).all()


def test_nothing_is_left_behind(hooks: Any, fields: Callable[..., Any]) -> None:
    class Own(grain.IterDataset):  # made while the hooks are there
        def __iter__(self) -> Any:
            return self._parent.__iter__()

    kinds = [grain.DataLoader, grain.MapDataset, Own]
    ours = [vars(kind)["__iter__"] for kind in kinds]
    data = Own(grain.MapDataset.source(fields(3)).to_iter_dataset())
    assert [each["number"] for each in data] == [0, 1, 2]
    hooks.uninstall()
    theirs = [vars(kind)["__iter__"] for kind in kinds]
    assert not any(each is before for each, before in zip(theirs, ours, strict=True))
    assert [each["number"] for each in data] == [0, 1, 2]
