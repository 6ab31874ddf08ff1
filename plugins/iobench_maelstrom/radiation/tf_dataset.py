"""Application A3 as TFRecords: a sample is a column of nine lists, parsed without TensorFlow.

Published examples have one size, so a file is indexed by its ends; checksums are read with each.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.coordinates import SampleLabels
from iobench.datasets import (
    Arrays,
    Baseline,
    FileKey,
    FileRange,
    Inspection,
    Key,
    LazySequence,
    Locator,
    Option,
    PluginCall,
    Raw,
    SampleIndex,
    SamplePasses,
    Smooth,
    StandIn,
    catalogued,
    range_file,
    read_extents,
)
from iobench.errors import FileFormatError, StoreError, import_extra
from iobench.samples import Sample, SampleSpec, Variable
from iobench.stores import (
    FRAME_NBYTES,
    HEADER_NBYTES,
    ExampleLayout,
    FeatureKind,
    frame_data,
    frame_example,
    frame_header,
    parse_example,
    scan_frames,
)
from iobench_maelstrom.radiation import files as archive
from iobench_maelstrom.radiation.files import CHANNELS, DAY_S, G_CP, GROUPS, LENGTHS

if TYPE_CHECKING:
    from numpy.typing import NDArray

AT_ONCE = 1024
INPUT_FIELDS = ("sca_inputs", "col_inputs", "hl_inputs", "inter_inputs", "pressure_hl")
FETCH: Final = "fetch the file again"
FEATURES: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    **{name: GROUPS[name] for name in INPUT_FIELDS},
    **dict.fromkeys(("sw", "lw"), (("half_level", "channel"), (LENGTHS["half_level"], 2))),
    **dict.fromkeys(("hr_sw", "hr_lw"), (("level", "channel"), (LENGTHS["level"], 1))),
}
"""Dimensions and shape of each feature."""
UNITS = {
    "pressure_hl": "Pa",
    **dict.fromkeys(("sw", "lw"), "W m-2"),
    **dict.fromkeys(("hr_sw", "hr_lw"), "K d-1"),
}
"""The other groups mix quantities."""
SPEC = SampleSpec(
    tuple(
        Variable(
            name, shape, "<f4", dims, UNITS.get(name, ""),
            "input" if name in INPUT_FIELDS else "target", CHANNELS.get(name, ()),
        )
        for name, (dims, shape) in FEATURES.items()
    )
)  # fmt: skip


class _FileFrames(msgspec.Struct, frozen=True):
    """The examples of one file, which have one size."""

    path: Path
    count: int
    nbytes: int  # of an example with its frame


def _inspect(path: Path) -> _FileFrames:
    """Return how many examples a TFRecord file has, which have the size of the first."""
    size = path.stat().st_size
    try:
        first = next(scan_frames(path), None)
        if first is None:
            raise FileFormatError(f"{path}: is empty, expected a TFRecord file; {FETCH}")
        nbytes = first[1] + FRAME_NBYTES
        with path.open("rb", buffering=0) as stream:
            stream.seek(size - nbytes)
            last = stream.read(HEADER_NBYTES)
        if size % nbytes or last != frame_header(first[1]):
            places = [offset for offset, _ in scan_frames(path)]  # a damaged one is an error
            raise FileFormatError(
                f"{path}: its {len(places)} examples differ in size, expected {nbytes} bytes each; "
                f"{FETCH}"
            )
    except StoreError as error:
        reason = str(error).removesuffix("; convert to a new folder")
        raise FileFormatError(f"{reason}; {FETCH}") from error
    return _FileFrames(path, size // nbytes, nbytes)


FRAMES = Inspection("maelstrom-radiation frames 2", _inspect, _FileFrames)


def _place(
    files: Sequence[_FileFrames], starts: Sequence[int], number: int
) -> tuple[str, int, int]:
    """Return path, offset and length of an example with its frame."""
    place, inside = archive.locate(starts, number)
    file = files[place]
    return range_file(file.path), inside * file.nbytes, file.nbytes


SOURCE: Final = (
    "a plain tf.data pipeline over the files in order: examples are parsed by a parallel map, "
    "batched and prefetched, not shuffled, not cached; iobench run measures scripts of yours"
)


def tf_batches(
    own: RadiationTf, files: Sequence[Path], index: SampleIndex, batch_size: int
) -> Baseline:
    """Return a ``tf.data`` pipeline over TFRecord files."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    text = f"{own.name} --pipeline upstream needs TensorFlow"
    tf, paths = import_extra("tensorflow", text, extra="tensorflow"), list(map(str, files))
    # Fails where TensorFlow has run in this process: then it has what it was given.
    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")
    where = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"

    def parse(example: Any) -> Any:
        kinds = {k: tf.io.FixedLenFeature(shape, tf.float32) for k, (_, shape) in FEATURES.items()}
        return own.preprocess(tf.io.parse_single_example(example, kinds), None)

    def batches(_: int) -> Iterator[Sample]:
        # The pipeline is built here, not with its first batch: that takes as long as many of them.
        parsed = tf.data.TFRecordDataset(paths).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        return checked(parsed.batch(batch_size).prefetch(tf.data.AUTOTUNE).as_numpy_iterator())

    def checked(iterator: Iterator[Any]) -> Iterator[Sample]:
        try:
            for batch in iterator:
                yield {each.name: batch[each.name] for each in index.spec}
        except tf.errors.OpError as error:
            # Without the names of its functions and devices.
            text = re.sub(r"\{\{.*?\}\}|\[Op:.*", "", str(error.message), flags=re.DOTALL)
            raise FileFormatError(
                f"{where}: TensorFlow cannot read the examples: {' '.join(text.split())}; fetch "
                "the files again"
            ) from error

    passes = SamplePasses(index.spec, batches, len(index), batched=True, framework="tensorflow")
    return Baseline(passes, SOURCE)


