"""What a stand-in of application A5 holds: smooth random fields, coarse inputs and fine targets.

Every value follows from (seed, tier, month, variable, time) alone. Inputs and targets share their
weather and topography.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench_maelstrom.ens10.stand_in import smooth_mode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import Field, StandIn
    from iobench_maelstrom.downscaling.dataset import Downscaling

VERSION = 1
N_MODES = 10
N_WEATHER = 4
DAILY = {"slhf_in": -0.25, "sshf_in": -0.3, "blh_in": 0.25}
"""How far the day moves a variable, as a share of its range; temperatures less."""
Patterns = list["NDArray[np.float64]"]


def field_values(
    dataset: Downscaling, field: Field, month: str, plan: StandIn
) -> NDArray[np.float64]:
    """Return a variable's month, as stored: (time, row, column), or one field of a static one."""
    rows, columns = (axis.length for axis in dataset.axes[1:])
    modes = _modes(plan.seed, dataset.number, rows, columns)
    times = dataset.times({"months": month}, plan.n_steps)
    hours = dataset.step_hours * np.arange(len(times))
    if not field.is_static:
        fraction = _weather(dataset, field, month, plan.seed, hours, modes)
    elif dataset.stored_dims(field)[0] == "time":
        fraction = np.broadcast_to(_static(field.name, modes), (len(times), rows, columns))
    else:
        fraction = _static(field.name, modes)
    values: NDArray[np.float64] = np.clip(fraction, 0.0, 1.0)
    values *= field.high - field.low
    values += field.low
    return values


def _static(name: str, modes: Patterns) -> NDArray[np.float64]:
    """Return topography or land share as fractions; of the target with finer structure."""
    smooth = modes[0] + 0.4 * modes[1]
    if name.endswith("_tar"):
        smooth = smooth + 0.15 * modes[2]
    if name in ("lsm_in", "fr_land_tar"):
        return 0.5 + 3.0 * (smooth + 0.5)
    land: NDArray[np.float64] = 0.15 + 0.12 * smooth
    return land * np.abs(land) * 3.0


def _weather(
    dataset: Downscaling,
    field: Field,
    month: str,
    seed: int,
    hours: NDArray[Any],
    modes: Patterns,
) -> NDArray[np.float64]:
    """Return a variable's month as fractions of its range, shape (time, row, column).

    Patterns grow and decay within days. All temperatures, and the other variables among
    themselves, share half of their weather.
    """
    is_warmth = field.units == "K"
    season = -np.cos(2 * np.pi * (int(month[5:]) - 1) / 12)
    day = np.cos(2 * np.pi * (hours - 14) / 24)
    daily = DAILY.get(field.name, 0.05 if is_warmth else 0.0)
    level = 0.5 + (0.15 * season if is_warmth else 0.0) + daily * day
    values = np.empty((len(hours), *modes[0].shape))
    values[:] = level[:, None, None]
    if is_warmth or field.name == "sp_in":
        topography = _static(next(f.name for f in dataset.fields if f.is_static), modes)
        values -= (0.25 if is_warmth else 0.8) * topography
    shared = 900 + is_warmth
    for kind in (shared, dataset.fields.index(field)):
        key = [seed, VERSION, dataset.number, kind, int(month[:4]), int(month[5:])]
        random = np.random.default_rng(key)
        for mode in random.choice(N_MODES, size=N_WEATHER, replace=False):
            days, start, weight = random.uniform(3, 9), random.uniform(0, 2 * np.pi), 0.045
            course = weight * np.cos(2 * np.pi * hours / (24 * days) + start)
            values += course[:, None, None] * modes[int(mode)]
    return values


@functools.lru_cache(maxsize=2)
def _modes(seed: int, tier: int, rows: int, columns: int) -> Patterns:
    """Return the patterns that all fields are made of; half of what goes around is enough."""
    shape = rows, 2 * columns
    return [
        smooth_mode(np.random.default_rng([seed, VERSION, tier, 0, number]), shape)[
            :, :columns
        ].astype(np.float64)
        for number in range(N_MODES)
    ]
