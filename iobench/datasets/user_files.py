"""GRIB files, NetCDF files and Zarr stores, of the user's own as a dataset.

One index of a dimension is one sample.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from iobench.datasets.catalogue import catalogued
from iobench.datasets.chunked_samples import ChunkedSamples, only_variables
from iobench.datasets.containers import TEXTS, Container, NetcdfFiles, ZarrStores
from iobench.datasets.contract import SampleIndex
from iobench.datasets.file_kinds import FACTS, split_group
from iobench.datasets.file_labels import SamplePlaces
from iobench.datasets.file_sets import (
    compare_coordinates,
    coordinates_of,
    merged_files,
    mixed_units,
)
from iobench.datasets.file_variables import (
    Selection,
    SourceFile,
    check_same_schema,
    check_sample_dims,
    choose_variables,
    reasons,
    sample_variable,
)
from iobench.datasets.grib_samples import GribMessages
from iobench.datasets.plain_loop import make_plain_loop
from iobench.datasets.positions import SampleRows
from iobench.errors import FileFormatError, MissingFileError, OptionError
from iobench.files.urls import URL
from iobench.samples import SampleSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.datasets.contract import Arrays, Baseline, Locator, PublishedStep, Where
    from iobench.datasets.file_kinds import FileFacts
    from iobench.samples import Sample

CONTAINERS: Final = {each.kind: each for each in (GribMessages, NetcdfFiles, ZarrStores)}


class UserFiles(ChunkedSamples):
    """Files of the user's own as a dataset; made by `user_files`.

    Files are put in the order of their coordinate along the sample dimension where that orders
    them: they are then one row of samples. Else, as with forecasts that have the same lead times,
    they stay in the order given and each is a row of its own. See `SampleRows`. Those that hold
    other variables of the same samples are one file.
    """

    title = ""
    published: PublishedStep | None = None
    keeps_decoded = True

    def __init__(
        self, paths: Sequence[Path], selection: Selection, target: Path | None = None
    ) -> None:
        super().__init__()
        self.name = _name_of(paths, target)
        self.source_name = paths[0].name if len(paths) == 1 else f"{len(paths)} files"
        self.notes: tuple[str, ...] = ()  # for users, a line each
        self._kind = ""
        self._paths = tuple(paths)
        self._selection = selection

    @property
    def group(self) -> str:
        """Whose variables of NetCDF files are meant; those of the root where it is empty."""
        return self._selection.group

    @property
    def thread_safe(self) -> bool:
        """Whether threads may make samples at once: ecCodes and numcodecs can, HDF5 cannot."""
        return not self.fused

    def preprocess(self, arrays: Arrays, where: Where) -> Sample:
        """Return the arrays as they are."""
        return arrays

    def files(self, locator: Locator) -> list[Path]:
        """Return the files, URLs looked up; raise MissingFileError listing all that are missing."""
        existing, missing = [], []
        for path in self._paths:
            try:
                existing.append(path.looked_up() if isinstance(path, URL) else path)
            except FileNotFoundError:
                missing.append(f"{path}")
        missing += [f"{path}" for path in existing if not path.exists()]
        if missing:
            raise MissingFileError(
                f"{', '.join(missing)}: no such file, seen from {Path.cwd()}; check the spelling"
            )
        return existing

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return one sample per index along the sample dimension, or per combination of several."""
        facts = catalogued(files, FACTS, cache_dir=locator.cache_dir)
        container = _container(files, facts)(self._selection, locator)
        self._kind = container.kind
        inspected = container.inspect(files)
        dims = check_sample_dims(self._selection.sample_dim, inspected[0].dims, files)
        self.notes = container.notes
        provenance: dict[str, Any] = {
            "kind": self._kind,
            "files": container.facts(files, inspected, facts),
            "sample_dim": ",".join(dims),
        }
        inspected, same = self._joined(container, inspected, dims)
        first = inspected[0]
        names, provenance["skipped"] = choose_variables(first, self._selection, dims)
        self.notes += tuple(mixed_units(inspected, names))
        variables = [first.variables[name] for name in names]
        for file in inspected:
            container.check(file, names)
        rows = SampleRows(dims, [container.along(inspected, dim) for dim in dims])
        if rows.is_doubled and any(each.is_time for each in rows.along):
            self.notes += (
                f"files have samples of the same {' and '.join(dims)}: all are kept, so leave "
                "files out where that is not meant",
            )
        ordered = [inspected[number] for number in rows.order]
        self.keep_files([only_variables(file, names) for file in ordered], dims)
        number_of_file, *indices = rows.where.rows.T
        places = SamplePlaces(dims, number_of_file, dict(zip(dims, indices, strict=True)))
        if self.notes:
            provenance["notes"] = list(self.notes)
        index = SampleIndex(
            SampleSpec(tuple(sample_variable(each, self._selection, dims) for each in variables)),
            rows.where,
            coordinate=rows.names([file.path.name for file in ordered]),
            provenance=provenance,
            meteorology=container.labels(ordered, names, places, same),
        )
        if len(dims) > 1:
            return replace(index, axes=rows.axes)
        (axis,) = rows.axes
        return replace(index, positions=axis.positions, position_units=axis.units, rows=axis.rows)

    def _joined(
        self, container: Container, files: Sequence[SourceFile], dims: tuple[str, ...]
    ) -> tuple[Sequence[SourceFile], frozenset[str]]:
        """Return the files, and the coordinates that all have alike.

        Those that hold other variables of the same samples are one.
        """
        every = dict.fromkeys(name for file in files for name in file.variables)
        skipped = {name: why for file in files for name, why in file.skipped.items()}
        self._selection.check_names(list(every), skipped)
        pairs = [
            (file, tuple(n for n, why in reasons(file, self._selection, dims).items() if not why))
            for file in files
        ]
        if self._selection.variables and any(own for _, own in pairs):
            self.notes += tuple(
                f"{file.path.name} has none of the variables that are asked for: left out"
                for file, own in pairs
                if not own
            )
            pairs = [(file, own) for file, own in pairs if own]
        check_same_schema(pairs, dims)
        if len(pairs) == 1:
            return [file for file, _ in pairs], frozenset()
        firsts = {own: file for file, own in reversed(pairs)}
        coordinates: dict[str, tuple[str, ...]] = {}
        for own, file in firsts.items():
            has_texts = any(why.startswith(TEXTS) for why in file.skipped.values())
            texts = container.describe(file).texts if has_texts else {}
            dims_of_texts = {name: text_dims for name, (text_dims, _) in texts.items()}
            coordinates = coordinates_of(file, own, dims, dims_of_texts) | coordinates
        files = [file for file, _ in pairs]
        are_places = all(file.dims[dim] == 1 for file in files for dim in dims)
        same, notes = compare_coordinates(
            files, coordinates, container.whole, are_places=are_places
        )
        self.notes += tuple(notes)
        if len(firsts) == 1:
            return files, same
        along = [container.along(files, dim).values for dim in dims]
        places = [tuple(tuple(own.tolist()) for own in each) for each in zip(*along, strict=True)]
        return merged_files(pairs, places, dims), same

    @property
    def has_plain_loop(self) -> bool:
        """Whether ``upstream`` is for such files: NetCDF or Zarr of this machine."""
        return self._kind != GribMessages.kind and not any(
            isinstance(file.path, URL) for file in self.opened
        )

    def upstream(
        self, files: Sequence[Path], index: SampleIndex, *, batch_size: int | None
    ) -> Baseline:
        """Return a plain loop over an xarray dataset."""
        if self._kind == GribMessages.kind:
            raise OptionError(
                f"--pipeline upstream: {self.name} is GRIB; a plain loop reads NetCDF or "
                "Zarr: leave it out"
            )
        return make_plain_loop(
            index,
            self.plain_parts,
            partial(_with_dtypes, index.spec),
            **({"group": self.group} if self.group else {}),
        )


