"""What the drop-in records: the life of every batch, waits whose parts add up, and digests."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
sys.path.append(str(Path(__file__).parents[1] / "analysis" / "support"))
import drop_in_parts as parts
import torch
from reference import reference, without_cpu_waits
from slow_samples import Sleeping, SleepingCollate, spend

import iobench
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run
from iobench.findings.batch_digests import SamplesVerdict, compare_samples, delivered_samples
from iobench.recording.kinds import WORKER_KINDS, Kind
from iobench.recording.span_file import Flag
from iobench.torch import DataLoader, hooks, observing

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]
DETAIL = int(Flag.DETAIL)


@pytest.fixture
def recorded(tmp_path):
    """Return a function that records what another one does: the run, and its facts."""
    numbers = itertools.count()

    def record(use, **options):
        path = tmp_path / str(next(numbers))
        with iobench.record(path, **{"detail": "sample", **options}) as recording:
            use()
        return iobench.open_profile(path), recording.facts

    return record


def drain(*loaders):
    return sum(1 for loader in loaders for _ in loader)


def of_kind(profile, kind, label=""):
    spans = profile.spans
    return spans[(spans["kind"] == kind) & (spans["label"] == profile.string_number(label))]


def waits(profile):
    found = of_kind(profile, Kind.WAIT)
    return found[found["batch"] >= 0]


def one(spans, batch, flags=0):
    """Return the start and end of the only span of a batch."""
    chosen = spans[(spans["batch"] == batch) & ((spans["flags"] & DETAIL) == flags)]
    assert len(chosen) == 1, (batch, len(chosen))
    return int(chosen["start_ns"][0]), int(chosen["end_ns"][0])


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"in_order": False}],
                         ids=str)  # fmt: skip
def test_every_batch_has_all_its_spans_in_order(recorded, options):
    loader = DataLoader(parts.Plain(12), batch_size=3, num_workers=2, **options)
    profile, facts = recorded(lambda: drain(loader, loader))
    delivered = waits(profile)
    assert len(delivered) == 8
    assert facts.loaders[0].unseen == []
    assert set(delivered["nbytes"].tolist()) == {3 * 3 * 4 + 3 * 8}
    for batch in delivered["batch"].tolist():
        sampler, queue, collate, sent = (
            one(of_kind(profile, kind), batch)
            for kind in (Kind.SAMPLER, Kind.SUBMIT_QUEUE, Kind.COLLATE, Kind.SERIALISE)
        )
        unpickled, samples = (of_kind(profile, kind) for kind in (Kind.UNPICKLE, Kind.FUSED))
        (unpickled,) = unpickled[unpickled["batch"] == batch]
        samples = samples[samples["batch"] == batch]
        edges = [
            *sampler, *queue, int(samples["start_ns"].min()), int(samples["end_ns"].max()),
            *collate, *sent, int(unpickled["start_ns"]), int(unpickled["end_ns"]),
            one(delivered, batch)[1],
        ]  # fmt: skip
        assert edges == sorted(edges)
        first = 3 * (batch % 4)
        assert sorted(samples["sample"].tolist()) == list(range(first, first + 3))
        assert len({profile.processes[number].worker for number in samples["process"]}) == 1


@pytest.mark.parametrize("dataset", [parts.Staged, parts.StagedInSlots, parts.StagedMany])
@pytest.mark.parametrize("workers", [0, 1])
def test_read_decode_and_preprocess_are_apart(recorded, dataset, workers):
    methods = [vars(parts.Staged)[name] for name in ("read", "decode", "preprocess")]
    loader = DataLoader(dataset(6), batch_size=3, num_workers=workers)
    profile, _ = recorded(lambda: drain(loader))
    for kind in (Kind.READ, Kind.DECODE, Kind.PREPROCESS):
        spans = of_kind(profile, kind)
        spans = spans[(spans["flags"] & Flag.IO) == 0]
        assert len(spans) == 6
        assert set(spans["batch"].tolist()) == set(waits(profile)["batch"].tolist())
    makers = {profile.strings[detail] for detail in waits(profile)["detail"]}
    assert not workers or makers == {"worker-0"}
    assert [vars(parts.Staged)[name] for name in ("read", "decode", "preprocess")] == methods


def test_an_abandoned_pass_is_a_round_that_ends(recorded):
    loader = DataLoader(parts.Plain(40), batch_size=2, num_workers=1)

    def use():
        for _ in range(2):
            assert len(list(itertools.islice(loader, 3))) == 3

    profile, _ = recorded(use)
    assert len(of_kind(profile, Kind.OTHER, "round")) == 2
    assert len(waits(profile)) == 6
    assert len(of_kind(profile, Kind.SHUTDOWN)) == 2


class Killed(parts.Plain):
    def __getitem__(self, index):
        if index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_a_killed_worker_is_torchs_error_and_leaves_its_spans(recorded):
    loader = DataLoader(Killed(8), num_workers=1, collate_fn=parts.as_list)

    def use():
        with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid\(?s?\)? ?\d+\)"):
            drain(loader)

    profile, facts = recorded(use)
    assert len(of_kind(profile, Kind.WAIT, "failed")) == 1
    workers = [process for process in profile.processes if process.role == "worker"]
    assert [process.pid for process in workers] == facts.loaders[0].worker_pids


class OwnIterators(DataLoader):
    def _get_iterator(self):
        return iter([1, 2, 3, 4, 5, 6])


class WithEnd(DataLoader):
    def __del__(self):
        """Does nothing: but a copy of the loader would do it, too."""


@pytest.mark.parametrize(
    ("kind", "workers", "context", "unseen"),
    [
        (OwnIterators, 0, observing.CONTEXT, "OwnIterators makes iterators of its own"),
        (OwnIterators, 1, observing.CONTEXT, "OwnIterators makes iterators of its own"),
        (WithEnd, 1, observing.CONTEXT, "WithEnd has __slots__ or __del__"),
        (DataLoader, 1, "brand_new", f"torch {torch.__version__} is not known: it has no "),
        (DataLoader, 1, "", "they were started before the recording"),
    ],
)
def test_what_cannot_be_hooked_into_has_its_waits_seen(
    recorded, monkeypatch, kind, workers, context, unseen
):
    monkeypatch.setattr(observing, "CONTEXT", context or observing.CONTEXT)
    loader = kind(parts.Plain(6), num_workers=workers, persistent_workers=not context)
    if not context:
        drain(loader)
    profile, facts = recorded(lambda: drain(loader))
    (told,) = facts.loaders[0].unseen
    assert told.startswith(f"workers: {unseen}")
    assert len(waits(profile)) == 6


class UserLoader(torch.utils.data.DataLoader):
    def __iter__(self):
        yield from super().__iter__()


def test_hooks_see_every_loader_and_can_be_taken_out(recorded):
    before = torch.utils.data.DataLoader.__iter__
    hooks.install()
    try:
        hooks.install()
        kinds = (torch.utils.data.DataLoader, DataLoader, UserLoader)
        profile, facts = recorded(lambda: drain(*(kind(parts.Plain(4)) for kind in kinds)))
    finally:
        hooks.uninstall()
    assert torch.utils.data.DataLoader.__iter__ is before
    assert len(waits(profile)) == 12
    assert len(facts.loaders) == 3


def test_a_fork_that_trains_is_a_training_process_with_workers_of_its_own(recorded):
    loader = DataLoader(parts.Plain(12), batch_size=3, num_workers=1)

    def use():
        drain(DataLoader(parts.Plain(2)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, from Python 3.12 on
            pid = os.fork()
        if not pid:
            os._exit(0 if drain(loader) == 4 else 1)
        assert os.waitpid(pid, 0) == (pid, 0)

    exposure = iobench.exposure(recorded(use, detail="auto")[0])
    assert (exposure.whole.n_batches, exposure.missing_workers) == (4, ())
    assert {"fused", "collate"} <= {each.stage for each in exposure.whole.stages}


def test_a_loader_asked_without_gradients_alone_is_told_from_one_that_trains(recorded):
    train, check, both = (DataLoader(parts.Plain(4), batch_size=2) for _ in range(3))

    def use():
        drain(train)
        with torch.no_grad():
            drain(check, both)
        drain(both)

    profile, facts = recorded(use)
    assert [each.gradients for each in facts.loaders] == [True, False, True]
    assert [each.role for each in iobench.exposure(profile).loaders] == ["", "evaluation", ""]
    assert iobench.exposure(profile).job.wall_ns > 0


class Remembering(parts.Plain):
    def __init__(self, n):
        super().__init__(n)
        self.known = {}

    def __getitem__(self, place):
        if place not in self.known:
            self.known[place] = super().__getitem__(place)
        return self.known[place]


class Cached(parts.Plain):
    __getitem__ = functools.lru_cache(parts.Plain.__getitem__)


@pytest.mark.parametrize(
    ("dataset", "retains"),
    [
        (parts.Plain(8), False),
        (Cached(8), True),
        (torch.utils.data.Subset(Remembering(9), range(8)), True),
    ],
    ids=["nothing", "lru_cache", "dict of a subset"],
)
def test_what_a_dataset_keeps_in_its_workers_is_noted(recorded, dataset, retains):
    loader = DataLoader(dataset, batch_size=2, num_workers=1)
    profile, _ = recorded(lambda: drain(loader, loader))
    (run,) = recorded_runs(Run(profile).of_rank())
    assert run.retains == retains


# ---- stages that take known times: attributed as an independent reference does. Times are
# measured: compared is what each rule makes of the same ones


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    ("workers", "step_ms", "epochs", "options"),
    [
        (0, 1, 1, {}),
        (2, 1, 2, {"persistent_workers": True}),
        (1, 9, 1, {}),
        *((workers, step_ms, 1, {}) for workers in (2, 4) for step_ms in (1, 9)),
        *((2, 1, 2, each) for each in ({}, {"in_order": False}, {"prefetch_factor": 1})),
    ],
)
def test_what_is_waited_for_is_what_the_reference_says(recorded, workers, step_ms, epochs, options):
    loader = DataLoader(
        Sleeping(24), batch_size=2, num_workers=workers, collate_fn=SleepingCollate(), **options
    )

    def use():
        for _ in range(epochs):
            for _ in loader:
                spend(step_ms)

    profile = without_cpu_waits(recorded(use)[0])
    whole = iobench.exposure(profile).whole
    delivered = waits(profile)["batch"].tolist()
    assert whole.n_batches == len(set(delivered)) == 12 * epochs
    assert delivered == sorted(delivered) or "in_order" in options
    all_waits = profile.spans[profile.spans["kind"] == Kind.WAIT]
    assert whole.wait_ns == int((all_waits["end_ns"] - all_waits["start_ns"]).sum())
    assert sum(whole.exposed_ns.values()) == whole.wait_ns
    assert whole.wait_ns + whole.own_ns + whole.compute_ns == whole.wall_ns
    for row in whole.stages:
        assert 0 <= row.exposed_ns <= row.busy_ns
        assert workers or row.kind not in WORKER_KINDS or row.hidden_ns == 0
    expected = reference(profile)
    assert sum(expected.values()) == whole.wait_ns
    for stage in expected | whole.exposed_ns:
        apart = abs(expected.get(stage, 0) - whole.exposed_ns.get(stage, 0))
        assert apart <= 0.01 * expected.get(stage, 0) + len(all_waits), stage


# ---- digests: the same for workers, threads and torch


class Numbers(torch.utils.data.Dataset):
    """Samples of two arrays, one of them not contiguous, and their number."""

    def __len__(self):
        return 12

    def __getitem__(self, number):
        if isinstance(number, list):  # whole batches of lists of numbers
            made = [self[each] for each in number]
            return {name: np.stack([sample[name] for sample in made]) for name in made[0]}
        field = np.arange(number, number + 8, dtype="<f4")[::2]
        return {"field": field, "number": number}


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from (Numbers()[number] for number in range(12))


@pytest.fixture
def digested(recorded):
    """Return a function that records a loader: the samples it delivered, and the run."""
    pytest.importorskip("xxhash", reason="digests need the extra 'digest'")

    def deliver(dataset, *, epochs=1, **options):
        loader = DataLoader(dataset, **options)
        profile, _ = recorded(lambda: drain(*[loader] * epochs), digests=True, detail="auto")
        return delivered_samples(Run(profile)), profile

    return deliver


@pytest.mark.parametrize("workers", [0, 1])
def test_digests_are_the_same_however_a_loader_makes_its_batches(digested, workers):
    first, _ = digested(Numbers(), batch_size=5)
    lists = torch.utils.data.BatchSampler(range(12), 5, drop_last=False)
    for dataset, options in (
        (Numbers(), {"batch_size": 5}),
        (Numbers(), {"sampler": lists, "batch_size": None}),
        (Stream(), {"batch_size": 5}),
    ):
        other, profile = digested(dataset, num_workers=workers, **options)
        assert compare_samples(first, other).verdict is SamplesVerdict.SAME_ORDER, options
        labels = {profile.strings[label] for label in profile.spans["label"].tolist()}
        assert "digest" in labels  # what it cost is a stage of its own
    other, _ = digested(Numbers(), batch_size=None, num_workers=workers, epochs=2)
    assert [(each.epoch, each.n_samples) for each in other.epochs.values()] == [(0, 12), (1, 12)]
    assert [len(each.batches) for each in other.epochs.values()] == [12, 12]
    assert compare_samples(first, other).why_unknown == "batches of other sizes"