PREFIXES = {
    "tripleclouds": "records/triplecloud",
    "3dcorrection": "records/3dcorrection",
    "mcica": "TFR/TripCloud",
    "spartacus": "TFR/spartacus",
}
"""How the names of a scheme's files begin in the bucket."""
VALIDATION, TEST = (
    tuple(f"{day}00" for day, split in archive.SPLITS_2019.items() if split == name)
    for name in ("validation", "test")
)
IN_2020, IN_2019 = (tuple(map(str, range(count))) for count in (52, 116))
"""Numbers of the files of a time step of 2020, and of 2019."""


class RadiationTf(archive.RadiationFiles):
    """Columns of the radiation TFRecords, beside a ``tf.data`` pipeline; options as upstream's."""

    name = "maelstrom-radiation-tf"
    title = "Atmospheric columns and their radiative fluxes, TFRecord (MAELSTROM A3)"
    extras = ("climetlab", "tensorflow")
    keys = (
        Key(
            "timestep",
            (*archive.TIMESTEPS, *(f"{day}00" for day in archive.SPLITS_2019)),
            "Those of 2020, and four dates of 2019.",
            default=("0",),
        ),
        Key("filenum", IN_2019, "Which files of each; of 2020 up to 51.", default=("0",)),
    )
    subsets: Mapping[str, tuple[Sequence[str], ...]] = {
        "tier-1": (("0",), ("0",)),
        "tier-1-val": (VALIDATION[:1], ("0",)),
        "tier-1-test": (TEST[:1], ("0",)),
        "2020": (archive.TIMESTEPS, IN_2020),
        **{f"{day}00": ((f"{day}00",), IN_2019) for day in archive.SPLITS_2019},
        "tier-2": (archive.TIMESTEPS, IN_2020[::5]),
        "tier-2-val": (VALIDATION, ("0", "25", "50")),
        "tier-2-test": (TEST, ("0", "25", "50")),
        "tier-3": (archive.TIMESTEPS[::8], IN_2020[::5]),
        "tier-3-val": (VALIDATION, ("0", "25", "50")),
        "tier-3-test": (TEST, ("0", "25", "50")),
    }
    stand_in_subsets = ("tier-1", "tier-1-val", "tier-1-test")
    n_columns = (256, 12_288, 67_840)
    _layout: ExampleLayout | None = None
    options = (
        archive.SCHEME,
        Option("subset", "Instead of timestep and filenum.", values=tuple(subsets)),
    )

    def file_url(self, key: FileKey) -> str:
        prefix = PREFIXES[key.get("scheme", self.solver)]
        return f"{archive.BUCKET_URL}/{prefix}{key['timestep']}.{key['filenum']}.tfrecord"

    def plugin_calls(self, keys: Sequence[FileKey]) -> list[PluginCall]:
        return [self.call(self.plugin_arguments(), keys)]

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        frames = catalogued(files, FRAMES, cache_dir=locator.cache_dir, progress=locator.progress)
        lengths = [each.count for each in frames]
        starts = archive.first_samples(lengths)
        return SampleIndex(
            spec=SPEC,
            where=LazySequence(starts[-1], functools.partial(_place, frames, starts)),
            splits=self.split_samples(lengths),
            provenance={
                **self.facts(),
                "solver": self.solver,
                "columns": starts[-1],
                "licence": archive.LICENCE,
                "stand_in": locator.stand_in,
            },
            meteorology=SampleLabels(
                ("column",), left_out={"lat, lon, time": "records do not hold them"}
            ),
        )

    def read(self, where: tuple[str, int, int]) -> Raw:
        return read_extents([FileRange(*where)])

    def decode(self, raw: Raw, where: tuple[str, int, int]) -> Arrays:
        """Return the features, float32; checksums are verified here."""
        place = f"{where[0]} at byte {where[1]}"
        data = frame_data(raw[0], place)
        # Published examples differ in their floats alone: these lie where they lay before.
        if self._layout is not None and self._layout.fits(data):
            lists = self._layout.arrays(data)
        else:
            lists = self._parse(data, place)
        return {name: lists[name].reshape(shape) for name, (_, shape) in FEATURES.items()}

    def _parse(self, data: memoryview, place: str) -> dict[str, NDArray[Any]]:
        """Return all lists of floats of an example; where they lie is kept."""
        try:
            features = parse_example(data)
            lists = {k: v.floats() for k, v in features.items() if v.kind is FeatureKind.FLOAT}
        except StoreError as error:
            raise FileFormatError(f"{place}: {error}; {FETCH}") from error
        for name, (_, shape) in FEATURES.items():
            values = lists.get(name)
            if values is None or values.size != np.prod(shape):
                n_values = "no" if values is None else values.size
                raise FileFormatError(
                    f"{place}: feature {name!r} has {n_values} floats, expected {shape}; {FETCH}"
                )
        self._layout = ExampleLayout(data, lists)
        return lists

    def preprocess(self, arrays: Arrays, where: Any) -> Sample:
        """Return the features, heating rates in K d-1."""
        factor = np.float32(DAY_S)
        if self.solver == "mcica":  # its files hold the divergence of the flux, as upstream knows
            factor = np.float32(G_CP) * factor
        return {
            name: values * factor if name.startswith("hr_") else values
            for name, values in arrays.items()
        }

    def upstream(
        self, files: Sequence[Path], index: SampleIndex, *, batch_size: int | None
    ) -> Baseline:
        return tf_batches(self, files, index, batch_size or 1)

    def stand_in_keys(self, keys: Sequence[FileKey]) -> list[FileKey]:
        return [{"scheme": "tripleclouds", **key} for key in keys]

    def write(self, plan: StandIn, key: FileKey, path: Path) -> None:
        numbers: tuple[Any, ...] = (plan.seed, self.synthesis_version, *key.values())
        with path.open("wb") as stream:
            for start in range(0, plan.n_steps, AT_ONCE):
                features = _random(min(AT_ONCE, plan.n_steps - start), (*numbers, start))
                for number in range(len(features["sca_inputs"])):
                    named = [(k, FeatureKind.FLOAT, v[number]) for k, v in features.items()]
                    stream.writelines(frame_example(named))


