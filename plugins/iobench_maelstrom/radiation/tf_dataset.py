"""Application A3 as TFRecords: a sample is one atmospheric column, shuffled and ready for training.

Nine lists of floats per column, parsed without TensorFlow.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import (
    Arrays,
    Baseline,
    Computed,
    Downloads,
    FileRange,
    Locator,
    Option,
    PlannedFile,
    PublishedFiles,
    PublishedStep,
    Raw,
    SampleIndex,
    StandIn,
    existing_files,
    read_extents,
)
from iobench.errors import OptionError
from iobench.samples import Sample, SampleSpec, Variable
from iobench_maelstrom.plugin_samples import plugin_downloads
from iobench_maelstrom.radiation.dataset import INSTALL, PUBLISHED, SOLVER_OPTION, chosen_files
from iobench_maelstrom.radiation.examples import (
    FEATURES,
    ColumnDecoder,
    Frames,
    index_frames,
)
from iobench_maelstrom.radiation.examples_stand_in import (
    STAND_IN_VERSION,
    ExamplesPlan,
    planned_examples,
)
from iobench_maelstrom.radiation.examples_upstream import (
    example_batches,
    example_batches_through_plugin,
)
from iobench_maelstrom.radiation.grouping import (
    CHANNELS,
    G_CP,
    boundaries,
)
from iobench_maelstrom.radiation.norms import Norms, norm_urls, read_norms
from iobench_maelstrom.radiation.outputs import HR_SCALES
from iobench_maelstrom.radiation.schema import LICENCE, TERMS_OF_USE
from iobench_maelstrom.radiation.sequences import samples_named
from iobench_maelstrom.radiation.subsets import (
    EXAMPLE_TIMESTEPS,
    FILE_NUMBERS,
    SUBSETS,
    ExampleFile,
    split_of_timestep,
)
from iobench_maelstrom.radiation.view import VIEW_OPTIONS, View

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["RadiationTf"]

TOLD = ("minimal_outputs", "topnetflux", "netflux", "norm", "nonormsolar", "hr_units")
"""Of the view, in provenances."""
SOLAR_CHANNELS = (1, -1)
"""Of ``sca_inputs``: what ``nonormsolar`` leaves as it is."""


class RadiationTf(PublishedFiles):
    """Columns of the radiation TFRecords, with both baselines; options as upstream's.

    Where the files are (upstream's ``path``) and their order (``shuffle_files``) are the locator's
    and the loader's.

    Attributes
    ----------
    example_files : tuple of ExampleFile
        The files, all of which are required.
    solver : str
        Whose outputs are the targets.
    view : View
        Which features a sample has.
    """

    name = "maelstrom-radiation-tf"
    title = "Atmospheric columns and their radiative fluxes, TFRecord (MAELSTROM A3)"
    published: PublishedStep | None = PUBLISHED
    terms_of_use = TERMS_OF_USE
    synthesis_version = STAND_IN_VERSION
    options = (
        SOLVER_OPTION,
        Option("subset", "Instead of timestep and filenum.", values=tuple(SUBSETS)),
        Option(
            "timestep", "Those of 2020, and four dates of 2019.", ("0",),
            tuple(map(str, EXAMPLE_TIMESTEPS)), many=True,
        ),
        Option(
            "filenum", "Which files of each; of 2020 up to 51.", ("0",),
            tuple(map(str, FILE_NUMBERS[False])), many=True,
        ),
        *VIEW_OPTIONS,
    )  # fmt: skip

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self.solver: str = self.chosen["dataset"]
        self.view = View.asked_for(self.chosen, options)
        if (asked := chosen_files(options, self.chosen, ("timestep", "filenum"))) is None:
            timesteps, numbers = SUBSETS[self.chosen["subset"]]
        else:
            timesteps, numbers = (tuple(map(int, each)) for each in asked)
        for timestep in timesteps:
            last = FILE_NUMBERS[split_of_timestep(timestep) == "train"][-1]
            if max(numbers) > last:
                raise OptionError(
                    f"filenum {max(numbers)}: time step {timestep} has files 0 to {last}"
                )
        self.example_files = tuple(
            ExampleFile(self.solver, t, n) for t in timesteps for n in numbers
        )
        self._norms: Norms | None = None
        self._decoder = ColumnDecoder(self.view.fields)

    def urls(self) -> list[str]:
        """Return the URLs of the TFRecord files and then, if asked for, of the norms."""
        norms = norm_urls(self.view.input_fields) if self.view.norm else []
        return [file.url() for file in self.example_files] + norms

    def files(self, locator: Locator) -> list[Path]:
        """Return the TFRecord files and then those of the norms; all are needed."""
        return existing_files(self.name, self.urls(), locator)

    def downloads(self) -> Downloads:
        """Return what ``--download`` fetches: by default one file."""
        arguments: dict[str, Any] = {
            "dataset": self.solver,
            "timestep": list(dict.fromkeys(file.timestep for file in self.example_files)),
            "filenum": list(dict.fromkeys(file.number for file in self.example_files)),
        }
        if self.view.norm:
            arguments |= {"norm": True, "input_fields": list(self.view.input_fields)}
        install = f"{INSTALL} && pip install 'iobench[tensorflow]'"
        return plugin_downloads(self, arguments, install=install)

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return one sample per example, file after file.

        Raises
        ------
        FileFormatError
            If a file is cut short or is no TFRecord file, naming the offset.
        """
        n_files = len(files) - (len(self.view.input_fields) if self.view.norm else 0)
        indexed = []
        for number, path in enumerate(files[:n_files]):
            indexed.append(index_frames(path))
            locator.progress(number + 1, n_files)
        if self.view.norm:
            self._norms = read_norms(files[n_files:], self.view.input_fields)
            if self.view.nonormsolar:
                self._norms = self._norms.without("sca_inputs", SOLAR_CHANNELS)
        where = Frames(indexed)
        return SampleIndex(
            spec=self._spec(),
            where=Computed(len(where), where.place),
            splits=self._splits(where),
            provenance={
                **self.facts(files),
                "solver": self.solver,
                "columns": len(where),
                **{name: getattr(self.view, name) for name in TOLD},
                "licence": LICENCE,
                "stand_in": locator.stand_in,
            },
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
        sample: dict[str, NDArray[Any]] = {name: arrays[name] for name in view.input_fields}
        if self._norms is not None:
            sample = {name: self._norms.apply(name, array) for name, array in sample.items()}
        for name in view.output_fields:
            array = arrays[name]
            if name.startswith("hr_"):
                sample[name] = array * self._hr_factor()
            elif view.netflux:
                sample[name] = array[..., 0] - array[..., 1]
            elif view.minimal_outputs:
                sample[name] = boundaries(array[..., 0], array[..., 1], net_at_top=view.topnetflux)
            else:
                sample[name] = array
        return sample

    def upstream(
        self, files: Sequence[Path], index: SampleIndex, locator: Locator, *, batch_size: int | None
    ) -> Baseline:
        """Return the application's ``tf.data`` pipeline; see `example_batches`."""
        return example_batches(
            files[: len(self.example_files)],
            spec=index.spec,
            view=self.view,
            norms=self._norms,
            hr_factor=float(self._hr_factor()),
            n_samples=len(index),
            batch_size=batch_size,
        )

    def through_plugin(
        self, files: Sequence[Path], index: SampleIndex, locator: Locator, *, batch_size: int | None
    ) -> Baseline:
        """Return the real plugin's ``tf.data`` pipeline; see `example_batches_through_plugin`."""
        return example_batches_through_plugin(
            self.example_files,
            files,
            spec=index.spec,
            solver=self.solver,
            view=self.view,
            n_samples=len(index),
            batch_size=batch_size,
        )

    def _hr_factor(self) -> np.float32:
        scale = np.float32(HR_SCALES[self.view.hr_units])
        # mcica's files hold the divergence of the flux, as upstream knows and mends.
        return np.float32(G_CP) * scale if self.solver == "mcica" else scale

    def stand_in(self, *, scale: float | None, tiny: bool, seed: int) -> ExamplesPlan:
        """Return what a stand-in holds."""
        plan = ExamplesPlan.of_size(scale=scale, tiny=tiny, seed=seed)
        missing = [file for file in self.example_files if file not in set(plan.files)]
        if missing:
            raise OptionError(
                f"maelstrom-radiation-tf: {missing[0].name} is not at hand, and the stand-in holds "
                f"{len(plan.files)} files, first those of subsets tier-1, tier-1-val and "
                "tier-1-test; choose among them, give --data-dir, or a larger --scale"
            )
        return plan

    def planned_files(self, plan: StandIn) -> list[PlannedFile]:
        """Return the files of a stand-in: TFRecords and norms."""
        assert isinstance(plan, ExamplesPlan)
        return planned_examples(plan)

    def _splits(self, where: Frames) -> dict[str, Sequence[int]]:
        names = [split_of_timestep(file.timestep) for file in self.example_files]
        return {name: samples_named(names, name, where.lengths) for name in dict.fromkeys(names)}

    def _spec(self) -> SampleSpec:
        view = self.view
        variables = []
        for name in view.input_fields:
            dims, shape = FEATURES[name]
            units = "Pa" if name == "pressure_hl" and not view.norm else ""
            variables.append(Variable(name, shape, "<f4", dims, units, channels=CHANNELS[name]))
        for name in view.output_fields:
            dims, shape = FEATURES[name]
            units = view.hr_units if name.startswith("hr_") else "W m-2"
            channels = CHANNELS.get(name, ())
            if units == "W m-2" and view.netflux:
                dims, shape, channels = dims[:1], shape[:1], ()
            elif units == "W m-2" and view.minimal_outputs:
                dims, shape, channels = ("boundaries",), (3,), ()
            variables.append(Variable(name, shape, "<f4", dims, units, "target", channels))
        return SampleSpec(tuple(variables))
