"""Writes a stand-in of the radiation TFRecords and of the norms published beside them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import Advance, PlannedFile, StandIn, in_mirror, netcdf4
from iobench.stores import FeatureKind, crc32c, encode_example, frame_footer, frame_header
from iobench_maelstrom.radiation.atmosphere import ATMOSPHERE_VERSION, Atmosphere, solar_irradiance
from iobench_maelstrom.radiation.examples import INPUT_FIELDS
from iobench_maelstrom.radiation.grouping import group_inputs, heating_rate
from iobench_maelstrom.radiation.norms import norm_urls
from iobench_maelstrom.radiation.subsets import COLUMNS_PER_EXAMPLE_FILE, SUBSETS, ExampleFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["STAND_IN_VERSION", "ExamplesPlan", "planned_examples"]

STAND_IN_VERSION = 10 * ATMOSPHERE_VERSION + 1
"""Counts up when the same seed gives other bytes."""
SOLVER = "tripleclouds"
EXAMPLE_NBYTES = 20_576
TINY_COLUMNS, DEFAULT_COLUMNS = 256, 12_288
NORM_COLUMNS, NORM_NBYTES = 2048, 16 << 10
AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class ExamplesPlan(StandIn):
    """What a stand-in of the TFRecords holds: ``n_steps`` examples a file, and the norms."""

    files: tuple[ExampleFile, ...] = ()

    @classmethod
    def of_size(cls, *, scale: float | None, tiny: bool, seed: int) -> ExamplesPlan:
        """Return the plan of a size; ``scale`` is the share of the columns of subset 2020.

        Up to three files those of tier-1 get shorter, beyond there are more of them.
        """
        tier_1 = tuple(
            file for name in ("tier-1", "tier-1-val", "tier-1-test") for file in _files(name)
        )
        if tiny or scale is None:
            return cls(seed, (), TINY_COLUMNS if tiny else DEFAULT_COLUMNS, files=tier_1)
        everything = _files("2020")
        share = scale * len(everything)
        if share < len(tier_1):
            return cls(seed, (), max(1, round(share * COLUMNS_PER_EXAMPLE_FILE / 3)), files=tier_1)
        others = [file for file in everything if file not in tier_1]
        more = others[: round(share) - len(tier_1)]
        return cls(seed, (), COLUMNS_PER_EXAMPLE_FILE, files=(*tier_1, *more))

    @property
    def file_nbytes(self) -> int:
        """Bytes of one TFRecord file."""
        return self.n_steps * EXAMPLE_NBYTES


def _files(subset: str) -> tuple[ExampleFile, ...]:
    timesteps, numbers = SUBSETS[subset]
    return tuple(ExampleFile(SOLVER, timestep, n) for timestep in timesteps for n in numbers)


def planned_examples(plan: ExamplesPlan) -> list[PlannedFile]:
    """Return the files of a stand-in of the TFRecords."""
    files = []
    for file in plan.files:
        key = (plan.seed, file.timestep, file.number)
        write = functools.partial(_write_examples, key, plan.n_steps)
        files.append(PlannedFile(in_mirror(file.url()), plan.file_nbytes, write))
    for name, url in zip(INPUT_FIELDS, norm_urls(INPUT_FIELDS), strict=True):
        write = functools.partial(_write_norms, plan.seed, name)
        files.append(PlannedFile(in_mirror(url), NORM_NBYTES, write))
    return files


def _write_examples(key: tuple[int, ...], n_columns: int, path: Path, advance: Advance) -> None:
    with path.open("wb") as stream:
        for features in _shuffled_columns(key, n_columns):
            count = len(features["sca_inputs"])
            for number in range(count):
                named = [(k, FeatureKind.FLOAT, v[number]) for k, v in features.items()]
                stream.writelines(_framed(named))
            advance(count * EXAMPLE_NBYTES)


def _shuffled_columns(
    key: tuple[int, ...], n_columns: int
) -> Iterator[Mapping[str, NDArray[np.float32]]]:
    """Yield the features of columns of any day, many at once, by name."""
    atmosphere = Atmosphere(key, n_columns, shuffled=True)
    days = np.random.default_rng(key).integers(1, 366, n_columns)
    irradiance = np.array([solar_irradiance(day) for day in range(366)], dtype=np.float32)[days]
    for start in range(0, n_columns, AT_ONCE):
        stop = min(start + AT_ONCE, n_columns)
        columns = atmosphere.inputs(start, stop) | atmosphere.outputs(start, stop)
        columns["solar_irradiance"] = irradiance[start:stop]
        features = group_inputs(columns)
        for band in ("sw", "lw"):
            down, up = columns[f"flux_dn_{band}"], columns[f"flux_up_{band}"]
            features[band] = np.stack([down, up], axis=-1)
            rate = heating_rate(down, up, columns["pressure_hl"], 1)
            features[f"hr_{band}"] = rate[..., None]
        yield features


def _framed(features: list[tuple[str, FeatureKind, NDArray[Any]]]) -> list[Any]:
    pieces = encode_example(features)
    crc, nbytes = 0, 0
    for piece in pieces:
        crc = crc32c(piece, crc)
        nbytes += len(piece)
    return [frame_header(nbytes), *pieces, frame_footer(crc)]


def _write_norms(seed: int, name: str, path: Path, advance: Advance) -> None:
    """Write mean and deviation of a group over other columns of the same climate."""
    values = np.concatenate([part[name] for part in _shuffled_columns((seed, 1), NORM_COLUMNS)])
    values = values.reshape(-1, values.shape[-1])
    mean, deviation = values.mean(axis=0), values.std(axis=0)
    with netcdf4("maelstrom-radiation-tf").Dataset(path, "w", format="NETCDF4") as file:
        file.createDimension("variable", len(mean))
        file.createVariable(f"{name}_mean", "f4", ("variable",), contiguous=True)[:] = mean
        # Of what is constant, the deviation is told as 1, so that it stays a number.
        divisor = np.where(deviation > 0, deviation, 1)
        file.createVariable(f"{name}_std", "f4", ("variable",), contiguous=True)[:] = divisor
    advance(NORM_NBYTES)
