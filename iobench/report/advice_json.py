"""Advice, and what came of trying it, for machines: plain values, unrounded; unknown is null."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from iobench.report.advice_commands import commands_of, title_of
from iobench.report.advice_sentences import outcome_sentence, reason_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.advice.break_even import BreakEven, DeviceBill
    from iobench.analysis.advice.figures import Advice, AdvisedChange, RuledOut
    from iobench.analysis.intervals import RoundRatio
    from iobench.report.advice_input import AdviceInput

__all__ = ["advice_to_json", "trial_to_json"]

ADVICE_VERSION: Final = 1
"""Raised when a key changes its meaning or goes; new keys do not raise it."""


def advice_to_json(advice: Advice, given: AdviceInput) -> dict[str, Any]:
    """Return advice for ``json.dumps(allow_nan=False)``.

    - ``schema_version``, ``run``; ``outcome``: one of ``"no batch"``, ``"nothing to gain"``,
      ``"withheld"``, ``"opaque"``, ``"no single stage"``, ``"nothing found"``, ``"advice"``;
      ``sentence``: the same in words.
    - ``batches``: it is about; ``folded_batches`` before them, of which there are sums only.
    - ``baseline``: ``label``, ``format``, ``framework``, ``pipeline``, ``workers``, ``prefetch``,
      ``batch_size``, ``sample_s`` (wall time of a sample), ``wait_fraction``,
      ``hidden_fraction``, ``epoch_s``.
    - ``replay_error_fraction``; ``payoffs``: ``factor``, ``joint_s``, ``wall_s`` (of the steady
      state, where there is one), ``stages``, each with ``saved_s``, and ``together``: the fewest
      ``stages`` that save nearly as much as all, null where one does. Null where nothing rests on a
      replay.
    - ``changes`` and ``to_measure`` (those with a bound only), best first: ``title``, ``levers``,
      ``settings``, ``evidence`` (``"measured"``, ``"replayed"``, ``"bound"``),
      ``saved_fraction`` of the time of a sample (null for a bound), ``low_fraction``,
      ``high_fraction``; ``saved_s`` of an epoch; ``cost``: ``convert_s``, ``at_least``,
      ``disk_nbytes``, ``memory_nbytes``, ``starts`` (whether workers have to start, which takes
      what no run told); ``break_even``: ``epochs`` (null: unknown or never),
      ``never``, ``staging_to_epoch``; ``commands``.
    - ``ruled_out``: ``title``, ``levers``, ``reason``, ``sentence``, ``needed``, ``available``.
    - ``bill``: ``ranks``, ``epochs``, ``idle_device_hours``, ``device_hours``, ``on_device``.
    """
    way = advice.baseline
    return {
        "schema_version": ADVICE_VERSION,
        "run": given.run,
        "outcome": advice.outcome.value,
        "sentence": outcome_sentence(advice),
        "batches": way.whole.n_batches,
        "folded_batches": given.n_folded,
        "baseline": {
            "label": way.label,
            "format": way.format or None,
            "framework": way.framework or None,
            "pipeline": None if given.facts.is_script else way.pipeline,
            "workers": way.run.workers,
            "prefetch": way.run.prefetch,
            "batch_size": way.run.batch_size,
            "sample_s": None if way.sample_ns is None else way.sample_ns / 1e9,
            "wait_fraction": advice.wait_fraction,
            "hidden_fraction": advice.hidden_fraction,
            "epoch_s": advice.epoch_s,
        },
        "replay_error_fraction": _finite(advice.error_fraction),
        "payoffs": _payoffs(advice),
        "changes": [_change(each, given, advice) for each in advice.changes],
        "to_measure": [_change(each, given, advice) for each in advice.to_measure],
        "ruled_out": [_ruled_out(each) for each in advice.ruled_out],
        "bill": _bill(advice.bill),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _payoffs(advice: Advice) -> dict[str, Any] | None:
    payoffs = advice.payoffs
    if payoffs is None:
        return None
    return {
        "factor": payoffs.factor,
        "joint_s": payoffs.joint_ns / 1e9,
        "wall_s": payoffs.wall_ns / 1e9,
        "stages": [
            {"stage": each.stage, "saved_s": each.saved_ns / 1e9} for each in payoffs.stages
        ],
        "together": None
        if payoffs.together is None
        else {
            "stages": list(payoffs.together.stages),
            "saved_s": payoffs.together.saved_ns / 1e9,
        },
    }


def _change(change: AdvisedChange, given: AdviceInput, advice: Advice) -> dict[str, Any]:
    candidate, gain, cost = change.candidate, change.gain, change.cost
    return {
        "title": title_of(candidate),
        "levers": [lever.value for lever in candidate.levers],
        "settings": dict(candidate.settings),
        "evidence": gain.evidence.value,
        "saved_fraction": gain.saved,
        "low_fraction": gain.low,
        "high_fraction": gain.high,
        "saved_s": change.saved_s,
        "cost": {
            "convert_s": cost.convert_s,
            "at_least": cost.at_least,
            "disk_nbytes": cost.disk_nbytes,
            "memory_nbytes": cost.memory_nbytes,
            "starts": cost.starts,
        },
        "break_even": _break_even(change.break_even),
        "commands": list(commands_of(candidate, given.facts, advice.baseline)),
    }


def _break_even(found: BreakEven | None) -> dict[str, Any] | None:
    if found is None:
        return None
    epochs, staged = found.epochs, found.staged
    return {
        "epochs": _finite(epochs),
        "never": epochs is not None and math.isinf(epochs),
        "staging_to_epoch": None if staged is None else staged.ratio,
    }


def _ruled_out(found: RuledOut) -> dict[str, Any]:
    return {
        "title": title_of(found.candidate),
        "levers": [lever.value for lever in found.candidate.levers],
        "reason": found.reason.value,
        "sentence": reason_text(found),
        "needed": found.needed,
        "available": found.there,
    }


def _bill(bill: DeviceBill | None) -> dict[str, Any] | None:
    if bill is None:
        return None
    return {
        "ranks": bill.ranks,
        "epochs": bill.epochs,
        "idle_device_hours": bill.idle_hours,
        "device_hours": bill.all_hours,
        "on_device": bill.on_device,
    }


def trial_to_json(tried: Sequence[tuple[AdvisedChange, RoundRatio]]) -> list[dict[str, Any]]:
    """Return what was predicted and obtained: shares of the time of a sample that are saved.

    ``band_low_fraction`` and ``band_high_fraction`` are what the unchanged baseline saved when it
    was run again; ``is_noise`` whether a change is not to be told from that. All three are null
    of fewer than six rounds, and so is the interval.
    """
    return [
        {
            "settings": dict(change.candidate.settings),
            "title": title_of(change.candidate),
            "predicted_fraction": change.gain.saved,
            "predicted_low_fraction": change.gain.low,
            "predicted_high_fraction": change.gain.high,
            "rounds": ratio.n_rounds,
            "saved_fraction": 1 - ratio.ratio,
            "low_fraction": _saved(ratio.high),
            "high_fraction": _saved(ratio.low),
            "band_low_fraction": _saved(ratio.band_high),
            "band_high_fraction": _saved(ratio.band_low),
            "is_noise": None if ratio.low is None else not (ratio.faster or ratio.slower),
        }
        for change, ratio in tried
    ]


def _saved(ratio: float | None) -> float | None:
    return None if ratio is None else 1 - ratio