def _bounds(channels: tuple[str, ...]) -> tuple[list[float], list[float]]:
    """Return the bounds of channels, one of a variable's being ``name_number``."""
    inputs = archive.INPUTS
    fields = [inputs.get(name) or inputs[name.rpartition("_")[0]] for name in channels]
    return [each.low for each in fields], [each.high for each in fields]


SMOOTH = {
    "sca_inputs": Smooth(*_bounds(CHANNELS["sca_inputs"]), 0.97),
    "col_inputs": Smooth(*_bounds(CHANNELS["col_inputs"]), 0.77),
    "hl_inputs": Smooth(*_bounds(CHANNELS["hl_inputs"]), 0.96),
    "inter_inputs": Smooth(*_bounds(CHANNELS["inter_inputs"]), 0.71),
    "sw": Smooth(0.0, 1407.0, 0.51),
    "lw": Smooth(0.0, 500.0, 0.95),
    "hr_sw": Smooth(-3.4e-3, 1.8e-2, 0.48),
    "hr_lw": Smooth(-1.1e-2, 8e-4, 0.95),
}
"""Of an example's features but pressure; heating rates in K s-1."""


def _random(n_columns: int, key: Sequence[int | str]) -> dict[str, NDArray[np.float32]]:
    """Return the features of columns, in an example's order."""
    features = {
        name: smooth((n_columns, *FEATURES[name][1]), "f4", (*key, name))
        for name, smooth in SMOOTH.items()
    }
    features["pressure_hl"] = archive.smooth_pressure(n_columns, key)[..., None]
    features["hl_inputs"][..., 1:] = features["pressure_hl"]
    return {name: features[name] for name in (*GROUPS, "sw", "hr_sw", "lw", "hr_lw")}
