"""Application A3 as NetCDF: a sample is one atmospheric column with its fluxes and heating rates.

A column is scattered over 25 arrays of its file of inputs and the fluxes of its file of outputs:
its row of each array is read by extent.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.datasets import (
    Arrays,
    Baseline,
    ChunkedFields,
    Computed,
    Downloads,
    Locator,
    Option,
    PlannedFile,
    PublishedFiles,
    PublishedStep,
    Raw,
    SampleIndex,
    StandIn,
    existing_files,
)
from iobench.errors import OptionError
from iobench.samples import Sample, SampleSpec, Variable
from iobench_maelstrom.plugin_samples import plugin_downloads
from iobench_maelstrom.radiation.grouping import CHANNELS, GROUPS, group_inputs
from iobench_maelstrom.radiation.opening import open_pairs
from iobench_maelstrom.radiation.outputs import (
    OUTPUT_OPTIONS,
    Outputs,
    target_arrays,
    target_variables,
    variables_read,
)
from iobench_maelstrom.radiation.pairs import COLUMN
from iobench_maelstrom.radiation.schema import (
    DATES,
    INPUTS,
    LICENCE,
    PATCHES,
    POSITIONS,
    SOLVERS,
    SUBSETS,
    TERMS_OF_USE,
    TIMESTEPS,
    FilePair,
    files_of,
    split_of_date,
)
from iobench_maelstrom.radiation.sequences import Starts, samples_named
from iobench_maelstrom.radiation.stand_in import SOLVER, STAND_IN_VERSION, PairPlan, planned_pairs
from iobench_maelstrom.radiation.through_plugin import columns_through_plugin
from iobench_maelstrom.radiation.upstream import column_stream, in_upstream_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench_maelstrom.radiation.pairs import Pairs

__all__ = ["INSTALL", "PUBLISHED", "SOLVER_OPTION", "Radiation", "chosen_files"]

INSTALL = "pip install --no-deps climetlab-maelstrom-radiation==0.7.5"
PUBLISHED = PublishedStep(
    forward_ns=42_000_000,
    backward_ns=0,
    batch_size=512,
    source=(
        "MAELSTROM D2.3, A3: CNN + self-attention, TensorFlow 2.9.1, one A100 40 GB; the whole "
        "step, in which I/O was not told apart: at most"
    ),
    tables={
        "D2.3, A3, TensorFlow": {
            "epoch": (1801.48753, 1806.99452, 1807.31890, 1812.72032, 3.91004),
            "batch": (0.02241, 0.04203, 0.04195, 5.69129, 0.01004),
        },
    },
)


SOLVER_OPTION = Option(
    "dataset", "The radiation scheme whose outputs are the targets.", SOLVER, tuple(SOLVERS)
)
TIER_1 = SUBSETS["tier-1"]


def chosen_files(
    options: dict[str, str], chosen: dict[str, Any], names: Sequence[str]
) -> list[Any] | None:
    """Return the values of the options that choose files; None where a subset does.

    Raises
    ------
    OptionError
        If both do.
    """
    if "subset" not in options:
        return [chosen[name] for name in names]
    if also := sorted(set(names) & set(options)):
        raise OptionError(f"subset says which files; leave {', '.join(also)} away, or subset")
    return None


class Radiation(PublishedFiles, ChunkedFields):
    """Columns of the raw radiation files, with both baselines; options as upstream's.

    Attributes
    ----------
    pairs : tuple of FilePair
        The files, all of which are required.
    solver : str
        Whose outputs are the targets.
    outputs : Outputs
        Which targets.
    """

    name = "maelstrom-radiation"
    title = "Atmospheric columns and their radiative fluxes, NetCDF (MAELSTROM A3)"
    published: PublishedStep | None = PUBLISHED
    terms_of_use = TERMS_OF_USE
    synthesis_version = STAND_IN_VERSION
    options = (
        SOLVER_OPTION,
        Option(
            "date", "Days: every 30 days of 2020, and four of 2019.", TIER_1[0], DATES, many=True
        ),
        Option("timestep", "", tuple(map(str, TIER_1[1])), tuple(map(str, TIMESTEPS)), many=True),
        Option("patch", "", tuple(map(str, TIER_1[2])), tuple(map(str, PATCHES)), many=True),
        Option("subset", "Instead of date, timestep and patch.", values=tuple(SUBSETS)),
        Option(
            "raw_inputs",
            "Each variable by itself, with latitude and longitude, as upstream does by default; "
            "else the five groups that the networks are trained on.",
            False,
        ),
        *OUTPUT_OPTIONS,
    )

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self.solver: str = self.chosen["dataset"]
        self.raw_inputs: bool = self.chosen["raw_inputs"]
        self.outputs = Outputs.asked_for(self.chosen, options)
        names = ("date", "timestep", "patch")
        if (asked := chosen_files(options, self.chosen, names)) is None:
            self.pairs = files_of(*SUBSETS[self.chosen["subset"]])
        else:
            dates, *numbers = asked
            timesteps, patches = (tuple(map(int, each)) for each in numbers)
            self.pairs = files_of(dates, timesteps, patches)
        self._opened: Pairs | None = None

    def urls(self) -> list[str]:
        """Return the URLs of the inputs and then, in the same order, of the outputs."""
        inputs = [pair.input_url() for pair in self.pairs]
        return inputs + [pair.output_url(self.solver) for pair in self.pairs]

    def files(self, locator: Locator) -> list[Path]:
        """Return the files of inputs and then those of outputs; all are needed."""
        return existing_files(self.name, self.urls(), locator)

    def downloads(self) -> Downloads:
        """Return what ``--download`` fetches: by default the small subset tier-1."""
        arguments: dict[str, Any] = {
            "dataset": self.solver,
            "date": list(dict.fromkeys(pair.date for pair in self.pairs)),
            "timestep": list(dict.fromkeys(pair.timestep for pair in self.pairs)),
            "patch": list(dict.fromkeys(pair.patch for pair in self.pairs)),
        }
        return plugin_downloads(self, arguments, install=INSTALL)

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return one sample per column, in the order of date, time step, patch and column.

        Raises
        ------
        FileFormatError
            If a file has another schema, naming the variable or dimension, or is cut short.
        """
        half = len(files) // 2
        opened = open_pairs(
            files[:half],
            files[half:],
            inputs=(*INPUTS, *POSITIONS) if self.raw_inputs else tuple(INPUTS),
            outputs=variables_read(self.outputs),
            cache_dir=locator.cache_dir,
            progress=locator.progress,
        )
        self._opened = opened
        self._find_chunks(COLUMN, opened.stored())
        self.fused = ("read", "decode") if opened.needs_library else ()
        starts = Starts(opened.n_columns)
        return SampleIndex(
            spec=self._spec(opened),
            where=Computed(len(starts), starts.locate),
            splits=self._splits(opened),
            coordinate=Computed(len(starts), ColumnNames(self.pairs, starts)),
            provenance={
                **self.facts(files),
                "solver": self.solver,
                "raw_inputs": self.raw_inputs,
                "outputs": dataclasses.asdict(self.outputs),
                "columns_per_file": list(opened.n_columns),
                "licence": LICENCE,
                "stand_in": locator.stand_in,
            },
        )

    def read(self, where: tuple[int, int]) -> Any:
        """Return the column's row of each variable; the arrays where the library must read."""
        return self._prepared().read(where, self._chunks)

    def decode(self, raw: Raw, where: tuple[int, int]) -> Arrays:
        """Return the column's variables by name, in file order of dimensions, float32."""
        return self._prepared().decode(raw)

    def preprocess(self, arrays: Arrays, where: tuple[int, int]) -> Sample:
        """Return inputs as grouped, fluxes as asked for, and heating rates."""
        sample: dict[str, NDArray[Any]] = {}
        if self.raw_inputs:
            sample.update((name, arrays[name]) for name in (*INPUTS, *POSITIONS))
        else:
            if self._prepared().aerosols_first:
                arrays = {**arrays, "aerosol_mmr": arrays["aerosol_mmr"].T}
            sample.update(group_inputs(arrays))
        sample.update(target_arrays(self.outputs, arrays, self._prepared().fluxes))
        return sample

    def upstream(
        self, files: Sequence[Path], index: SampleIndex, locator: Locator, *, batch_size: int | None
    ) -> Baseline:
        """Return how the application loads these files; see `column_stream`."""
        half = len(files) // 2
        paired = [(files[n], files[half + n]) for n in in_upstream_order(self.pairs)]
        return column_stream(
            paired,
            spec=index.spec,
            raw_inputs=self.raw_inputs,
            outputs=self.outputs,
            batch_size=batch_size,
        )

    def through_plugin(
        self, files: Sequence[Path], index: SampleIndex, locator: Locator, *, batch_size: int | None
    ) -> Baseline:
        """Return how the real plugin makes these samples; see `columns_through_plugin`."""
        columns = self._prepared().n_columns
        like = copy.copy(self)  # travels to workers: without what is open
        like._opened = None
        return columns_through_plugin(like, files, index, columns)

    def stand_in(self, *, scale: float | None, tiny: bool, seed: int) -> PairPlan:
        """Return what a stand-in holds."""
        plan = PairPlan.of_size(scale=scale, tiny=tiny, seed=seed)
        if self.solver != SOLVER:
            raise OptionError(
                f"dataset {self.solver!r}: no file of it is at hand, and the stand-in holds only "
                f"{SOLVER}; choose that or give --data-dir"
            )
        missing = sorted(set(self.pairs) - set(plan.pairs))
        if missing:
            raise OptionError(
                f"maelstrom-radiation: {missing[0].input_url().rpartition('/')[2]} is not at hand, "
                f"and the stand-in holds {len(plan.pairs)} pairs of files, first those of subset "
                "tier-1; choose among them, give --data-dir, or a larger --scale"
            )
        return plan

    def planned_files(self, plan: StandIn) -> list[PlannedFile]:
        """Return the files of a stand-in: of each pair two."""
        assert isinstance(plan, PairPlan)
        return planned_pairs(plan)

    def _prepared(self) -> Pairs:
        if self._opened is None:
            raise OptionError("maelstrom-radiation: call samples() before reading and decoding")
        return self._opened

    def _splits(self, opened: Pairs) -> dict[str, Sequence[int]]:
        names = [split_of_date(pair.date) for pair in self.pairs]
        return {name: samples_named(names, name, opened.n_columns) for name in dict.fromkeys(names)}

    def _spec(self, opened: Pairs) -> SampleSpec:
        variables = []
        if self.raw_inputs:
            for variable in (*INPUTS.values(), *POSITIONS.values()):
                dims, shape = opened.layout(variable.name)
                variables.append(Variable(variable.name, shape, "<f4", dims, variable.units))
        else:
            variables += [
                Variable(
                    name, shape, "<f4", dims, GROUP_UNITS.get(name, ""), channels=CHANNELS[name]
                )
                for name, (dims, shape) in GROUPS.items()
            ]
        return SampleSpec((*variables, *target_variables(self.outputs, opened)))


class ColumnNames:
    """The name of every column: that of its pair, and its number in it."""

    def __init__(self, pairs: Sequence[FilePair], starts: Starts) -> None:
        self._pairs = tuple(pairs)
        self._starts = starts

    def __call__(self, number: int) -> str:
        """Return the name of one column."""
        place, column = self._starts.locate(number)
        pair = self._pairs[place]
        return f"{pair.date} step {pair.timestep} patch {pair.patch} column {column}"


GROUP_UNITS = {"pressure_hl": "Pa", "inter_inputs": "1"}
"""The other groups mix quantities."""
