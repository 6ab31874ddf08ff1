"""Replay: the loader's own rule run again over measured times, with something changed."""

from iobench.analysis.replay.changes import changed
from iobench.analysis.replay.contract import (
    Change,
    LoaderRule,
    Machine,
    Payoff,
    Payoffs,
    RecordedRun,
    Replayed,
    StreamShape,
)
from iobench.analysis.replay.engine import can_replay, replay, replay_error
from iobench.analysis.replay.judgement import ReplayJudgement, judge_by_replay
from iobench.analysis.replay.payoffs import payoffs
from iobench.analysis.replay.prediction import Prediction, predicted
from iobench.analysis.replay.runs import recorded_runs

__all__ = [
    "Change",
    "LoaderRule",
    "Machine",
    "Payoff",
    "Payoffs",
    "Prediction",
    "RecordedRun",
    "ReplayJudgement",
    "Replayed",
    "StreamShape",
    "can_replay",
    "changed",
    "judge_by_replay",
    "payoffs",
    "predicted",
    "recorded_runs",
    "replay",
    "replay_error",
]
