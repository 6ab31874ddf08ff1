"""What reports say of a replay: savings with the error beside them, or why nothing is foretold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iobench.analysis import Diagnosis, Verdict
from iobench.analysis.replay import Payoff, Payoffs, ReplayJudgement
from iobench.report import units
from iobench.report.replay_lines import replay_sentence, replay_to_json


def judged(stages=None, *, joint=300, error=-0.016, **more):
    stages = stages or {"read": 120, "decode": 30}
    found = Payoffs(
        error_fraction=error,
        factor=0.5,
        stages=tuple(Payoff(stage, saved, float(saved)) for stage, saved in stages.items()),
        joint_ns=joint,
    )
    return ReplayJudgement(payoffs=found, reason="", wall_ns=1000, n_batches=20, **more)


def diagnosis(replay, top="read"):
    return Diagnosis(
        verdict=Verdict.IO_BOUND,
        steady=True,
        wait_fraction=0.5,
        top_stage=top,
        top_fraction=0.6,
        unknown_fraction=0.0,
        hidden_fraction=0.5,
        start_fraction=0.0,
        serial=False,
        replay=replay,
    )


@pytest.mark.parametrize(
    ("replay", "top", "text"),
    [
        (
            judged(joint=200),
            "read",
            "Halving read would save 12 % of the run (replay error -1.6 %).",
        ),
        (
            judged(joint=200),
            "handover",
            "Halving read would save 12 % of the run (replay error -1.6 %).",
        ),
        (
            judged(joint=200),
            "decode",
            "Halving read would save 12 % of the run, though most of the wait falls on decode: "
            "halving that would save 3.0 % (replay error -1.6 %).",
        ),
        (
            judged({"read": 0, "decode": 0}, joint=250),
            "read",
            "No single stage will help: halving read alone would save 0 % of the run, halving all "
            "stages 25 % (replay error -1.6 %).",
        ),
        (
            judged({"read": 3, "decode": 2}, joint=5),
            "read",
            "Nothing to gain from faster stages: halving all of them would save 0.5 % "
            "(replay error -1.6 %).",
        ),
        (
            judged(error=0.14),
            "read",
            "Replay error +14 %, more than 10 % off, so no gain is foretold.",
        ),
        (
            ReplayJudgement(None, "the loader does not tell who makes its batches", 1000, 20),
            "opaque",
            "Replay error unknown (the loader does not tell who makes its batches), so no gain is "
            "foretold.",
        ),
        (
            judged(joint=200, error=0.0, n_loaders=2, is_part=True),
            "read",
            "Halving read would save 12 % of the run (replay error 0.0 %; of the loader with most "
            "batches of 2; over the first 20 batches).",
        ),
        (None, "read", ""),
    ],
)
def test_the_sentence(replay, top, text):
    assert replay_sentence(diagnosis(replay, top)) == text


def test_plain_values_keep_what_is_withheld_to_themselves():
    told = replay_to_json(judged(joint=200))
    assert told["error_fraction"] == -0.016
    assert told["stages"][0] == {
        "stage": "read",
        "saved_fraction": 0.12,
        "shapley_fraction": 0.12,
    }
    assert (told["joint_fraction"], told["withheld"], told["reason"]) == (0.2, False, None)
    far_off = replay_to_json(judged(error=0.2))
    assert (far_off["withheld"], far_off["stages"], far_off["joint_fraction"]) == (True, [], None)
    unknown = replay_to_json(ReplayJudgement(None, "why", 1000, 20))
    assert (unknown["error_fraction"], unknown["reason"], unknown["withheld"]) == (
        None,
        "why",
        True,
    )
    assert replay_to_json(None) is None


def test_a_judgement_of_nothing_measured_has_shares_of_nothing():
    assert replace(judged(), wall_ns=0).fraction(100) == 0.0


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "unknown"), (0.0, "0.0 %"), (-0.0004, "0.0 %"), (-0.016, "-1.6 %"), (0.137, "+14 %")],
)
def test_errors_have_a_sign(value, text):
    assert units.signed_fraction(value) == text
