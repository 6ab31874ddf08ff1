"""Application A3 as TFRecords: a sample is one atmospheric column, shuffled and ready for training.

Nine lists of floats per column, parsed without TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.coordinates import Meteorology
from iobench.datasets import (
    Advance,
    Arrays,
    Baseline,
    Computed,
    FileKey,
    FileRange,
    Key,
    Locator,
    Option,
    PluginCall,
    Raw,
    SampleIndex,
    StandIn,
    inspect_files,
    read_extents,
    whole_variable,
)
from iobench.errors import FileFormatError, OptionError
from iobench.samples import Sample, SampleSpec, Variable
from iobench_maelstrom.radiation.examples import (
    FEATURES,
    INPUT_FIELDS,
    OUTPUT_FIELDS,
    ColumnDecoder,
    Frames,
)
from iobench_maelstrom.radiation.grouping import CHANNELS, G_CP, GROUPS
from iobench_maelstrom.radiation.published import (
    BUCKET_URL,
    HR_SCALES,
    HR_UNITS,
    INSTALL,
    LICENCE,
    SCHEME,
    SPLITS_2019,
    TIMESTEPS,
    RadiationFiles,
)
from iobench_maelstrom.radiation.stand_in import (
    EXAMPLE_NBYTES,
    NORM_NBYTES,
    write_examples,
    write_norms,
)
from iobench_maelstrom.radiation.tf_pipeline import tf_batches

if TYPE_CHECKING:
    from numpy.typing import NDArray

Norms = Mapping[str, "tuple[NDArray[Any], NDArray[Any]]"]
"""Mean and deviation of each group of inputs, along its last axis."""
PREFIXES = {
    "tripleclouds": "records/triplecloud",
    "3dcorrection": "records/3dcorrection",
    "mcica": "TFR/TripCloud",
    "spartacus": "TFR/spartacus",
}
"""How the names of a scheme's files begin in the bucket."""
VALIDATION, TEST = (
    tuple(f"{day}00" for day, split in SPLITS_2019.items() if split == name)
    for name in ("validation", "test")
)
IN_2020, IN_2019 = (tuple(map(str, range(count))) for count in (52, 116))
"""Numbers of the files of a time step of 2020, and of 2019."""
VIEW_OPTIONS = (
    Option("input_fields", "Groups of inputs.", INPUT_FIELDS, INPUT_FIELDS, many=True),
    Option("output_fields", "Targets.", OUTPUT_FIELDS, OUTPUT_FIELDS, many=True),
    Option("netflux", "Downward minus upward fluxes.", False),
    Option(
        "norm", "Subtract the published mean of the inputs and divide by their deviation.", False
    ),
    Option(
        "nonormsolar", "With norm: not for the cosine of the zenith angle and the irradiance.",
        False,
    ),
    HR_UNITS,
)  # fmt: skip
SOLAR_CHANNELS = [1, -1]
"""Of ``sca_inputs``: what ``nonormsolar`` leaves as it is."""


