"""What the figures mean: one sentence, what it rests on, and what to try next."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from iobench.recording import WORKER_KINDS, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iobench.analysis.figures import Exposure, LongWaits, StageExposure, Window

__all__ = ["Advice", "Diagnosis", "Evidence", "diagnose"]

BOUND_FRACTION: Final = 0.2
"""From this share of the time on, a loop that waits is called I/O-bound."""
PARTLY_FRACTION: Final = 0.05
"""Below this share the waiting is not worth work on the loading."""
UNKNOWN_FRACTION: Final = 0.1
"""From this share of the wait on, an unknown cause is said in the verdict."""
FEW_STEPS: Final = 20
"""Fewer steady steps than this are called a short run."""

SPOKEN: Final = {
    Kind.STARTUP: "the workers' start-up",
    Kind.SHUTDOWN: "the end of the loader",
    Kind.WORKER_GAP: "time between the workers' stages",
    Kind.HANDOVER: "the hand-over of batches",
    Kind.STARVED_SUBMIT: "workers that were not asked yet",
    Kind.SUBMIT_QUEUE: "the queue to the workers",
    Kind.UNKNOWN: "causes that were not recorded",
}


@dataclass(frozen=True, slots=True)
class Evidence:
    """One figure a verdict rests on; ``value`` is a fraction, a count, or ns where so named."""

    name: str
    value: float | int | None


@dataclass(frozen=True, slots=True)
class Advice:
    """What to try next: a command line, and the reason in half a sentence."""

    command: str
    reason: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a run's figures mean.

    Parameters
    ----------
    verdict : str
        One sentence, or two where a short run needs its steady state beside the whole.
    io_bound : bool or None
        Whether the loop waits for a fifth of its time or more; None where that cannot be told.
    evidence : tuple of Evidence
        The figures behind it.
    advice : tuple of Advice
        Best first; from where the wait was, which is not always what helps.
    """

    verdict: str
    io_bound: bool | None
    evidence: tuple[Evidence, ...]
    advice: tuple[Advice, ...]


def diagnose(exposure: Exposure, config: Mapping[str, Any]) -> Diagnosis:
    """Return what a run's figures mean.

    Parameters
    ----------
    exposure : Exposure
        The figures.
    config : mapping
        The profile's configuration.
    """
    window = exposure.steady or exposure.whole
    computes = _computes(exposure, config)
    fraction = window.wait_fraction
    known = computes and fraction is not None and window.n_batches > 0
    return Diagnosis(
        verdict=_verdict(exposure, computes),
        io_bound=fraction >= BOUND_FRACTION if known and fraction is not None else None,
        evidence=_evidence(exposure),
        advice=_advice(exposure, config, computes),
    )


def _computes(exposure: Exposure, config: Mapping[str, Any]) -> bool:
    """Tell whether the loop does anything between deliveries that loading could hide behind."""
    configured = config.get("compute")
    if isinstance(configured, dict) and not exposure.whole.compute_stages:
        return bool(configured.get("forward_ns") or configured.get("backward_ns"))
    return bool(exposure.whole.compute_stages) or exposure.whole.compute_ns > 0


def _verdict(exposure: Exposure, computes: bool) -> str:
    window, whole = exposure.steady or exposure.whole, exposure.whole
    if not whole.n_batches or window.wait_fraction is None:
        return "Nothing can be said: no batch was delivered."
    if not computes:
        sentence = f"No compute stage: everything is wait{_mostly(window)}"
    else:
        sentence = _bound(window, serial=exposure.workers == 0)
    return f"{sentence}{_unknown(exposure, window)}.{_beside(exposure)}{_long(exposure.long_waits)}"


def _bound(window: Window, *, serial: bool) -> str:
    fraction = window.wait_fraction or 0.0
    waits = f"waits {_percent(fraction)} of its time"
    if fraction >= PARTLY_FRACTION:
        word = "I/O-bound" if fraction >= BOUND_FRACTION else "Partly I/O-bound"
        return f"{word}: the training loop {waits}{_mostly(window)}"
    work = [row for row in window.stages if row.kind in WORKER_KINDS]
    busy = sum(row.busy_ns for row in work)
    if serial or not busy:
        return f"Not I/O-bound: the training loop {waits}"
    hidden = sum(row.hidden_ns for row in work) / busy
    return (
        f"Not I/O-bound: {_percent(hidden)} of the loading work is hidden behind compute; "
        f"the loop {waits}"
    )


def _mostly(window: Window) -> str:
    top = window.stages[0] if window.stages else None
    if top is None or not top.exposed_ns:
        return ""
    share = top.exposed_ns / window.wait_ns
    most = "mostly" if share >= 0.5 else "most of all"
    return f", {most} for {_spoken(top)} ({_percent(share)} of the wait)"


def _spoken(row: StageExposure) -> str:
    if row.kind == Kind.FUSED and row.label:
        return row.label
    return row.stage if row.label else SPOKEN.get(row.kind, row.stage)


