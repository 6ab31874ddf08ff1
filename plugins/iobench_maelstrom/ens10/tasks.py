"""The D2.3 U-Net's tasks on pressure levels: z500 and t850, from the variables at that level."""

from __future__ import annotations

from iobench_maelstrom.ens10.ens5mini_schema import LEVELS, PRESSURE_VARIABLES
from iobench_maelstrom.ens10.schema import BUCKET_URL, SURFACE_TASK, GribField, UnetTask

__all__ = ["PRESSURE_FIELDS", "TASKS", "TASK_LEVELS"]

PARAMETERS = {"z": 129, "t": 130, "q": 133, "w": 135, "d": 155, "u": 131, "v": 132}
PRESSURE_FIELDS = tuple(
    GribField(
        f"{variable.name}{level}",
        PARAMETERS[variable.name],
        variable.units,
        *variable.ranges[number],
        level,
    )
    for number, level in enumerate(LEVELS)
    for variable in PRESSURE_VARIABLES
)
"""In the files' order of messages: level by level."""
TASK_LEVELS = (850, 500)
"""All that is left of the files after upstream's ``grib_copy``, in their order."""


def _task(target: str, units: str) -> UnetTask:
    """Return a task by its target, e.g. ``z500``; the names in ERA5's files are an assumption."""
    variables = tuple(field for field in PRESSURE_FIELDS if field.level == int(target[1:]))
    url = f"{BUCKET_URL}/era5/ERA5_{target}.nc"
    return UnetTask("pl", variables, target, units, target[0], url)


TASKS = {
    "sfc": {"era5": SURFACE_TASK, "none": SURFACE_TASK},
    "pl": {"z500": _task("z500", "m**2 s**-2"), "t850": _task("t850", "K")},
}
"""By ``dtype`` and ``target``."""