class RadiationTf(RadiationFiles):
    """Columns of the radiation TFRecords, beside a ``tf.data`` pipeline; options as upstream's.

    Where the files are (upstream's ``path``) and their order (``shuffle_files``) are the locator's
    and the loader's.
    """

    name = "maelstrom-radiation-tf"
    title = "Atmospheric columns and their radiative fluxes, TFRecord (MAELSTROM A3)"
    install = f"{INSTALL} && pip install 'iobench[tensorflow]'"
    keys = (
        Key("timestep", (*TIMESTEPS, *(f"{day}00" for day in SPLITS_2019))),
        Key("filenum", IN_2019),
    )
    subsets: Mapping[str, tuple[Sequence[str], ...]] = {
        "tier-1": (("0",), ("0",)),
        "tier-1-val": (VALIDATION[:1], ("0",)),
        "tier-1-test": (TEST[:1], ("0",)),
        "2020": (TIMESTEPS, IN_2020),
        **{f"{day}00": ((f"{day}00",), IN_2019) for day in SPLITS_2019},
        "tier-2": (TIMESTEPS, IN_2020[::5]),
        "tier-2-val": (VALIDATION, ("0", "25", "50")),
        "tier-2-test": (TEST, ("0", "25", "50")),
        "tier-3": (TIMESTEPS[::8], IN_2020[::5]),
        "tier-3-val": (VALIDATION, ("0", "25", "50")),
        "tier-3-test": (TEST, ("0", "25", "50")),
    }
    stand_in_subsets = ("tier-1", "tier-1-val", "tier-1-test")
    columns = (256, 12_288, 67_840)
    options = (
        SCHEME,
        Option("subset", "Instead of timestep and filenum.", values=tuple(subsets)),
        Option(
            "timestep", "Those of 2020, and four dates of 2019.", ("0",), keys[0].values, many=True
        ),
        Option("filenum", "Which files of each; of 2020 up to 51.", ("0",), IN_2019, many=True),
        *VIEW_OPTIONS,
    )

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        for key in self.file_numbers:
            last = (IN_2020 if key["timestep"] in TIMESTEPS else IN_2019)[-1]
            if int(key["filenum"]) > int(last):
                raise OptionError(
                    f"filenum {key['filenum']}: time step {key['timestep']} has files 0 to {last}"
                )
        self.view = {each.name: self.chosen[each.name] for each in VIEW_OPTIONS}
        self._check_view("hr_units" in options)
        self.norms: Norms | None = None
        inputs, outputs = self.view["input_fields"], self.view["output_fields"]
        self._decoder = ColumnDecoder((*inputs, *outputs))

    def _check_view(self, has_units: bool) -> None:
        """Raise OptionError where options of a sample contradict each other."""
        view, outputs = self.view, set(self.view["output_fields"])
        if view["netflux"] and not {"sw", "lw"} & outputs:
            raise OptionError("netflux needs sw or lw among output_fields")
        if view["nonormsolar"] and not (view["norm"] and "sca_inputs" in view["input_fields"]):
            raise OptionError("nonormsolar needs norm=true and sca_inputs among input_fields")
        if has_units and not {"hr_sw", "hr_lw"} & outputs:
            raise OptionError("hr_units needs hr_sw or hr_lw among output_fields")

    def file_url(self, key: FileKey) -> str:
        """Return where a TFRecord file is published, or the norms of a group of inputs."""
        if "norm" in key:
            return f"{BUCKET_URL}/{key['norm']}.nc"
        prefix = PREFIXES[key.get("scheme", self.solver)]
        return f"{BUCKET_URL}/{prefix}{key['timestep']}.{key['filenum']}.tfrecord"

    def file_keys(self) -> list[FileKey]:
        """Return the TFRecord files and then, if asked for, the norms."""
        norms = self.view["input_fields"] if self.view["norm"] else ()
        return [*self.file_numbers, *({"norm": name} for name in norms)]

    def plugin_calls(self, keys: Sequence[FileKey]) -> list[PluginCall]:
        """Return the one call; norms are fetched with the files."""
        arguments = self.plugin_arguments()
        if self.view["norm"]:
            arguments |= {"norm": True, "input_fields": list(self.view["input_fields"])}
        return [self.call(arguments, keys)]

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return one sample per example, file after file."""
        view, names = self.view, self.view["input_fields"]
        n_files = len(files) - (len(names) if view["norm"] else 0)
        where = Frames(files[:n_files], locator)
        if view["norm"]:
            self.norms = read_norms(files[n_files:], names, locator.cache_dir)
            if view["nonormsolar"]:
                mean, deviation = self.norms["sca_inputs"]
                mean[SOLAR_CHANNELS], deviation[SOLAR_CHANNELS] = 0.0, 1.0
        return SampleIndex(
            spec=self._spec(),
            where=Computed(len(where), where.place),
            splits=self.split_samples(where.lengths),
            provenance={
                **self.facts(files),
                "solver": self.solver,
                "columns": len(where),
                **{name: view[name] for name in ("netflux", "norm", "nonormsolar", "hr_units")},
                "licence": LICENCE,
                "stand_in": locator.stand_in,
            },
            meteorology=Meteorology(
                ("column",), left_out={"lat, lon, time": "records do not hold them"}
            ),
        )

    def read(self, where: tuple[str, int, int]) -> Raw:
        """Return the example's bytes with its frame."""
        return read_extents([FileRange(*where)])

    def decode(self, raw: Raw, where: tuple[str, int, int]) -> Arrays:
        """Return the features asked for, float32; checksums are verified here."""
        return self._decoder.decode(raw[0], where=f"{where[0]} at byte {where[1]}")

    def preprocess(self, arrays: Arrays, where: tuple[str, int, int]) -> Sample:
        """Return normalised inputs, fluxes as asked for, and heating rates in their units."""
        view = self.view
        sample: dict[str, NDArray[Any]] = {name: arrays[name] for name in view["input_fields"]}
        if self.norms is not None:
            for name, array in sample.items():
                mean, deviation = self.norms[name]
                sample[name] = (array - mean) / deviation
        for name in view["output_fields"]:
            array = arrays[name]
            if name.startswith("hr_"):
                sample[name] = array * self.hr_factor()
            elif view["netflux"]:
                sample[name] = array[..., 0] - array[..., 1]
            else:
                sample[name] = array
        return sample

    def hr_factor(self) -> np.float32:
        """Return what heating rates are multiplied by."""
        scale = np.float32(HR_SCALES[self.view["hr_units"]])
        # mcica's files hold the divergence of the flux, as upstream knows and mends.
        return np.float32(G_CP) * scale if self.solver == "mcica" else scale

    def _spec(self) -> SampleSpec:
        view = self.view
        variables = []
        for name in view["input_fields"]:
            dims, shape = FEATURES[name]
            units = "Pa" if name == "pressure_hl" and not view["norm"] else ""
            variables.append(Variable(name, shape, "<f4", dims, units, channels=CHANNELS[name]))
        for name in view["output_fields"]:
            dims, shape = FEATURES[name]
            units = view["hr_units"] if name.startswith("hr_") else "W m-2"
            channels = CHANNELS.get(name, ())
            if units == "W m-2" and view["netflux"]:
                dims, shape, channels = dims[:1], shape[:1], ()
            variables.append(Variable(name, shape, "<f4", dims, units, "target", channels))
        return SampleSpec(tuple(variables))

    def upstream(
        self, files: Sequence[Path], index: SampleIndex, *, batch_size: int | None
    ) -> Baseline:
        """Return a plain ``tf.data`` pipeline; see `tf_batches`."""
        return tf_batches(self, files[: len(self.file_numbers)], index, batch_size or 1)

    def stand_in_keys(self, keys: Sequence[FileKey]) -> list[FileKey]:
        """Return the TFRecord files, and all norms."""
        files = [{"scheme": "tripleclouds", **key} for key in keys]
        return [*files, *({"norm": name} for name in INPUT_FIELDS)]

    def file_nbytes(self, key: FileKey, plan: StandIn) -> int:
        """Return about the bytes of a file of a stand-in."""
        return NORM_NBYTES if "norm" in key else plan.n_steps * EXAMPLE_NBYTES

    def write(self, plan: StandIn, key: FileKey, path: Path, advance: Advance) -> None:
        """Write a TFRecord file or norms of a stand-in."""
        if "norm" in key:
            write_norms(plan, key["norm"], path, advance)
        else:
            write_examples(plan, key, path, advance)


def read_norms(files: Sequence[Path], names: Sequence[str], cache_dir: Path) -> Norms:
    """Return the norms in the files of these groups; what they hold is kept."""
    norms = {}
    opened = inspect_files(files, cache_dir=cache_dir)
    for path, file, name in zip(files, opened, names, strict=True):
        mean, deviation = (
            whole_variable(file, f"{name}_{kind}").astype(np.float32) for kind in ("mean", "std")
        )
        expected = GROUPS[name][1][-1:]
        for kind, values in (("mean", mean), ("std", deviation)):
            if values.shape != expected:
                raise FileFormatError(
                    f"{path}: variable '{name}_{kind}' is {values.shape}, expected {expected}"
                )
        if not (deviation > 0).all():
            raise FileFormatError(
                f"{path}: variable '{name}_std' is not above 0 at "
                f"{np.flatnonzero(~(deviation > 0)).tolist()}: samples would not be numbers; "
                "use norm=false"
            )
        norms[name] = mean, deviation
    return norms
