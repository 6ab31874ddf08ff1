"""Application A3 as NetCDF: a sample is one atmospheric column with its fluxes and heating rates.

A column is scattered over 25 arrays of its file of inputs and the fluxes of its file of outputs:
its row of each array is read by extent.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from iobench.coordinates import Meteorology
from iobench.datasets import (
    Advance,
    Arrays,
    Baseline,
    ChunkedFields,
    Computed,
    FileKey,
    Key,
    Locator,
    Option,
    Raw,
    SampleIndex,
    SamplePlaces,
    StandIn,
    inspect_files,
    make_plain_loop,
    netcdf_meteorology,
)
from iobench.errors import OptionError
from iobench.samples import Sample, SampleSpec, Variable
from iobench_maelstrom.radiation.grouping import (
    CHANNELS,
    GROUPS,
    boundaries,
    group_inputs,
    heating_rate,
)
from iobench_maelstrom.radiation.pairs import COLUMN, OUTPUT_PRESSURE, Pairs
from iobench_maelstrom.radiation.published import (
    BUCKET_URL,
    DATES_2020,
    FLUX_OPTIONS,
    HR_SCALES,
    LICENCE,
    SCHEME,
    SPLITS_2019,
    TIMESTEPS,
    RadiationFiles,
    Starts,
)
from iobench_maelstrom.radiation.schema import FLUXES, INPUTS, LENGTHS, POSITIONS
from iobench_maelstrom.radiation.stand_in import pair_file_nbytes, write_pair_file
from iobench_maelstrom.radiation.through_plugin import columns_through_plugin

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import NetcdfFile

MAX_PLACED = 1 << 22
"""Of more columns than this a store keeps no place of each."""

PREFIXES = {
    "tripleclouds": "triplecloud_outputs",
    "mcica": "rad4NN_outputs",
    "3dcorrection": "3dcorrection_outputs",
    "spartacus": "spartacus_outputs",
}
"""How the names of a scheme's outputs begin; inputs are all schemes' own."""
INPUTS_PREFIX = "rad4NN_inputs"
DATES = tuple(sorted((*DATES_2020, *SPLITS_2019)))
PATCHES = tuple(map(str, range(16)))
BANDS = ("sw", "lw")
OUTPUT_OPTIONS = (
    Option("heating_rate", "Whether samples have hr_sw and hr_lw.", True),
    *FLUX_OPTIONS[:1],
    Option("gather_fluxes", "sw and lw, downward and upward side by side.", False),
    *FLUX_OPTIONS[1:],
    Option("all_outputs", "Every variable of the outputs that has columns.", False),
)
GROUP_UNITS = {"pressure_hl": "Pa", "inter_inputs": "1"}
"""The other groups mix quantities."""


class Radiation(ChunkedFields, RadiationFiles):
    """Columns of the raw radiation files, with both baselines; options as upstream's.

    Each of ``file_numbers`` is a pair of files.
    """

    name = "maelstrom-radiation"
    title = "Atmospheric columns and their radiative fluxes, NetCDF (MAELSTROM A3)"
    url = f"{BUCKET_URL}/{{prefix}}_{{date}}00_{{timestep}}c{{patch}}.nc"
    keys = (Key("date", DATES), Key("timestep", TIMESTEPS), Key("patch", PATCHES))
    subsets: Mapping[str, tuple[Sequence[str], ...]] = {
        "tier-1": (("20200101",), ("0",), PATCHES[::2]),
        "2020": (DATES_2020, TIMESTEPS, PATCHES),
    }
    stand_in_subsets = ("tier-1",)
    columns = (128, 4096, 16960)
    options = (
        SCHEME,
        Option(
            "date", "Days: every 30 days of 2020, and four of 2019.", ("20200101",), DATES,
            many=True,
        ),
        Option("timestep", "", ("0",), TIMESTEPS, many=True),
        Option("patch", "", PATCHES[::2], PATCHES, many=True),
        Option("subset", "Instead of date, timestep and patch.", values=tuple(subsets)),
        Option(
            "raw_inputs",
            "Each variable by itself, with latitude and longitude, as upstream does by default; "
            "else the five groups that the networks are trained on.",
            False,
        ),
        *OUTPUT_OPTIONS,
    )  # fmt: skip

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self.raw_inputs: bool = self.chosen["raw_inputs"]
        self.outputs = {each.name: self.chosen[each.name] for each in OUTPUT_OPTIONS}
        self._check_outputs("hr_units" in options)
        self._opened: Pairs | None = None

    def _check_outputs(self, has_units: bool) -> None:
        """Raise OptionError where options of the targets contradict each other."""
        wanted = self.outputs
        if has_units and not wanted["heating_rate"]:
            raise OptionError("hr_units: are those of heating rates; leave heating_rate=false away")
        if wanted["topnetflux"] and not wanted["minimal_outputs"]:
            raise OptionError("topnetflux: changes minimal outputs; add minimal_outputs=true")
        if wanted["minimal_outputs"] and not wanted["heating_rate"]:
            raise OptionError("minimal_outputs: needs heating rates; leave heating_rate=false away")
        names = ("minimal_outputs", "gather_fluxes", "all_outputs")
        kinds = [name for name in names if wanted[name]]
        if len(kinds) > 1:
            raise OptionError(f"{' and '.join(kinds)}: choose other fluxes each; give one of them")

    def pair_urls(self, pair: FileKey) -> list[str]:
        """Return where the inputs and the outputs of a pair are published."""
        prefixes = (INPUTS_PREFIX, PREFIXES[self.solver])
        return [self.file_url({**pair, "prefix": prefix}) for prefix in prefixes]

    def urls(self) -> list[str]:
        """Return the URLs of the inputs and then, in the same order, of the outputs."""
        inputs, outputs = zip(*map(self.pair_urls, self.file_numbers), strict=True)
        return [*inputs, *outputs]

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return one sample per column, in the order of date, time step, patch and column."""
        half = len(files) // 2
        if not half or len(files) != 2 * len(self.file_numbers):
            raise OptionError(
                f"{self.name}: {len(files)} files for {len(self.file_numbers)} pairs; give a file "
                "of inputs and one of outputs for each"
            )
        in_pairs = [each for pair in zip(files[:half], files[half:], strict=True) for each in pair]
        found = inspect_files(in_pairs, cache_dir=locator.cache_dir, progress=locator.progress)
        read = (*FLUXES, "pressure_hl") if self.outputs["heating_rate"] else tuple(FLUXES)
        opened = Pairs(
            list(zip(found[::2], found[1::2], strict=True)),
            (*INPUTS, *POSITIONS) if self.raw_inputs else tuple(INPUTS),
            None if self.outputs["all_outputs"] else read,
        )
        self._opened = opened
        self._find_chunks(COLUMN, opened.stored())
        self.fused = ("read", "decode") if opened.needs_library else ()
        starts = Starts(opened.n_columns)
        return SampleIndex(
            spec=self._spec(opened),
            where=Computed(len(starts), starts.locate),
            splits=self.splits(opened.n_columns),
            coordinate=Computed(
                len(starts), functools.partial(_column_name, self.file_numbers, starts)
            ),
            provenance={
                **self.facts(files),
                "solver": self.solver,
                "raw_inputs": self.raw_inputs,
                "outputs": self.outputs,
                "columns_per_file": list(opened.n_columns),
                "licence": LICENCE,
                "stand_in": locator.stand_in,
            },
            meteorology=self._meteorology(opened, found[::2], locator.cache_dir),
        )

    def read(self, where: tuple[int, int]) -> Any:
        """Return the column's row of each variable; the arrays where the library must read."""
        return self._prepared().read(where, self._chunks)

    def decode(self, raw: Raw, where: tuple[int, int]) -> Arrays:
        """Return the column's variables by name, in file order of dimensions, float32."""
        return self._prepared().decode(raw)

    def preprocess(self, arrays: Arrays, where: tuple[int, int]) -> Sample:
        """Return inputs as grouped, fluxes as asked for, and heating rates."""
        opened = self._prepared()
        sample: dict[str, NDArray[Any]] = {}
        if self.raw_inputs:
            sample.update((name, arrays[name]) for name in (*INPUTS, *POSITIONS))
        else:
            if opened.layout("aerosol_mmr")[0] != INPUTS["aerosol_mmr"].dims:
                arrays = {**arrays, "aerosol_mmr": arrays["aerosol_mmr"].T}
            sample.update(group_inputs(arrays))
        wanted = self.outputs
        if not (wanted["gather_fluxes"] or wanted["minimal_outputs"]):
            sample.update((name, arrays[name]) for name in opened.fluxes)
        for band in BANDS:
            down, up = arrays[f"flux_dn_{band}"], arrays[f"flux_up_{band}"]
            if wanted["gather_fluxes"]:
                sample[band] = np.stack([down, up], axis=-1)
            elif wanted["minimal_outputs"]:
                net = wanted["topnetflux"]
                sample[f"fluxes_{band}"] = boundaries(down, up, net_at_top=net)
            if wanted["heating_rate"]:
                scale = HR_SCALES[wanted["hr_units"]]
                sample[f"hr_{band}"] = heating_rate(down, up, arrays[OUTPUT_PRESSURE], scale)
        return sample

    def _spec(self, opened: Pairs) -> SampleSpec:
        variables = [
            Variable(name, shape, "<f4", dims, GROUP_UNITS.get(name, ""), channels=CHANNELS[name])
            for name, (dims, shape) in GROUPS.items()
        ]
        if self.raw_inputs:
            variables = []
            for each in (*INPUTS.values(), *POSITIONS.values()):
                dims, shape = opened.layout(each.name)
                variables.append(Variable(each.name, shape, "<f4", dims, each.units))
        for name, dims, shape in self._targets(opened):
            units = "" if name in opened.fluxes and name not in FLUXES else "W m-2"
            if name.startswith("hr_"):
                units = self.outputs["hr_units"]
            channels = CHANNELS.get(name, ())
            variables.append(Variable(name, shape, "<f4", dims, units, "target", channels))
        return SampleSpec(tuple(variables))

    def _meteorology(
        self, opened: Pairs, inputs: Sequence[NetcdfFile], cache_dir: Path
    ) -> Meteorology:
        """Return where each column is, unless it is a variable of the sample; no file says when."""
        left_out = {"time": "files are named by date and time step of the model; none has a time"}
        counts, n_columns = opened.n_columns, sum(opened.n_columns)
        if n_columns > MAX_PLACED:
            left_out |= dict.fromkeys(POSITIONS, f"told of up to {MAX_PLACED} columns")
            return Meteorology((COLUMN,), left_out=left_out)
        places = SamplePlaces(
            (COLUMN,),
            np.repeat(np.arange(len(counts)), counts),
            {COLUMN: np.concatenate([np.arange(count) for count in counts])},
        )
        held = (*INPUTS, *POSITIONS) if self.raw_inputs else tuple(INPUTS)
        chosen = {name: name if self.raw_inputs else "" for name in held}
        found = netcdf_meteorology(inputs, chosen, places, cache_dir=cache_dir)
        spec = self._spec(opened)
        whole = {one for each in spec for one in zip(each.dims, each.shape, strict=True)}
        found = found.within(whole)
        for name in POSITIONS:
            if name not in found and name not in held:
                left_out.setdefault(name, "has no units of a place in the files")
        return msgspec.structs.replace(found, left_out={**left_out, **found.left_out})

    def _targets(self, opened: Pairs) -> list[tuple[str, tuple[str, ...], tuple[int, ...]]]:
        """Return name, dimensions and shape of each target, fluxes first."""
        targets: list[tuple[str, tuple[str, ...], tuple[int, ...]]]
        if self.outputs["minimal_outputs"]:
            targets = [(f"fluxes_{band}", ("boundaries",), (3,)) for band in BANDS]
        elif self.outputs["gather_fluxes"]:
            shape = (LENGTHS["half_level"], 2)
            targets = [(band, ("half_level", "channel"), shape) for band in BANDS]
        else:
            targets = [(name, *opened.layout(name)) for name in opened.fluxes]
        if self.outputs["heating_rate"]:
            targets += [(f"hr_{band}", ("level",), (LENGTHS["level"],)) for band in BANDS]
        return targets

    def _prepared(self) -> Pairs:
        if self._opened is None:
            raise OptionError(f"{self.name}: call samples() before reading and decoding")
        return self._opened

    def in_upstream_order(self) -> list[int]:
        """Return the numbers of pairs as CliMetLab joins them: by URL of the inputs, as text."""
        urls = self.urls()
        return sorted(range(len(self.file_numbers)), key=urls.__getitem__)

    def upstream(
        self, files: Sequence[Path], index: SampleIndex, *, batch_size: int | None
    ) -> Baseline:
        """Return a plain xarray loop over both files of each pair."""
        return make_plain_loop(index.spec, index, self._prepared().parts_of, self.preprocess)

    def through_plugin(self, files: Sequence[Path], index: SampleIndex) -> Baseline:
        """Return how the real plugin makes these samples; see `columns_through_plugin`."""
        return columns_through_plugin(self, files, index, self._prepared().n_columns)

    def stand_in_keys(self, keys: Sequence[FileKey]) -> list[FileKey]:
        """Return the files of these pairs, of each two."""
        prefixes = (INPUTS_PREFIX, PREFIXES["tripleclouds"])
        return [{**key, "prefix": prefix} for key in keys for prefix in prefixes]

    def file_nbytes(self, key: FileKey, plan: StandIn) -> int:
        """Return about the bytes of a file of a stand-in."""
        return pair_file_nbytes(plan.n_steps, is_inputs=key["prefix"] == INPUTS_PREFIX)

    def write(self, plan: StandIn, key: FileKey, path: Path, advance: Advance) -> None:
        """Write a file of a stand-in."""
        write_pair_file(plan, key, path, advance, is_inputs=key["prefix"] == INPUTS_PREFIX)


def _column_name(pairs: Sequence[FileKey], starts: Starts, number: int) -> str:
    """Return the name of a column: that of its pair, and its number in it."""
    place, column = starts.locate(number)
    pair = pairs[place]
    return f"{pair['date']} step {pair['timestep']} patch {pair['patch']} column {column}"
