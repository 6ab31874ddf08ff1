"""What samples of application A5 are: spec, splits, places in time and provenance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import time_positions
from iobench.samples import SampleSpec, Variable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench_maelstrom.downscaling.files import MonthlyFiles, Where
    from iobench_maelstrom.downscaling.normalisation import Normalisation
    from iobench_maelstrom.downscaling.schema import Request

__all__ = ["positions_of", "provenance_of", "spec_of", "splits_of"]

HOME_PAGE = "https://git.ecmwf.int/projects/MLFET/repos/maelstrom-downscaling-ap5"
TERMS = f"{HOME_PAGE}/browse/climetlab-maelstrom-downscaling-ap5/LICENSE"


def spec_of(monthly: MonthlyFiles) -> SampleSpec:
    """Return what one sample is: its input and target channels."""
    channels, dims = monthly.channels, ("channel", *monthly.tier.dims[1:])
    n_inputs, n_targets = len(channels.inputs), len(channels.targets)
    shape = monthly.tier.shape
    inputs = Variable("inputs", (n_inputs, *shape), "<f4", dims, "1", channels=channels.inputs)
    targets = Variable(
        "targets",
        (n_targets, *shape),
        "<f4",
        dims,
        "1",
        role="target",
        channels=channels.targets,
    )
    return SampleSpec((inputs, targets))


def splits_of(
    monthly: MonthlyFiles, where: Sequence[Where], augmented: str
) -> dict[str, list[int]]:
    """Return the samples of each split by the month of their time, without empty ones."""
    if augmented:
        return {monthly.tier.augmented[augmented][1]: list(range(len(where)))}
    splits: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    for number, (file, index) in enumerate(where):
        split = monthly.tier.split_of(str(monthly.times[file][index])[:7])
        if split:
            splits[split].append(number)
    return {name: numbers for name, numbers in splits.items() if numbers}


def positions_of(monthly: MonthlyFiles, augmented: str) -> tuple[list[float], str]:
    """Return where samples lie in time; nothing of an augmented file, which repeats times."""
    if augmented:
        return [], ""
    positions, units = time_positions(np.concatenate(monthly.times))
    return positions.tolist(), units


def provenance_of(
    name: str,
    request: Request,
    monthly: MonthlyFiles,
    normalisation: Normalisation,
    fitted: Sequence[int],
) -> dict[str, Any]:
    """Return what the samples' values follow from; ``fitted`` are the files they are scored by."""
    files = [file.path for file in monthly.files]
    return {
        "dataset": name,
        "tier": monthly.tier.number,
        "options": {
            "months": list(request.months),
            "dataset": request.dataset,
            "variant": monthly.variant,
        },
        "schema": {field.name: field.units for field in monthly.tier.fields},
        "files": [{"name": file.name, "nbytes": file.stat().st_size} for file in files],
        "normalisation": {
            "formula": "(x - mean) / std, ddof 0; a std of 0 divides by 1",
            "over": "time, rows and columns, per variable",
            "per_grid_point_over_time": list(monthly.tier.per_point),
            "files": [files[number].name for number in fitted],
            "sha256": normalisation.checksum(),
        },
        "home_page": HOME_PAGE,
        "terms_of_use": TERMS,
        "licence": "Apache Licence Version 2.0",
    }