def _name_of(paths: Sequence[Path], target: Path | None) -> str:
    """Return the name of a file; of several that of the folder that was named, or all are in."""
    if len(paths) == 1:
        return paths[0].name
    if len({*map(type, paths)}) > 1:
        return f"{len(paths)} files"
    folder = os.path.commonpath([_folder(path.parent) for path in paths])
    named = folder if target is None else _folder(target)
    is_below = f"{folder}/".startswith(f"{named}/")
    return Path(named if is_below else folder).name or f"{len(paths)} files"


def _folder(path: Path) -> str:
    return path.path.rstrip("/") if isinstance(path, URL) else os.path.normpath(path.absolute())


def _container(files: Sequence[Path], facts: Sequence[FileFacts]) -> type[Container]:
    kind = facts[0].kind
    for path, each in zip(files, facts, strict=True):
        if each.kind != kind:
            raise FileFormatError(
                f"files of one kind are expected, but {files[0]} is {kind}, {path} is {each.kind}; "
                "profile them apart"
            )
    return CONTAINERS[kind]


def _with_dtypes(spec: SampleSpec, arrays: Arrays, where: Where) -> Sample:
    """Return the arrays with the dtypes of our own reader."""
    return {each.name: arrays[each.name].astype(each.dtype, copy=False) for each in spec}


def user_files(
    paths: Sequence[Path | str],
    *,
    sample_dim: str | None,
    variables: Sequence[str] | None = None,
    target_variables: Sequence[str] | None = None,
    target: Path | None = None,
) -> UserFiles:
    """Make a dataset of GRIB files, of NetCDF files or of Zarr stores; ``target`` names them."""
    if not paths:
        raise OptionError("name at least one GRIB or NetCDF file, or Zarr store")
    parted = [split_group(path) for path in paths]
    named = [path for path, _ in parted]
    groups = sorted({group for _, group in parted})
    if len(groups) > 1:
        raise OptionError(
            f"{parted[0][0]}: groups {', '.join(map(repr, groups))} of files; name one for all"
        )
    if len(set(named)) < len(named):
        twice = next(path for number, path in enumerate(named) if path in named[:number])
        raise OptionError(f"{twice}: named twice; name each file once")
    targets = tuple(target_variables or ())
    chosen = tuple(dict.fromkeys((*(variables or ()), *targets))) if variables else ()
    selection = Selection(sample_dim, chosen, targets, groups[0])
    return UserFiles(tuple(named), selection, target)
