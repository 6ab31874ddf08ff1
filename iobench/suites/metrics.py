"""The figures that a suite stores of each run, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.analysis.run import Run
from iobench.findings.batch_digests import delivered_samples
from iobench.findings.compare import ENERGY, last_figures
from iobench.findings.energy import energy_j
from iobench.findings.utilisation import utilisation
from iobench.recording.kinds import Family, Kind
from iobench.report.suite_words import OWN

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.analysis.exposure_figures import PartExposure, StepStatistics
    from iobench.runs.run_facts import RunFacts

STAGE_KINDS: Final = [
    kind.spelled for kind in Kind if kind.family in (Family.LOAD, Family.HANDOVER)
]
METRICS: Final = (
    # of a step of the optimiser, else of a batch
    *("step_s", "wait_s", "exposed_share", "samples_per_s", "bytes_per_s"),
    "utilisation",  # by MLPerf Storage's formula
    *("run_s", "start_s"),  # the whole run; until its first batch
    *("read_bytes_per_byte", "forward_s", "backward_s"),
    *("energy_j", "convert_s", "store_bytes", "max_relative_error"),
    *(f"{what}_{kind}_s" for what in ("stage", "exposed") for kind in STAGE_KINDS),  # of a batch
    *("published_step_s", "published_wait_s"),
)
"""Figures by name, which ends in the unit."""


def figures_of_run(path: Path) -> tuple[dict[str, float], RunFacts, str | None]:
    """Return the figures of a run by name, its facts, and a digest of its samples in any order.

    Steps are of the part of it that reports judge.
    """
    run = Run(path)
    rank = run.of_rank()
    exposure, facts = rank.exposure, rank.about
    part = exposure.judged
    used = utilisation(rank)
    values: dict[str, float | None] = {
        "step_s": _mean_s(part.step),
        "wait_s": _mean_s(part.wait),
        "exposed_share": part.wait_fraction,
        "samples_per_s": part.samples_per_s,
        "bytes_per_s": part.bytes_per_s,
        "read_bytes_per_byte": part.read_per_byte,
        "run_s": exposure.whole.wall_ns / 1e9,
        "start_s": exposure.startup_ns / 1e9,
        "utilisation": None if used is None else used.fraction,
        ENERGY: energy_j([rank]),
        **_stages(part),
        **_store(facts),
        **_published(facts),
        **{f"{OWN}{name}": each for name, each in last_figures(run).items() if name != ENERGY},
    }
    digests = [each.digest for each in delivered_samples([rank]).epochs.values()]
    known = [each for each in digests if each is not None]
    return (
        {name: float(value) for name, value in values.items() if value is not None},
        facts,
        f"{sum(known) % (1 << 128):032x}" if known and len(known) == len(digests) else None,
    )


def _mean_s(of: StepStatistics | None) -> float | None:
    return None if of is None else of.mean_ns / 1e9


def _stages(part: PartExposure) -> dict[str, float]:
    """Return busy and exposed time of a batch by kind of stage, and compute of a step."""
    values: dict[str, float] = {}
    for row in part.stages if part.n_batches else ():
        for name, time_ns in (("stage", row.busy_ns), ("exposed", row.exposed_ns)):
            key = f"{name}_{row.kind.spelled}_s"
            if key in METRICS:
                values[key] = values.get(key, 0.0) + time_ns / part.n_batches / 1e9
    for name in ("forward", "backward"):
        if name in part.step_compute_ns:
            values[f"{name}_s"] = part.step_compute_ns[name] / 1e9
    return values


def _store(facts: RunFacts) -> dict[str, float | None]:
    store = facts.store
    if store is None:
        return {}
    errors = [each.get("max_relative_error") for each in store.lossy.values()]
    error = max((each for each in errors if each is not None), default=None)
    return {
        "convert_s": store.convert_s, "store_bytes": store.nbytes,
        "max_relative_error": error if store.lossy else 0.0,
    }  # fmt: skip


def _published(facts: RunFacts) -> dict[str, float | None]:
    """Return the means of what was published: of the run's own framework, else what comes first."""
    own = str(facts.framework).lower()
    tables = sorted(facts.published.tables.items(), key=lambda each: own not in each[0].lower())
    table = tables[0][1] if tables else {}
    names = {"batch": "published_step_s", "I/O": "published_wait_s"}
    return {name: table[key][1] for key, name in names.items() if key in table}
