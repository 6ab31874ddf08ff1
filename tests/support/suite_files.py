"""Suites as their result files tell of them, without a run."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.suites.results import RESULT_KIND as KIND
from iobench.suites.results import RESULT_SUFFIX, Result
from iobench.suites.results import RESULT_VERSION as VERSION

MACHINE = {
    "host": "n1", "cpu_model": "EPYC", "cores": 4, "memory_bytes": 16 * 10**9, "kernel": "6.1",
    "file_system": "ext4",
}  # fmt: skip
VERSIONS = {"iobench": "1", "python": "3.11", "commit": "a" * 40, "torch": "2.3"}
START = datetime(2025, 1, 5, tzinfo=UTC)
OPTIONS = {"dataset": "ens10", "batch-size": "4", "workers": "2"}


def suite(
    folder: Path,
    *,
    day: float = 0,
    step_s: float = 0.05,
    formats: tuple[str, ...] = ("source", "zarr"),
    figures: dict[str, float] | None = None,
    **changed: Any,
) -> Path:
    """Write a suite of five rounds whose times are 2 % off from suite to suite and run to run."""
    rng = np.random.default_rng(int(day * 10))
    for number, layout in enumerate(formats):
        of_suite = step_s * (1 + number) * float(np.exp(rng.normal(0, 0.02)))
        for repeat in range(5):
            value = of_suite * float(np.exp(rng.normal(0, 0.02)))
            started = START + timedelta(days=day, minutes=10 * repeat + number)
            told = Result(
                suite="formats",
                recipe_digest="0123456789abcdef",
                cell={"dataset": "ens10", "format": layout},
                round=repeat,
                status="measured",
                started=started.isoformat(),
                figures={"step_s": value, "samples_per_s": 4 / value} | (figures or {}),
                machine=MACHINE,
                versions=VERSIONS,
                options=OPTIONS | {"format": layout},
            )
            cell = folder / f"{number:03d}-{layout}"
            cell.mkdir(parents=True, exist_ok=True)
            # As `write_result`, which waits for the disk each time.
            told_json = {
                "kind": KIND,
                "version": VERSION,
                **msgspec.structs.asdict(replace(told, **changed)),
            }
            (cell / f"round-{repeat}{RESULT_SUFFIX}").write_text(json.dumps(told_json))
    return folder
