"""What reports say of a replay: savings with the error beside them, or why nothing is foretold."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from schedules import pool

from iobench.analysis.run import Run
from iobench.findings.replay.figures import Payoff, Payoffs, faster_stages
from iobench.findings.replay.section import replay_sentence
from iobench.report import units
from iobench.report.json_walk import to_plain


def judged(stages=None, *, joint=130, error=-0.016, waited_for="read", **more):
    stages = stages or {"read": 120, "decode": 30}
    found = Payoffs(
        error, "", "steady", 1000, 20, 0.5, joint_ns=joint, joint_low=0.2, joint_high=0.3,
        waited_for=waited_for,
    )  # fmt: skip
    alone = tuple(Payoff(stage, saved, saved / 1000, 0.08, 0.16) for stage, saved in stages.items())
    return replace(found, stages=alone, **more)


def unknown(reason):
    return Payoffs(None, reason, "steady", 1000, 20)


HALVED = "Halving read would save 12 % of the steady state (8.0 % to 16 % in another run)"
MISSED = "Replay error on the unmodified run"


@pytest.mark.parametrize(
    ("replay", "text"),
    [
        (judged(), f"{HALVED}. {MISSED}: -1.6 %."),
        (judged(waited_for="handover"), f"{HALVED}. {MISSED}: -1.6 %."),
        (
            judged(waited_for="decode"),
            f"{HALVED}, though most of the wait falls on decode: halving that would save 3.0 %. "
            f"{MISSED}: -1.6 %.",
        ),
        (
            judged({"read": 140, "decode": 30}, joint=280),
            "Halving read would save 14 % of the steady state (8.0 % to 16 % in another run); "
            "halving all stages 28 % (20 % to 30 % in another run). "
            f"{MISSED}: -1.6 %.",
        ),
        (
            judged(
                {"collate": 60, "read": 12, "decode": 0},
                joint=260,
                waited_for="unpickle",
            ),
            "Halving collate would save 6.0 % of the steady state (8.0 % to 16 % in another run); "
            "halving all stages 26 % (20 % to 30 % in another run). "
            f"{MISSED}: -1.6 %.",
        ),
        (
            judged({"read": 0, "decode": 0}, joint=250),
            "No single stage will help: the best one alone would save 0 % of the steady state; "
            "halving all of them would save 25 % (20 % to 30 % in another run). "
            f"{MISSED}: -1.6 %.",
        ),
        (
            judged({"read": 3, "decode": 2}, joint=5),
            "Nothing to gain from faster stages: halving all of them would save 0.5 % of the "
            f"steady state. {MISSED}: -1.6 %.",
        ),
        (
            judged(error=0.14, joint_ns=None),
            "Replay error +14 %, more than 10 % off, so no gain is predicted.",
        ),
        (
            unknown("the loader does not report which workers make its batches"),
            "Replay error unknown (the loader does not report which workers make its batches), so "
            "no gain is predicted.",
        ),
        (
            judged(error=0.0, n_loaders=2, loader="loader 0 (A)", is_part=True, window="whole"),
            "Halving read would save 12 % of the whole run (8.0 % to 16 % in another run). "
            f"{MISSED}, only of loader 0 (A), one of 2 loaders, over the first 20 batches: 0.0 %.",
        ),
    ],
)
def test_the_sentence(replay, text):
    assert replay_sentence(replay) == text


def test_plain_values_keep_what_is_withheld_to_themselves():
    told = to_plain(judged())
    assert told["error_fraction"] == -0.016
    assert told["stages"][0] == {
        "stage": "read",
        "saved_s": 120e-9,
        "saved_fraction": 0.12,
        "low_fraction": 0.08,
        "high_fraction": 0.16,
    }
    assert (told["joint_fraction"], told["withheld"], told["reason"]) == (0.13, False, None)
    found = to_plain(unknown("why"))
    assert (found["error_fraction"], found["reason"], found["withheld"]) == (None, "why", True)
    assert (found["stages"], found["joint_fraction"], found["no_single_stage_helps"]) == (
        [], None, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "unknown"), (0.0, "0.0 %"), (-0.0004, "0.0 %"), (-0.016, "-1.6 %"), (0.137, "+14 %")],
)
def test_errors_have_a_sign(value, text):
    assert units.signed_fraction(value) == text


def test_workers_slow_in_different_stages_gain_by_all_of_them() -> None:
    # Of two workers one spends 100 ms reading, the other decoding; a step takes 5 ms.
    times = [(100, 0) if batch % 2 else (0, 100) for batch in range(400)]
    durations = [(1_000_000 * read, 1_000_000 * decode, 0) for read, decode in times]
    sketch = pool(durations, workers=2, step_ns=5_000_000)
    run = Run(sketch.profile()).of_rank()
    said = replay_sentence(faster_stages(run))
    assert said.startswith(
        "No single stage will help: the best one alone would save 0 % of the steady state; halving "
        "all of them would save 50 %"
    )
