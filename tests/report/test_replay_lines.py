"""What reports say of a replay: savings with the error beside them, or why nothing is foretold."""

from __future__ import annotations

import pytest
from schedules import pool

from iobench.analysis.diagnosis import Diagnosis, Verdict, diagnose
from iobench.analysis.replay.payoffs import Payoff, Payoffs, ReplayJudgement, judge_by_replay
from iobench.analysis.run import Run
from iobench.report import units
from iobench.report.replay_lines import replay_sentence, replay_to_json


def judged(stages=None, *, joint=200, error=-0.016, together=None, **more):
    stages = stages or {"read": 120, "decode": 30}
    found = Payoffs(
        error_fraction=error,
        factor=0.5,
        wall_ns=1000,
        stages=tuple(Payoff((stage,), saved, 0.08, 0.16) for stage, saved in stages.items()),
        joint_ns=joint,
        together=together,
    )
    return ReplayJudgement(payoffs=found, reason="", wall_ns=1000, n_batches=20, **more)


def diagnosis(replay, top="read"):
    return Diagnosis(
        verdict=Verdict.IO_BOUND,
        window="steady",
        wait_fraction=0.5,
        top_stage=top,
        top_fraction=0.6,
        unknown_fraction=0.0,
        hidden_fraction=0.5,
        start_fraction=0.0,
        again_fraction=0.0,
        serial=False,
        replay=replay,
    )


PAIR = Payoff(("read", "decode"), 250, 0.2, 0.3)
HALVED = "Halving read would save 12 % of the steady state (8.0 % to 16 % in another run)"
MISSED = "Replay error of the run as it was"


@pytest.mark.parametrize(
    ("replay", "top", "text"),
    [
        (judged(), "read", f"{HALVED}. {MISSED}: -1.6 %."),
        (judged(), "handover", f"{HALVED}. {MISSED}: -1.6 %."),
        (
            judged(),
            "decode",
            f"{HALVED}, though most of the wait falls on decode: halving that would save 3.0 %. "
            f"{MISSED}: -1.6 %.",
        ),
        (
            judged({"read": 140, "decode": 30}, joint=280, together=PAIR),
            "read",
            "Halving read would save 14 % of the steady state (8.0 % to 16 % in another run); "
            "halving read and decode together 25 % (20 % to 30 % in another run). "
            f"{MISSED}: -1.6 %.",
        ),
        (
            judged({"collate": 60, "read": 12, "decode": 0}, joint=260, together=PAIR),
            "unpickle",
            "Halving collate would save 6.0 % of the steady state (8.0 % to 16 % in another run); "
            "halving read and decode together 25 % (20 % to 30 % in another run). "
            f"{MISSED}: -1.6 %.",
        ),
        (
            judged({"read": 0, "decode": 0}, joint=250, together=PAIR),
            "read",
            "No single stage will help, the best alone would save 0 % of the steady state; halving "
            f"read and decode together would save 25 % (20 % to 30 % in another run). {MISSED}: "
            "-1.6 %.",
        ),
        (
            judged({"read": 3, "decode": 2}, joint=5),
            "read",
            "Nothing to gain from faster stages: halving all of them would save 0.5 % of the "
            f"steady state. {MISSED}: -1.6 %.",
        ),
        (
            judged(error=0.14),
            "read",
            "Replay error +14 %, more than 10 % off, so no gain is predicted.",
        ),
        (
            ReplayJudgement(None, "the loader does not tell who makes its batches", 1000, 20),
            "opaque",
            "Replay error unknown (the loader does not tell who makes its batches), so no gain is "
            "predicted.",
        ),
        (
            judged(error=0.0, n_loaders=2, loader="loader 0 (A)", is_part=True, window="whole"),
            "read",
            "Halving read would save 12 % of the whole run (8.0 % to 16 % in another run). "
            f"{MISSED}, of loader 0 (A) alone, one of 2 loaders, over the first 20 batches: 0.0 %.",
        ),
        (None, "read", ""),
    ],
)
def test_the_sentence(replay, top, text):
    assert replay_sentence(diagnosis(replay, top)) == text


def test_plain_values_keep_what_is_withheld_to_themselves():
    told = replay_to_json(judged())
    assert told["error_fraction"] == -0.016
    assert told["stages"][0] == {
        "stage": "read",
        "saved_fraction": 0.12,
        "low_fraction": 0.08,
        "high_fraction": 0.16,
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


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "unknown"), (0.0, "0.0 %"), (-0.0004, "0.0 %"), (-0.016, "-1.6 %"), (0.137, "+14 %")],
)
def test_errors_have_a_sign(value, text):
    assert units.signed_fraction(value) == text


def test_workers_slow_in_different_stages_have_the_set_named() -> None:
    # Of two workers one spends 100 ms reading, the other decoding; a step takes 5 ms.
    times = [(100, 0) if batch % 2 else (0, 100) for batch in range(400)]
    durations = [(1_000_000 * read, 1_000_000 * decode, 0) for read, decode in times]
    sketch = pool(durations, workers=2, step_ns=5_000_000)
    run = Run(sketch.profile()).of_rank()
    said = replay_sentence(diagnose(run.exposure, replay=judge_by_replay(run)))
    assert said.startswith(
        "No single stage will help, the best alone would save 0 % of the steady state; "
        "halving decode and read together would save 50 %"
    )
