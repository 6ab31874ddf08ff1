"""Configurations changed by what is advised, and what is made of their turns."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from iobench.errors import TrialError
from iobench.findings.advice.proposals import AdvisedChange, Evidence, Gain, Lever, change
from iobench.profiling.config import RunConfig
from iobench.trials import configurations
from iobench.trials.configurations import baseline_config, changed_config, try_changes

CONFIG = RunConfig(
    targets=("maelstrom-ens10",),
    formats=("source", "tfrecord"),
    framework="torch,native",
    pipelines=("upstream", "own"),
    epochs=3,
    out=Path("kept"),
    darshan=("auto",),
)


def way(**told: Any) -> Any:
    """Return what of a way of loading is looked at."""
    own = {"format": "source", "framework": "native", "pipeline": "upstream", "named_store": None}
    judged = SimpleNamespace(
        n_batches=told.pop("n_batches", 10), wall_ns=told.pop("wall_ns", 10**8)
    )
    return SimpleNamespace(**{**own, **told}, judged=judged)


BASE = baseline_config(CONFIG, way())


class Screen:
    """Keeps notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, title: str, *, in_bytes: bool = False) -> Any:
        raise AssertionError("nothing is measured here")


def advised(**settings: str | int) -> AdvisedChange:
    return change((Lever.CACHE,), settings, Gain(Evidence.REPLAYED, 0.5, 0.4, 0.6, True))


def test_the_baseline_is_one_way_alone_and_short() -> None:
    assert (BASE.formats, BASE.framework, BASE.pipelines) == (("source",), "native", ("upstream",))
    assert (BASE.batches, BASE.duration_s, BASE.epochs) == (200, None, None)
    # 3 s of batches of 50 ms; no more than it had, and no fewer than show a steady state.
    assert baseline_config(CONFIG, way(n_batches=2)).batches == 60
    short = replace(CONFIG, epochs=None, batches=40)
    assert baseline_config(short, way(n_batches=2)).batches == 40
    assert baseline_config(CONFIG, way(n_batches=0.1)).batches == 12
    assert (BASE.out, BASE.darshan) == (None, ("off",))


def test_a_change_is_made_and_nothing_else() -> None:
    stored = changed_config(BASE, {"format": "numpy", "framework": "torch"})
    assert stored is not None
    assert (stored.formats, stored.framework, stored.pipelines) == (("numpy",), "torch", ("own",))
    more = changed_config(BASE, {"workers": 3, "prefetch": 4, "cache": "warm"})
    assert more is not None
    assert (more.workers, more.prefetch, more.cache) == (3, 4, "warm")
    assert (more.formats, more.pipelines) == (BASE.formats, BASE.pipelines)


def test_finished_stores_are_tried_without_their_source() -> None:
    both = replace(CONFIG, stores=("a.zarr", "b"), data_dir=Path("data"), options={"date": "1"})
    assert baseline_config(both, way()).stores == ()
    alone = baseline_config(both, way(format="zarr", pipeline="own", named_store="a.zarr"))
    assert (alone.targets, alone.stores, alone.formats) == ((), ("a.zarr",), ())
    assert (alone.data_dir, alone.options, alone.batches) == (None, {}, 200)
    assert changed_config(alone, {"format": "numpy"}) is None  # there is nothing to make it of
    other = changed_config(baseline_config(both, way()), {"store": "b"})
    assert other is not None
    assert (other.targets, other.stores, other.formats) == ((), ("b",), ())


@pytest.mark.parametrize("settings", [{}, {"made": "once"}, {"persistent_workers": "True"}])
def test_what_no_profile_can_be_told_is_not_tried(settings, tmp_path: Path) -> None:
    assert changed_config(BASE, settings) is None
    with pytest.raises(TrialError, match="cannot be tried"):
        try_changes(BASE, [advised(**settings)], tmp_path, Screen(), rounds=1)


def test_turns_are_compared_with_the_baseline_and_it_with_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[RunConfig] = []

    def profile(config: RunConfig, screen: object) -> Path:
        asked.append(config)
        assert config.out is not None
        return config.out

    def window(path: Path) -> Any:
        changed = asked[-1].workers == 4
        measured = SimpleNamespace(n_samples=10, wall_ns=5 * 10**9 if changed else 10**10)
        return SimpleNamespace(judged=measured)

    monkeypatch.setattr(configurations, "profile", profile)
    monkeypatch.setattr(configurations, "open_profile", lambda path: path)
    monkeypatch.setattr(configurations, "exposure", window)
    screen = Screen()
    (tried,) = try_changes(BASE, [advised(workers=4)], tmp_path, screen, rounds=6)
    assert (tried.saved_fraction, tried.is_noise) == (0.5, False)
    assert (tried.band_low_fraction, tried.band_high_fraction) == (0.0, 0.0)
    # The first turn is thrown away; then six of each, and none has the folder of another.
    assert len(asked) == 1 + 6 * 3
    assert len({config.out for config in asked}) == len(asked)
    assert sum(config.workers == 4 for config in asked) == 6
    assert screen.notes[-1] == "round 6 of 6 of the trial"
