"""Which GRIB messages make up each sample, checked: a forecast lacking one is an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.errors import FileFormatError
from iobench_maelstrom.ens10.schema import LEAD_HOURS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import FileRange, GribIndex
    from iobench_maelstrom.ens10.schema import Task

NORTH_TO_SOUTH = 0
"""GRIB's scanning mode of rows from north to south, each from west to east."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What the samples of an index have in common."""

    starts: tuple[str, ...]  # start date (``YYYYMMDD``) of each sample, ascending
    members: tuple[int, ...]  # perturbation numbers, the same in all samples
    shape: tuple[int, int]  # latitudes and longitudes

    @property
    def n_members(self) -> int:
        """Members of each variable."""
        return len(self.members)

    @property
    def n_points(self) -> int:
        """Points of one field."""
        return self.shape[0] * self.shape[1]


def find_messages(index: GribIndex, task: Task) -> tuple[Layout, list[list[FileRange[str]]]]:
    """Return what samples are like, and where the messages of each are, by variable and member."""
    parameters = [field.param_id for field in task.fields]
    place: dict[str, Any] = {"typeOfLevel": "surface"}
    if task.level:
        place = {"typeOfLevel": "isobaricInhPa", "level": task.level}
    rows = index.rows(paramId=parameters, step=LEAD_HOURS, dataTime=0, **place)
    if not rows.size:
        kind = f"field at {task.level} hPa" if task.level else "surface field"
        raise FileFormatError(
            f"{index.files[0]}: no {kind} of ENS-10 at step {LEAD_HOURS} h among "
            f"{len(index)} messages in {len(index.files)} file(s); expected files "
            f"output.{task.dtype}.2018*"
        )
    shape = _common_grid(index, rows)
    starts, start_of = np.unique(index["dataDate"], return_inverse=True)
    members, member_of = np.unique(index["number"][rows], return_inverse=True)
    order = np.argsort(parameters)
    variable_of = order[np.searchsorted(np.sort(parameters), index["paramId"][rows])]
    slots = (start_of[rows], variable_of, member_of)
    table = np.full((len(starts), len(parameters), len(members)), -1, dtype=np.int64)
    table[slots] = rows
    missing = np.argwhere(table < 0)
    if missing.size:
        start, variable, member = missing[0].tolist()
        file = index.files[int(index["file"][index["dataDate"] == starts[start]][0])]
        day = str(starts[start])
        raise FileFormatError(
            f"{file}: the forecast of {day[:4]}-{day[4:6]}-{day[6:]} lacks "
            f"{task.fields[variable].name} of member {members[member]} at step {LEAD_HOURS} h "
            f"({len(missing)} message(s) missing in all); fetch the file again"
        )
    repeated = rows[table[slots] != rows]
    if repeated.size:
        raise FileFormatError(
            f"{index.where(int(repeated[0]))} is there twice (same start, variable, member); "
            "expected each once: are two files copies of one?"
        )
    layout = Layout(tuple(map(str, starts.tolist())), tuple(members.tolist()), shape)
    return layout, [index.extents(each) for each in table.reshape(len(starts), -1).tolist()]


def _common_grid(index: GribIndex, rows: NDArray[np.int64]) -> tuple[int, int]:
    odd = rows[index["gridHash"][rows] != index["gridHash"][rows[0]]]
    if odd.size:
        raise FileFormatError(
            f"{index.where(int(odd[0]))} has another grid than the first message; expected one "
            "grid in all files"
        )
    first = int(rows[0])
    shape = int(index["Nj"][first]), int(index["Ni"][first])
    regular = str(index["gridType"][first]) == "regular_ll" and min(shape) > 0
    if not regular or int(index["scanningMode"][first]) != NORTH_TO_SOUTH:
        raise FileFormatError(
            f"{index.where(first)} has grid {index['gridType'][first]} {shape}, scanning mode "
            f"{index['scanningMode'][first]}; expected regular_ll from north to south"
        )
    return shape