def _unknown(exposure: Exposure, window: Window) -> str:
    unknown = sum(row.exposed_ns for row in window.stages if row.kind == Kind.UNKNOWN)
    top_is_unknown = bool(window.stages) and window.stages[0].kind == Kind.UNKNOWN
    if top_is_unknown or not window.wait_ns or unknown < UNKNOWN_FRACTION * window.wait_ns:
        share = ""
    else:
        share = f"; the cause of {_percent(unknown / window.wait_ns)} of the wait is unknown"
    missing = ", ".join(exposure.missing_workers)
    return f"{share}; no spans of {missing}" if missing else share


def _beside(exposure: Exposure) -> str:
    """Say what part of the run the sentence is about, where whole and steady differ."""
    whole, steady = exposure.whole, exposure.steady
    if whole.n_batches == 1:
        return " One batch only: there is no steady state to judge by."
    if steady is None:
        return " All of this is start-up and fill: the run is too short to have a steady state."
    apart = abs((whole.wait_fraction or 0.0) - (steady.wait_fraction or 0.0))
    if steady.n_batches >= FEW_STEPS and apart < PARTLY_FRACTION:
        return ""
    return (
        f" That is the steady state, {steady.n_batches} of {whole.n_batches} batches; with "
        f"start-up and fill the loop waits {_percent(whole.wait_fraction or 0.0)} of its time."
    )


def _long(long_waits: LongWaits | None) -> str:
    if long_waits is None:
        return ""
    share = f"{long_waits.n_waits} of {long_waits.n_steps} steps"
    if not long_waits.coincidences:
        return f" The median step misleads: {share} hold most of the wait."
    what = long_waits.coincidences[0]
    return (
        f" The median step misleads: {share} hold most of the wait, "
        f"{what.n_long} of them at {what.what}."
    )


def _evidence(exposure: Exposure) -> tuple[Evidence, ...]:
    found = [Evidence("whole_wait_fraction", exposure.whole.wait_fraction)]
    window = exposure.whole
    if exposure.steady is not None:
        window = exposure.steady
        found.append(Evidence("steady_wait_fraction", window.wait_fraction))
    found.extend(
        Evidence(f"exposed_fraction {row.stage}", row.exposed_ns / window.wait_ns)
        for row in window.stages
        if row.exposed_ns
    )
    found.append(Evidence("overhead_fraction", exposure.whole.overhead_fraction))
    found.append(Evidence("lost_spans", exposure.lost_spans))
    return tuple(found)


def _advice(exposure: Exposure, config: Mapping[str, Any], computes: bool) -> tuple[Advice, ...]:
    window = exposure.steady or exposure.whole
    command = _words(config.get("command"))
    measured = command[:2] == ["iobench", "profile"]
    waits = (window.wait_fraction or 0.0) >= PARTLY_FRACTION
    found = []
    if measured and not computes:
        found.append(
            Advice(_with(command, "--compute", "25ms"), "a step time shows what compute hides")
        )
    if measured and waits and computes:
        found.extend(_against_waiting(exposure, window, config, command))
    if measured and (exposure.steady is None or exposure.steady.n_batches < FEW_STEPS):
        found.append(
            Advice(_with(command, "--batches", "200"), "a longer run has a steady state to judge")
        )
    if measured and config.get("stand_in"):
        own = _with(command, "--data-dir", "DIR", without={"--tiny": 0, "--scale": 1})
        found.append(Advice(own, "the same on your own files, in DIR"))
    return tuple(found)


def _against_waiting(
    exposure: Exposure, window: Window, config: Mapping[str, Any], command: list[str]
) -> list[Advice]:
    """Return what shortens the wait: finished samples, or more loading processes."""
    found = []
    work = [row for row in window.stages if row.kind in WORKER_KINDS and row.exposed_ns]
    stored = "numpy" if config.get("framework") == "torch" else "tfrecord"
    tried = " ".join(command)
    if config.get("format") == "source" and work and stored not in tried:
        reason = "the same samples, finished beforehand and stored"
        found.append(Advice(_with(command, "--format", stored), reason))
    if work:
        workers = str(max(1, 2 * exposure.workers))
        reason = "more loading processes hide more, as long as there are cores for them"
        found.append(Advice(_with(command, "--workers", workers), reason))
    return found


def _words(command: object) -> list[str]:
    """Return the words of the command that was run; none if it is not told."""
    if isinstance(command, str):
        return shlex.split(command)
    return [str(word) for word in command] if isinstance(command, list | tuple) else []


def _with(
    command: list[str], option: str, value: str, *, without: Mapping[str, int] | None = None
) -> str:
    """Return a command line with one option set, to be run again beside the first.

    ``without`` names more options to leave out, each with how many values it takes.
    """
    dropped = {option: 1, "--out": 1, "--json": 0, **(without or {})}
    if option == "--batches":
        dropped |= {"--duration": 1, "--epochs": 1}
    kept, skip = [], 0
    for word in command:
        name = word.partition("=")[0]
        if skip:
            skip -= 1
        elif name in dropped:
            skip = 0 if "=" in word else dropped[name]
        else:
            kept.append(word)
    return shlex.join([*kept, option, value])


def _percent(fraction: float) -> str:
    """Return a share for a sentence: two figures, never 0 % or 100 % unless it is."""
    percent = 100 * fraction
    if 0 < percent < 0.1:
        return "under 0.1 %"
    if 99.9 < percent < 100:
        return "over 99.9 %"
    return f"{percent:.1f} %" if percent < 1 or 99 < percent < 100 else f"{percent:.0f} %"
