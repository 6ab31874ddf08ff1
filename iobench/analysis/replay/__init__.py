"""Replay: the loader's own rule run again over measured times, with something changed."""

from iobench.analysis.replay.contract import (
    Change,
    LoaderRule,
    Machine,
    Payoff,
    Payoffs,
    RecordedRun,
    Replayed,
)

__all__ = ["Change", "LoaderRule", "Machine", "Payoff", "Payoffs", "RecordedRun", "Replayed"]
