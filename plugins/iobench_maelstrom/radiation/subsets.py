"""Which TFRecord files of the radiation data there are, by upstream's subsets."""

from __future__ import annotations

from dataclasses import dataclass

from iobench_maelstrom.radiation.schema import BUCKET_URL, TIMESTEPS

__all__ = [
    "COLUMNS_PER_EXAMPLE_FILE",
    "EXAMPLE_TIMESTEPS",
    "FILE_NUMBERS",
    "SUBSETS",
    "ExampleFile",
    "split_of_timestep",
]

COLUMNS_PER_EXAMPLE_FILE = 67840
VALIDATION, TEST = (2019013100, 2019082900), (2019053100, 2019102800)
EXAMPLE_TIMESTEPS = (*TIMESTEPS, *sorted((*VALIDATION, *TEST)))
"""Those of 2020, and four dates of 2019 of which each is one."""
FILE_NUMBERS = {True: tuple(range(52)), False: tuple(range(116))}
"""Numbers of the files of a time step: of 2020 (True) or of 2019."""
FEW, FEWER = tuple(range(0, 52, 5)), (0, 25, 50)
SUBSETS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "tier-1": ((0,), (0,)),
    "tier-1-val": (VALIDATION[:1], (0,)),
    "tier-1-test": (TEST[:1], (0,)),
    "2020": (TIMESTEPS, FILE_NUMBERS[True]),
    **{str(date): ((date,), FILE_NUMBERS[False]) for date in sorted((*VALIDATION, *TEST))},
    "tier-2": (TIMESTEPS, FEW),
    "tier-2-val": (VALIDATION, FEWER),
    "tier-2-test": (TEST, FEWER),
    "tier-3": (TIMESTEPS[::8], FEW),
    "tier-3-val": (VALIDATION, FEWER),
    "tier-3-test": (TEST, FEWER),
}
"""Time steps and file numbers of each subset."""
PATTERNS = {
    "tripleclouds": "records/triplecloud",
    "3dcorrection": "records/3dcorrection",
    "mcica": "TFR/TripCloud",
    "spartacus": "TFR/spartacus",
}


@dataclass(frozen=True, slots=True)
class ExampleFile:
    """One TFRecord file of a radiation scheme."""

    solver: str
    timestep: int
    number: int

    @property
    def name(self) -> str:
        """Its name in the bucket."""
        return f"{PATTERNS[self.solver]}{self.timestep}.{self.number}.tfrecord"

    def url(self) -> str:
        """Return where it is published."""
        return f"{BUCKET_URL}/{self.name}"


def split_of_timestep(timestep: int) -> str:
    """Return the split of a time step."""
    if timestep in VALIDATION:
        return "validation"
    return "test" if timestep in TEST else "train"
