"""A script's recording sees the waits for a ring, and what its threads did for which batch."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from ring_sources import NumberSource

import iobench
from iobench.analysis.replay.loader_run import LoaderRule
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run, exposure
from iobench.errors import SampleError
from iobench.loaders.ring.loader import RingLoader
from iobench.loaders.ring.order import BatchOrder
from iobench.recording.kinds import Kind


def ring(n_samples=12, batch_size=4, **source):
    return RingLoader(
        NumberSource(n_samples, **source), BatchOrder(n_samples, batch_size), threads=2
    )


def waits_of(profile):
    spans = profile.spans[profile.spans["kind"] == Kind.WAIT]
    return spans[np.argsort(spans["start_ns"])]


def test_every_epoch_is_a_round_and_every_batch_has_its_reading(tmp_path):
    with iobench.record(tmp_path / "run"):
        loader = ring()
        for _ in range(3):
            assert sum(len(batch["number"]) for batch in loader) == 12
        loader.close()
    profile = iobench.open_profile(tmp_path / "run")
    waits = waits_of(profile)
    brought = waits[waits["batch"] >= 0]
    assert brought["batch"].tolist() == list(range(9))
    assert brought["epoch"].tolist() == [0] * 3 + [1] * 3 + [2] * 3
    assert set(brought["nbytes"].tolist()) == {4 * loader.spec.nbytes}
    assert [profile.strings[label] for label in waits["label"][waits["batch"] < 0]] == [
        "shutdown"
    ] * 3
    reads = profile.spans[profile.spans["kind"] == Kind.READ]
    assert sorted(reads["batch"].tolist()) == list(range(9))
    figures = exposure(profile)
    assert (figures.n_rounds, figures.whole.n_batches, figures.whole.n_samples) == (3, 9, 36)
    assert sum(figures.whole.exposed_ns.values()) == figures.whole.wait_ns
    (told,) = figures.loaders
    assert (told.framework, told.name, told.threads) == ("native", "NumberSource", 2)
    (run,) = recorded_runs(Run(profile).of_rank())
    assert (run.rule, len(run)) == (LoaderRule.THREADS, 9)


@pytest.mark.parametrize("how", ["forgotten", "closed", "failed", "outlives"])
def test_a_pass_that_is_left_ends_its_round(tmp_path, how):
    with iobench.record(tmp_path / "run") as recording:
        loader = ring(broken=9 if how == "failed" else -1)
        begun = iter(loader)
        next(begun)
        if how == "closed":
            begun.close()
        if how == "failed":
            with pytest.raises(SampleError, match="sample 9"):
                list(begun)
        if how != "outlives":
            del begun
        gc.collect()
        left_ns = recording.clock.now_ns()
    profile = iobench.open_profile(tmp_path / "run")
    if how == "outlives":  # it goes on, and nothing of that is recorded
        assert (len(list(begun)), len(list(loader))) == (2, 3)
        assert iobench.exposure(profile).whole.n_batches == 1
    else:
        rounds = profile.spans[profile.spans["label"] == profile.string_number("round")]
        assert len(rounds) == 1
        assert rounds["end_ns"][0] <= left_ns
        assert exposure(profile).n_failed_waits == (how == "failed")
    loader.close()
