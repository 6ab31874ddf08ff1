"""The simulator, held against what engines before it said of drawn pipelines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from drawn_pipelines import drawn_run

from iobench.analysis.replay.loader_run import LoaderRule, LoaderRun
from iobench.analysis.replay.replay import replay

SAID = json.loads((Path(__file__).parent / "simulated_pipelines.json").read_text())
"""By seed: wall time, wait, and the sum of each wait times its number."""


def figures(seed: str) -> list[int]:
    fields = drawn_run(int(seed))
    replayed = replay(LoaderRun(**{**fields, "rule": LoaderRule(fields["rule"])}))
    waits = int((replayed.waits_ns * np.arange(1, len(replayed.waits_ns) + 1)).sum())
    return [replayed.wall_ns, replayed.wait_ns, waits]


def test_times_are_those_of_the_engines_before() -> None:
    assert {seed: figures(seed) for seed in SAID} == SAID
