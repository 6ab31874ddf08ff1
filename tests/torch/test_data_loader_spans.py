"""What the drop-in records: the life of every batch, and waits whose parts add up."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import warnings

import pytest

pytest.importorskip("torch")
import drop_in_parts as parts
import torch

import iobench
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.torch import DataLoader, hooks, observing

pytestmark = pytest.mark.timeout(60)
DETAIL = int(Flag.DETAIL)


def recorded(path, use, **options):
    with iobench.record(path, detail="sample", **options) as recording:
        use()
    return iobench.open_profile(path), recording.facts


def drain(loader):
    return sum(1 for _ in loader)


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


@pytest.mark.quick_cases(0)
@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"in_order": False}],
                         ids=str)  # fmt: skip
def test_every_batch_has_all_its_spans_in_order(tmp_path, options):
    loader = DataLoader(parts.Plain(12), batch_size=3, num_workers=2, **options)
    profile, facts = recorded(tmp_path / "run", lambda: [drain(loader) for _ in range(2)])
    delivered = waits(profile)
    assert len(delivered) == 8
    assert facts.loaders[0].unseen == []
    for batch in delivered["batch"].tolist():
        sampler, queue, collate, sent = (
            one(of_kind(profile, kind), batch)
            for kind in (Kind.SAMPLER, Kind.SUBMIT_QUEUE, Kind.COLLATE, Kind.SERIALISE)
        )
        unpickled = of_kind(profile, Kind.UNPICKLE)
        unpickled = unpickled[unpickled["batch"] == batch]
        samples = of_kind(profile, Kind.FUSED)
        samples = samples[samples["batch"] == batch]
        assert len(unpickled) == 1
        assert len(samples) == 3
        edges = [
            *sampler, *queue, int(samples["start_ns"].min()), int(samples["end_ns"].max()),
            *collate, *sent, int(unpickled["start_ns"][0]), int(unpickled["end_ns"][0]),
            one(delivered, batch)[1],
        ]  # fmt: skip
        assert edges == sorted(edges)
        assert sorted(samples["sample"].tolist()) == list(
            range(3 * (batch % 4), 3 * (batch % 4) + 3)
        )
        assert len({profile.processes[number].worker for number in samples["process"]}) == 1
        nbytes = set(delivered["nbytes"].tolist())
        assert nbytes == {3 * 3 * 4 + 3 * 8}


@pytest.mark.parametrize("dataset", [parts.Staged, parts.StagedInSlots, parts.StagedMany])
@pytest.mark.parametrize("workers", [0, 1])
def test_read_decode_and_preprocess_are_apart(tmp_path, dataset, workers):
    methods = [vars(parts.Staged)[name] for name in ("read", "decode", "preprocess")]
    loader = DataLoader(dataset(6), batch_size=3, num_workers=workers)
    profile, _ = recorded(tmp_path / "run", lambda: drain(loader))
    for kind in (Kind.READ, Kind.DECODE, Kind.PREPROCESS):
        spans = of_kind(profile, kind)
        spans = spans[(spans["flags"] & Flag.IO) == 0]
        assert len(spans) == 6
        assert set(spans["batch"].tolist()) == set(waits(profile)["batch"].tolist())
    makers = {profile.strings[detail] for detail in waits(profile)["detail"]}
    assert not workers or makers == {"worker-0"}
    assert [vars(parts.Staged)[name] for name in ("read", "decode", "preprocess")] == methods


def test_an_abandoned_pass_is_a_round_that_ends(tmp_path):
    loader = DataLoader(parts.Plain(40), batch_size=2, num_workers=1)

    def use():
        for _ in range(2):
            assert len(list(itertools.islice(loader, 3))) == 3

    profile, _ = recorded(tmp_path / "run", use)
    assert len(of_kind(profile, Kind.OTHER, "round")) == 2
    assert len(waits(profile)) == 6
    assert len(of_kind(profile, Kind.SHUTDOWN)) == 2


class Killed(parts.Plain):
    def __getitem__(self, index):
        if index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_a_killed_worker_is_torchs_error_and_leaves_its_spans(tmp_path):
    loader = DataLoader(Killed(8), num_workers=1, collate_fn=parts.as_list)

    def use():
        with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid\(?s?\)? ?\d+\)"):
            drain(loader)

    profile, facts = recorded(tmp_path / "run", use)
    assert len(of_kind(profile, Kind.WAIT, "failed")) == 1
    workers = [process for process in profile.processes if process.role == "worker"]
    assert [process.pid for process in workers] == facts.loaders[0].worker_pids


def test_workers_started_before_are_said_not_to_be_seen(tmp_path):
    loader = DataLoader(parts.Plain(6), num_workers=1, persistent_workers=True)
    assert drain(loader) == 6
    profile, facts = recorded(tmp_path / "run", lambda: [drain(loader), drain(loader)])
    assert facts.loaders[0].unseen == ["workers: they were started before the recording"]
    assert len(waits(profile)) == 12


class OwnIterators(DataLoader):
    def _get_iterator(self):
        return iter([1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize(
    ("kind", "workers", "context", "unseen"),
    [
        (OwnIterators, 0, observing.CONTEXT, "OwnIterators makes iterators of its own"),
        (OwnIterators, 1, observing.CONTEXT, "OwnIterators makes iterators of its own"),
        (DataLoader, 1, "brand_new", f"torch {torch.__version__} is not known: it has no "),
    ],
)
def test_what_cannot_be_hooked_into_has_its_waits_seen(
    tmp_path, monkeypatch, kind, workers, context, unseen
):
    monkeypatch.setattr(observing, "CONTEXT", context)
    loader = kind(parts.Plain(6), num_workers=workers)
    profile, facts = recorded(tmp_path / "run", lambda: drain(loader))
    (told,) = facts.loaders[0].unseen
    assert told.startswith(f"workers: {unseen}")
    assert len(waits(profile)) == 6


class UserLoader(torch.utils.data.DataLoader):
    def __iter__(self):
        yield from super().__iter__()


def test_hooks_see_every_loader_and_can_be_taken_out(tmp_path):
    before = torch.utils.data.DataLoader.__iter__
    hooks.install()
    try:
        hooks.install()
        loaders = [kind(parts.Plain(4)) for kind in
                   (torch.utils.data.DataLoader, DataLoader, UserLoader)]  # fmt: skip
        profile, facts = recorded(tmp_path / "run", lambda: [drain(each) for each in loaders])
    finally:
        hooks.uninstall()
    assert torch.utils.data.DataLoader.__iter__ is before
    assert len(waits(profile)) == 12
    assert len(facts.loaders) == 3


def test_a_fork_that_trains_is_a_training_process_with_workers_of_its_own(tmp_path):
    loader = DataLoader(parts.Plain(12), batch_size=3, num_workers=1)
    with iobench.record(tmp_path / "run"):
        drain(DataLoader(parts.Plain(2)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, from Python 3.12 on
            pid = os.fork()
        if not pid:
            os._exit(0 if drain(loader) == 4 else 1)
        assert os.waitpid(pid, 0) == (pid, 0)
    exposure = iobench.exposure(iobench.open_profile(tmp_path / "run"))
    assert (exposure.whole.n_batches, exposure.missing_workers) == (4, ())
    assert {"fused", "collate"} <= {each.stage for each in exposure.whole.stages}


def test_a_loader_asked_without_gradients_alone_is_told_from_one_that_trains(tmp_path):
    train, check, both = (DataLoader(parts.Plain(4), batch_size=2) for _ in range(3))

    def use():
        drain(train)
        with torch.no_grad():
            drain(check)
            drain(both)
        drain(both)

    profile, facts = recorded(tmp_path / "run", use)
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
        (Remembering(8), True),
        (Cached(8), True),
        (torch.utils.data.Subset(Remembering(9), range(8)), True),
    ],
    ids=["nothing", "dict", "lru_cache", "of a subset"],
)
def test_what_a_dataset_keeps_in_its_workers_is_noted(tmp_path, dataset, retains):
    loader = DataLoader(dataset, batch_size=2, num_workers=1)
    recorded(tmp_path / "run", lambda: [drain(loader) for _ in range(2)])
    (run,) = recorded_runs(Run(tmp_path / "run").of_rank())
    assert run.retains == retains
