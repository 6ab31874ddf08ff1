"""Application A3 as NetCDF: a sample is one atmospheric column with its fluxes and heating rates.

A column is scattered over 25 arrays of its file of inputs and the fluxes of its file of outputs:
its row of each array is read by extent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.datasets import (
    Arrays,
    Baseline,
    ChunkedFields,
    Locator,
    Progress,
    PublishedStep,
    Raw,
    SampleIndex,
    no_progress,
    stand_in_identity,
    write_planned_files,
)
from iobench.errors import MissingFileError, OptionError
from iobench.samples import Sample, SampleSpec, Variable
from iobench_maelstrom.downloads import radiation_downloads
from iobench_maelstrom.radiation.grouping import (
    CHANNELS,
    GROUPS,
    group_inputs,
)
from iobench_maelstrom.radiation.opening import open_pairs
from iobench_maelstrom.radiation.options import (
    choose,
    choose_many,
    choose_numbers,
    flag,
    refuse_unknown,
)
from iobench_maelstrom.radiation.outputs import (
    Outputs,
    outputs_asked_for,
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
from iobench_maelstrom.radiation.sequences import PairNames, PairPlaces, samples_named
from iobench_maelstrom.radiation.stand_in import SOLVER, STAND_IN_VERSION, PairPlan, planned_pairs
from iobench_maelstrom.radiation.through_plugin import columns_through_plugin
from iobench_maelstrom.radiation.upstream import column_stream, in_upstream_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import Downloads
    from iobench_maelstrom.radiation.pairs import Pairs

__all__ = ["PUBLISHED", "Radiation", "radiation", "require_files"]

OPTIONS = (
    "dataset", "date", "timestep", "patch", "subset", "raw_inputs", "minimal_outputs",
    "all_outputs", "heating_rate", "hr_units", "topnetflux", "gather_fluxes",
)  # fmt: skip
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


def radiation(**options: str) -> Radiation:
    """Return the dataset ``maelstrom-radiation``.

    Options have upstream's names and values; lists are separated by commas.

    Parameters
    ----------
    dataset : {"tripleclouds", "mcica", "3dcorrection", "spartacus"}, optional
        The radiation scheme whose outputs are the targets.
    date : str, optional
        Days, ``YYYYMMDD``: every 30 days of 2020, and four of 2019; by default 20200101.
    timestep : str, optional
        Some of 0,125,...,3500; by default 0.
    patch : str, optional
        Some of 0 to 15; by default 0,2,...,14.
    subset : {"tier-1", "2020"}, optional
        Instead of date, timestep and patch.
    raw_inputs : {"true", "false"}, optional
        True: each variable by itself, with latitude and longitude, as upstream does by default.
        False, the default here: the five groups that the networks are trained on.
    heating_rate : {"true", "false"}, optional
        Whether samples have ``hr_sw`` and ``hr_lw``; true by default.
    hr_units : {"K d-1", "K s-1"}, optional
        Their units.
    gather_fluxes : {"true", "false"}, optional
        True: ``sw`` and ``lw``, downward and upward side by side.
    minimal_outputs : {"true", "false"}, optional
        True: ``fluxes_sw`` and ``fluxes_lw``, at the top and the ground alone.
    topnetflux : {"true", "false"}, optional
        True, with ``minimal_outputs``: the net flux at the top instead of the upward one.
    all_outputs : {"true", "false"}, optional
        True: every variable of the outputs that has columns.

    Raises
    ------
    OptionError
        For any other option or value, listing the valid ones.
    """
    refuse_unknown(options, OPTIONS, dataset=Radiation.name)
    return Radiation(
        _pairs_asked_for(options),
        solver=choose(options, "dataset", SOLVERS, "tripleclouds"),
        raw_inputs=flag(options, "raw_inputs", False),
        outputs=outputs_asked_for(options),
    )


def _pairs_asked_for(options: Mapping[str, str]) -> tuple[FilePair, ...]:
    if "subset" in options:
        also = sorted({"date", "timestep", "patch"} & set(options))
        if also:
            raise OptionError(f"subset says which files; leave {', '.join(also)} away, or subset")
        return files_of(*SUBSETS[choose(options, "subset", SUBSETS, "")])
    dates, timesteps, patches = SUBSETS["tier-1"]
    return files_of(
        choose_many(options, "date", DATES, dates),
        choose_numbers(options, "timestep", TIMESTEPS, timesteps),
        choose_numbers(options, "patch", PATCHES, patches),
    )


class Radiation(ChunkedFields):
    """Columns of the raw radiation files: a `Dataset` with both baselines, and a `Synthesizer`.

    Parameters
    ----------
    pairs : tuple of FilePair
        The files, all of which are required.
    solver : str
        Whose outputs are the targets.
    raw_inputs : bool
        Whether inputs are single variables rather than groups.
    outputs : Outputs
        Which targets.
    """

    name = "maelstrom-radiation"
    title = "Atmospheric columns and their radiative fluxes, NetCDF (MAELSTROM A3)"
    published: PublishedStep | None = PUBLISHED
    synthesis_version = STAND_IN_VERSION

    def __init__(
        self, pairs: tuple[FilePair, ...], *, solver: str, raw_inputs: bool, outputs: Outputs
    ) -> None:
        self.pairs = pairs
        self.solver = solver
        self.raw_inputs = raw_inputs
        self.outputs = outputs
        self.fused: tuple[str, ...] = ()
        self.thread_safe = True
        self._opened: Pairs | None = None

    def files(self, locator: Locator) -> list[Path]:
        """Return the files of inputs and then, in the same order, those of outputs.

        Raises
        ------
        MissingFileError
            Naming what is missing by URL and where it was looked for.
        """
        urls = [pair.input_url() for pair in self.pairs]
        urls += [pair.output_url(self.solver) for pair in self.pairs]
        return require_files(self.name, urls, locator)

    def downloads(self) -> Downloads:
        """Return what ``--download`` fetches; raise OptionError where no choice was made."""
        return radiation_downloads(self)

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
        self.thread_safe = not opened.needs_library  # the NetCDF library is not
        labels = [f"{pair.date} step {pair.timestep} patch {pair.patch}" for pair in self.pairs]
        return SampleIndex(
            spec=self._spec(opened),
            where=PairPlaces(opened.n_columns),
            splits=self._splits(opened),
            coordinate=PairNames(labels, opened.n_columns),
            provenance={**self._provenance(files, opened), "stand_in": locator.stand_in},
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
        self,
        files: Sequence[Path],
        index: SampleIndex,
        locator: Locator,
        *,
        batch_size: int | None = None,
    ) -> Baseline:
        """Return how the real plugin makes these samples; see `columns_through_plugin`."""
        like = Radiation(
            self.pairs, solver=self.solver, raw_inputs=self.raw_inputs, outputs=self.outputs
        )
        return columns_through_plugin(like, files, index, self._prepared().n_columns)

    def synthesis_nbytes(self, *, scale: float | None, tiny: bool) -> int:
        """Return about the bytes ``synthesize`` will write."""
        return self._plan(scale=scale, tiny=tiny, seed=0).nbytes

    def synthesize(
        self,
        root: Path,
        *,
        scale: float | None,
        tiny: bool,
        seed: int,
        progress: Progress = no_progress,
        processes: int | None = None,
    ) -> list[Path]:
        """Write the stand-in under ``root`` and return its files."""
        plan = self._plan(scale=scale, tiny=tiny, seed=seed)
        identity = stand_in_identity(
            self.name, seed=seed, version=STAND_IN_VERSION, scale=scale, tiny=tiny
        )
        return write_planned_files(
            root,
            planned_pairs(plan),
            identity=identity,
            processes=processes,
            progress=progress,
        )

    def _plan(self, *, scale: float | None, tiny: bool, seed: int) -> PairPlan:
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

    def _provenance(self, files: Sequence[Path], opened: Pairs) -> dict[str, Any]:
        wanted = self.outputs
        return {
            "dataset": self.name,
            "solver": self.solver,
            "raw_inputs": self.raw_inputs,
            "outputs": {field.name: getattr(wanted, field.name) for field in fields(Outputs)},
            "files": [{"name": path.name, "nbytes": path.stat().st_size} for path in files],
            "columns_per_file": list(opened.n_columns),
            "licence": LICENCE,
            "terms_of_use": TERMS_OF_USE,
        }


GROUP_UNITS = {"pressure_hl": "Pa", "inter_inputs": "1"}
"""The other groups mix quantities."""


def require_files(name: str, urls: Sequence[str], locator: Locator) -> list[Path]:
    """Return the file of each URL, or raise MissingFileError that lists those without one."""
    found = locator.find(urls)
    missing = [url for url, path in zip(urls, found, strict=True) if path is None]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise MissingFileError(
            f"{name}: {', '.join(missing[:5])}{more} not found in {locator.searched()}; fetch "
            "what is missing and name its folder with --data-dir"
        )
    return [path for path in found if path is not None]
