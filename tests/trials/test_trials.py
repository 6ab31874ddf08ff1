"""Configurations changed by what is advised, and what is made of their turns."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from iobench.errors import TrialError
from iobench.findings.advice.proposals import Evidence, Gain, Lever, change
from iobench.profiling.config import RunConfig
from iobench.trials import configurations
from iobench.trials.configurations import baseline_config, changed_config, try_changes
from iobench.trials.interleaving import interleave, turn_order

CONFIG = RunConfig(
    targets=("maelstrom-ens10",),
    formats=("source", "tfrecord"),
    framework="torch,native",
    pipelines=("upstream", "own"),
    epochs=3,
    out=Path("kept"),
    darshan=("auto",),
)


def way(n_batches=10, **told):
    """Return what of a way of loading is looked at."""
    own = {"format": "source", "framework": "native", "pipeline": "upstream", "named_store": None}
    judged = SimpleNamespace(n_batches=n_batches, wall_ns=10**8)
    return SimpleNamespace(**{**own, **told}, judged=judged)


BASE = baseline_config(CONFIG, way())
SCREEN = SimpleNamespace(note=print, progress=None)


def advised(**settings):
    return change((Lever.CACHE,), settings, Gain(Evidence.REPLAYED, 0.5, 0.4, 0.6, True))


def test_the_baseline_is_one_way_alone_and_short():
    assert (BASE.formats, BASE.framework, BASE.pipelines) == (("source",), "native", ("upstream",))
    assert (BASE.batches, BASE.duration_s, BASE.epochs) == (200, None, None)
    # 3 s of batches of 50 ms; no more than it had, and no fewer than show a steady state.
    assert baseline_config(CONFIG, way(n_batches=2)).batches == 60
    short = replace(CONFIG, epochs=None, batches=40)
    assert baseline_config(short, way(n_batches=2)).batches == 40
    assert baseline_config(CONFIG, way(n_batches=0.1)).batches == 12
    assert (BASE.out, BASE.darshan) == (None, ("off",))


def test_a_change_is_made_and_nothing_else():
    stored = changed_config(BASE, {"format": "numpy", "framework": "torch"})
    assert (stored.formats, stored.framework, stored.pipelines) == (("numpy",), "torch", ("own",))
    more = changed_config(BASE, {"workers": 3, "prefetch": 4, "cache": "warm"})
    assert (more.workers, more.prefetch, more.cache) == (3, 4, "warm")
    assert (more.formats, more.pipelines) == (BASE.formats, BASE.pipelines)


def test_finished_stores_are_tried_without_their_source():
    both = replace(CONFIG, stores=("a.zarr", "b"), data_dir=Path("data"), options={"date": "1"})
    assert baseline_config(both, way()).stores == ()
    alone = baseline_config(both, way(format="zarr", pipeline="own", named_store="a.zarr"))
    assert (alone.targets, alone.stores, alone.formats) == ((), ("a.zarr",), ())
    assert (alone.data_dir, alone.options, alone.batches) == (None, {}, 200)
    assert changed_config(alone, {"format": "numpy"}) is None  # there is nothing to make it of
    other = changed_config(baseline_config(both, way()), {"store": "b"})
    assert (other.targets, other.stores, other.formats) == ((), ("b",), ())


@pytest.mark.parametrize("settings", [{}, {"made": "once"}, {"persistent_workers": "True"}])
def test_what_no_profile_can_be_told_is_not_tried(settings, tmp_path):
    assert changed_config(BASE, settings) is None
    with pytest.raises(TrialError, match="cannot be tried"):
        try_changes(BASE, [advised(**settings)], tmp_path, SCREEN, rounds=1)


def test_turns_are_compared_with_the_baseline_and_it_with_itself(tmp_path, monkeypatch):
    asked, notes = [], []
    screen = SimpleNamespace(note=notes.append, progress=None)

    def profile(config, screen):
        asked.append(config)
        return config.out

    def window(path):
        changed = asked[-1].workers == 4
        measured = SimpleNamespace(n_samples=10, wall_ns=5 * 10**9 if changed else 10**10)
        return SimpleNamespace(judged=measured)

    monkeypatch.setattr(configurations, "profile", profile)
    monkeypatch.setattr(configurations, "open_profile", lambda path: path)
    monkeypatch.setattr(configurations, "exposure", window)
    (tried,) = try_changes(BASE, [advised(workers=4)], tmp_path, screen, rounds=6)
    assert (tried.saved_fraction, tried.is_noise) == (0.5, False)
    assert (tried.band_low_fraction, tried.band_high_fraction) == (0.0, 0.0)
    # The first turn is thrown away; then six of each, and none has the folder of another.
    assert len(asked) == 1 + 6 * 3
    assert len({config.out for config in asked}) == len(asked)
    assert sum(config.workers == 4 for config in asked) == 6
    assert notes[-1] == "round 6 of 6 of the trial"


# -- turns --------------------------------------------------------------------------------


@given(st.integers(1, 7))
def test_every_arm_has_every_place_equally_often(n_arms):
    orders = [turn_order(n_arms, round) for round in range(2 * n_arms)]
    assert all(sorted(order) == list(range(n_arms)) for order in orders)
    places = Counter((place, arm) for order in orders for place, arm in enumerate(order))
    assert set(places.values()) == {2}
    assert len(places) == n_arms**2
    next_to = Counter(pair for order in orders for pair in pairwise(order))
    assert all(next_to[b, a] == n for (a, b), n in next_to.items())


def test_costs_are_told_by_arm_and_round():
    asked, told = [], []

    def arm(name, cost):
        return lambda round: asked.append((name, round)) or cost + round

    one, other = arm("one", 10.0), arm("other", 20.0)
    costs = interleave([one, other, one], 3, names=["a", "b", "a"], finished=told.append)
    assert costs == [[10, 11, 12], [20, 21, 22], [10, 11, 12]]
    assert told == [0, 1, 2]
    assert [name for name, _ in asked[:3]] == ["one", "other", "one"]
    assert Counter(asked) == {("one", n): 2 for n in range(3)} | {("other", n): 1 for n in range(3)}


def test_a_failure_says_whose_it_was_and_when():
    def failing(round):
        if round == 1:
            raise FileNotFoundError(2, "No such file", "gone.nc")
        return 1.0

    with pytest.raises(TrialError, match=r"other, round 2: .*gone\.nc"):
        interleave([lambda _: 1.0, failing], 9, names=["one", "other"], finished=lambda _: None)
