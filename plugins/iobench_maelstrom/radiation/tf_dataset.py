"""Application A3 as TFRecords: a sample is one atmospheric column, shuffled and ready for training.

Nine lists of floats per column, parsed without TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import (
    Arrays,
    Baseline,
    FileRange,
    Locator,
    Progress,
    PublishedStep,
    Raw,
    SampleIndex,
    no_progress,
    read_extents,
    stand_in_identity,
    write_planned_files,
)
from iobench.errors import OptionError
from iobench.samples import Sample, SampleSpec, Variable
from iobench_maelstrom.downloads import radiation_tf_downloads
from iobench_maelstrom.radiation.dataset import PUBLISHED, require_files
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
from iobench_maelstrom.radiation.options import (
    HR_SCALES,
    choose,
    choose_numbers,
    refuse_unknown,
)
from iobench_maelstrom.radiation.schema import LICENCE, SOLVERS, TERMS_OF_USE
from iobench_maelstrom.radiation.sequences import samples_named
from iobench_maelstrom.radiation.subsets import (
    EXAMPLE_TIMESTEPS,
    FILE_NUMBERS,
    SUBSETS,
    ExampleFile,
    split_of_timestep,
)
from iobench_maelstrom.radiation.view import View, view_asked_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import Downloads

__all__ = ["RadiationTf", "radiation_tf"]

OPTIONS = (
    "dataset", "subset", "timestep", "filenum", "input_fields", "output_fields",
    "minimal_outputs", "topnetflux", "netflux", "norm", "nonormsolar", "hr_units",
)  # fmt: skip
SOLAR_CHANNELS = (1, -1)
"""Of ``sca_inputs``: what ``nonormsolar`` leaves as it is."""


def radiation_tf(**options: str) -> RadiationTf:
    """Return the dataset ``maelstrom-radiation-tf``.

    Options have upstream's names and values; lists are separated by commas. Where the files are
    (upstream's ``path``) and their order (``shuffle_files``) are the locator's and the loader's.

    Parameters
    ----------
    dataset : {"tripleclouds", "mcica", "3dcorrection", "spartacus"}, optional
        The radiation scheme whose outputs are the targets.
    subset : str, optional
        One of upstream's, e.g. ``tier-1``, ``tier-1-val``, ``2020``.
    timestep : str, optional
        Instead of a subset: some of 0,125,...,3500 and of the four dates of 2019; 0 by default.
    filenum : str, optional
        Which files of each: some of 0 to 51 (of 2019: to 115); 0 by default.
    input_fields : str, optional
        Some of the five groups of inputs; all by default.
    output_fields : str, optional
        Some of sw, lw, hr_sw, hr_lw; all by default.
    minimal_outputs : {"true", "false"}, optional
        True: fluxes at the top and the ground alone.
    topnetflux : {"true", "false"}, optional
        True, with ``minimal_outputs``: the net flux at the top instead of the upward one.
    netflux : {"true", "false"}, optional
        True: downward minus upward fluxes.
    norm : {"true", "false"}, optional
        True: subtract the published mean of the inputs and divide by their deviation.
    nonormsolar : {"true", "false"}, optional
        True, with ``norm``: not for the cosine of the zenith angle and the irradiance.
    hr_units : {"K d-1", "K s-1"}, optional
        Units of heating rates.

    Raises
    ------
    OptionError
        For any other option or value, listing the valid ones.
    """
    refuse_unknown(options, OPTIONS, dataset=RadiationTf.name)
    solver = choose(options, "dataset", SOLVERS, "tripleclouds")
    return RadiationTf(
        _files_asked_for(options, solver),
        solver=solver,
        view=view_asked_for(options),
    )


def _files_asked_for(options: Mapping[str, str], solver: str) -> tuple[ExampleFile, ...]:
    if "subset" in options:
        also = sorted({"timestep", "filenum"} & set(options))
        if also:
            raise OptionError(f"subset says which files; leave {', '.join(also)} away, or subset")
        timesteps, numbers = SUBSETS[choose(options, "subset", SUBSETS, "")]
    else:
        timesteps = choose_numbers(options, "timestep", EXAMPLE_TIMESTEPS, (0,))
        # A time step of 2019 has more files than one of 2020.
        several = [FILE_NUMBERS[split_of_timestep(timestep) == "train"] for timestep in timesteps]
        numbers = choose_numbers(options, "filenum", min(several, key=len), (0,))
    return tuple(ExampleFile(solver, t, n) for t in timesteps for n in numbers)


class RadiationTf:
    """Columns of the radiation TFRecords: a `Dataset` with both baselines, and a `Synthesizer`.

    Parameters
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
    fused: tuple[str, ...] = ()
    thread_safe = True
    published: PublishedStep | None = PUBLISHED
    synthesis_version = STAND_IN_VERSION

    def __init__(self, example_files: tuple[ExampleFile, ...], *, solver: str, view: View) -> None:
        self.example_files = example_files
        self.solver = solver
        self.view = view
        self._norms: Norms | None = None
        self._decoder = ColumnDecoder(view.fields)

    def files(self, locator: Locator) -> list[Path]:
        """Return the TFRecord files and then, if asked for, those of the normalisation.

        Raises
        ------
        MissingFileError
            Naming what is missing by URL and where it was looked for.
        """
        urls = [file.url() for file in self.example_files]
        if self.view.norm:
            urls += norm_urls(self.view.input_fields)
        return require_files(self.name, urls, locator)

    def downloads(self) -> Downloads:
        """Return what ``--download`` fetches; raise OptionError where no choice was made."""
        return radiation_tf_downloads(self)

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
            where=where,
            splits=self._splits(where),
            provenance={
                **self._provenance(files, where),
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
        self,
        files: Sequence[Path],
        index: SampleIndex,
        locator: Locator,
        *,
        batch_size: int | None = None,
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
            planned_examples(plan),
            identity=identity,
            processes=processes,
            progress=progress,
        )

    def _plan(self, *, scale: float | None, tiny: bool, seed: int) -> ExamplesPlan:
        plan = ExamplesPlan.of_size(scale=scale, tiny=tiny, seed=seed)
        missing = [file for file in self.example_files if file not in set(plan.files)]
        if missing:
            raise OptionError(
                f"maelstrom-radiation-tf: {missing[0].name} is not at hand, and the stand-in holds "
                f"{len(plan.files)} files, first those of subsets tier-1, tier-1-val and "
                "tier-1-test; choose among them, give --data-dir, or a larger --scale"
            )
        return plan

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

    def _provenance(self, files: Sequence[Path], where: Frames) -> dict[str, Any]:
        view = self.view
        return {
            "dataset": self.name,
            "solver": self.solver,
            "files": [{"name": path.name, "nbytes": path.stat().st_size} for path in files],
            "columns": len(where),
            "minimal_outputs": view.minimal_outputs,
            "topnetflux": view.topnetflux,
            "netflux": view.netflux,
            "norm": view.norm,
            "nonormsolar": view.nonormsolar,
            "hr_units": view.hr_units,
            "licence": LICENCE,
            "terms_of_use": TERMS_OF_USE,
        }
