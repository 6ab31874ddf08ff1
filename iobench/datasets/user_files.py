"""GRIB files, NetCDF files and Zarr stores, of the user's own as a dataset.

One index of a dimension is one sample.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from iobench.datasets.chunked_samples import ChunkedSamples, only_variables
from iobench.datasets.contract import SampleIndex
from iobench.datasets.file_labels import CoordinateNames, compare_coordinates, label_samples
from iobench.datasets.file_variables import (
    EACH_FILE,
    Selection,
    check_not_in_groups,
    check_sample_dims,
    choose_variables,
    reasons,
    sample_variable,
    units_of,
    with_file_dim,
)
from iobench.datasets.grib_files import inspect_grib
from iobench.datasets.plain_loop import make_plain_loop
from iobench.datasets.positions import SampleRows
from iobench.datasets.source_files import (
    coordinates_along,
    file_kind,
    inspect_files,
    split_group,
)
from iobench.errors import FileFormatError, MissingFileError, OptionError
from iobench.files.urls import URL
from iobench.samples import SampleSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.chunks.chunked_variable import ChunkedVariable
    from iobench.chunks.source_file import SourceFile
    from iobench.datasets.contract import Arrays, Baseline, PublishedStep, Where
    from iobench.datasets.locate import Locator
    from iobench.samples import Sample

    # Files, and the variables that are taken of each.
    _FileVariables = Sequence[tuple[SourceFile, tuple[str, ...]]]


PLAINLY_READ: Final = ("NetCDF", "Zarr")
"""What a plain loop over xarray is set beside."""


class UserFiles(ChunkedSamples):
    """Files of the user's own as a dataset; several may be named by the folder ``target``.

    `SampleRows` puts them in order; those of other variables of the same samples are one.
    """

    title = ""
    published: PublishedStep | None = None
    keeps_decoded = thread_safe = True

    def __init__(
        self,
        paths: Sequence[Path | str],
        *,
        sample_dim: str | None,
        variables: Sequence[str] | None = None,
        target_variables: Sequence[str] | None = None,
        target: Path | None = None,
    ) -> None:
        super().__init__()
        if not paths:
            raise OptionError("name at least one GRIB or NetCDF file, or Zarr store")
        named, groups = zip(*map(split_group, paths), strict=True)
        if len(set(groups)) > 1:
            listed = ", ".join(map(repr, sorted(set(groups))))
            raise OptionError(f"{named[0]}: groups {listed} of files; name one for all")
        if twice := [path for number, path in enumerate(named) if path in named[:number]]:
            raise OptionError(f"{twice[0]}: named twice; name each file once")
        targets = tuple(target_variables or ())
        chosen = tuple(dict.fromkeys((*(variables or ()), *targets))) if variables else ()
        self.name = _name_of(named, target)
        self.source_name = named[0].name if len(named) == 1 else f"{len(named)} files"
        self.notes: tuple[str, ...] = ()  # for users, a line each
        self._paths: tuple[Path, ...] = named
        self._selection = Selection(sample_dim, chosen, targets, groups[0])

    @property
    def group(self) -> str:
        """Whose variables of NetCDF files are meant; those of the root where it is empty."""
        return self._selection.group

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
        cache_dir = locator.cache_dir
        inspected, self.notes = self._inspected(files, locator)
        first = inspected[0]
        dims = check_sample_dims(self._selection.sample_dim, first.dims, files)
        provenance: dict[str, Any] = {"kind": first.kind, "sample_dim": ",".join(dims)}
        if first.fingerprint:
            provenance["files"] = [
                {"name": file.path.name, "fingerprint": file.fingerprint} for file in inspected
            ]
        joined, differ = self._joined(inspected, dims, cache_dir)
        first = joined[0]
        names, provenance["skipped"] = choose_variables(first, self._selection, dims)
        along = [coordinates_along(joined, dim, cache_dir=cache_dir) for dim in dims]
        rows = SampleRows(dims, along)
        if rows.is_doubled and any(each.is_time for each in along):
            self.notes += (
                f"files have samples of the same {' and '.join(dims)}: all are kept, so leave "
                "files out where that is not meant",
            )
        elif len(joined) > 1 and all(each.is_time and each.order is None for each in along):
            self.notes += (
                f"files whose values of {' and '.join(dims)} overlap stay in order: no window "
                "crosses from one into another, so sort them into one where that is not meant",
            )
        ordered = [joined[number] for number in rows.order]
        self.keep_files([only_variables(file, names) for file in ordered], dims)
        if self.notes:
            provenance["notes"] = list(self.notes)
        chosen = {name: name for name in names}
        variables = [first.variables[name] for name in names]
        labels = label_samples(
            ordered, chosen, dims, rows.where.rows, cache_dir=cache_dir, differ=differ
        )
        return SampleIndex(
            SampleSpec(tuple(sample_variable(each, self._selection, dims) for each in variables)),
            rows.where,
            provenance=provenance,
            meteorology=labels,
            **rows.index_fields([file.path.name for file in ordered]),
        )

    def _inspected(
        self, files: Sequence[Path], locator: Locator
    ) -> tuple[list[SourceFile], tuple[str, ...]]:
        """Return what files hold, of GRIB all together, and notes."""
        kind = file_kind(files[0])
        if kind == "GRIB":
            file, notes = inspect_grib(files, self._selection, locator)
            return [file], notes
        dim = self._selection.sample_dim
        inspect = partial(inspect_files, cache_dir=locator.cache_dir, group=self.group, kind=kind)
        (first,) = inspect(files[:1])  # what it lacks is said before all are inspected
        check_not_in_groups(first)
        check_sample_dims(dim, with_file_dim(first, dim).dims, files)
        rest = inspect(files[1:], progress=locator.progress)
        return [with_file_dim(file, dim) for file in (first, *rest)], ()

    def _joined(
        self, files: Sequence[SourceFile], dims: tuple[str, ...], cache_dir: Path
    ) -> tuple[Sequence[SourceFile], dict[str, str]]:
        """Return the files, merged, and why samples lack coordinates that they do not agree on."""
        selection = self._selection
        every = dict.fromkeys(name for file in files for name in file.variables)
        skipped = {name: why for file in files for name, why in file.skipped.items()}
        selection.check_names(list(every), skipped)
        pairs = [
            (file, tuple(n for n, why in reasons(file, selection, dims).items() if not why))
            for file in files
        ]
        if selection.variables and any(own for _, own in pairs):
            self.notes += tuple(
                f"{file.path.name} has none of the variables that are asked for: left out"
                for file, own in pairs
                if not own
            )
            pairs = [(file, own) for file, own in pairs if own]
        self.notes += _check_same_schema(pairs, dims)
        files = [file for file, _ in pairs]
        if len(files) == 1:
            return files, {}
        firsts = {own: file for file, own in reversed(pairs)}
        if EACH_FILE in dims:
            for file, own in pairs:
                if own != pairs[0][1]:
                    raise FileFormatError(
                        f"{file.path}: has the variables {', '.join(map(repr, own))}, expected "
                        f"{', '.join(map(repr, pairs[0][1]))} as in {pairs[0][0].path}: each file "
                        "is a sample; name files of one kind, or choose with --variables"
                    )
        are_places = all(file.dims[dim] == 1 for file in files for dim in dims)
        differ: dict[str, str] = {}
        for own, file in firsts.items():
            known = CoordinateNames(file, own, dims)
            # In the order of the files: the first is what others are compared with.
            compared, notes = compare_coordinates(
                files, known, cache_dir=cache_dir, are_places=are_places
            )
            differ |= compared
            self.notes += tuple(note for note in notes if note not in self.notes)
        if len(firsts) == 1:
            return files, differ
        along = [coordinates_along(files, dim, cache_dir=cache_dir).values for dim in dims]
        places = [tuple(tuple(own.tolist()) for own in each) for each in zip(*along, strict=True)]
        return _merged_files(pairs, places, dims), differ

    @property
    def has_plain_loop(self) -> bool:
        """Whether ``upstream`` is for such files: NetCDF or Zarr of this machine."""
        return all(
            each.kind in PLAINLY_READ and not isinstance(each.path, URL) for each in self.opened
        )

    def upstream(
        self, files: Sequence[Path], index: SampleIndex, *, batch_size: int | None
    ) -> Baseline:
        """Return a plain loop over an xarray dataset."""
        if (kind := self.opened[0].kind) not in PLAINLY_READ:
            raise OptionError(
                f"--pipeline upstream: {self.name} is {kind}; a plain loop reads NetCDF or "
                "Zarr: leave it out"
            )
        return make_plain_loop(
            index,
            self.plain_parts,
            partial(_with_dtypes, index.spec),
            **({"group": self.group} if self.group else {}),
        )


def _check_same_schema(files: _FileVariables, sample_dims: Sequence[str]) -> tuple[str, ...]:
    """Return notes on variables that have other units in other files; refuse other schemas."""

    def spelled(variable: ChunkedVariable) -> str:
        lengths = zip(variable.dims, variable.shape, strict=True)
        each = [dim if dim in sample_dims else f"{dim} {length}" for dim, length in lengths]
        return f"{variable.packing.dtype} ({', '.join(each)})"

    firsts: dict[str, SourceFile] = {}
    notes: dict[str, str] = {}
    for file, names in files:
        for dim in sample_dims:
            if dim not in file.dims:
                raise FileFormatError(
                    f"{file.path}: lacks the dimension {dim} of {files[0][0].path}"
                )
        for name in names:
            first = firsts.setdefault(name, file)
            own, expected = (spelled(each.variables[name]) for each in (file, first))
            if own != expected:
                raise FileFormatError(
                    f"{file.path}: variable {name!r} is {own}, expected {expected} as in "
                    f"{first.path}; give files of one kind at a time, write it again with "
                    "xarray's astype, or leave the variable out with --variables"
                )
            units, expected = units_of(file, name), units_of(first, name)
            if units != expected:
                note = (
                    f"variable {name!r} has other units in {file.path.name} ({units!r}) than in "
                    f"{first.path.name} ({expected!r}): numbers are kept as they are"
                )
                notes.setdefault(name, note)
    return tuple(notes.values())


def _merged_files(
    files: _FileVariables, places: Sequence[Any], dims: Sequence[str]
) -> list[SourceFile]:
    """Return files that have all variables, of files with their own and where their samples lie."""
    every = dict.fromkeys(name for _, own in files for name in own)
    shared = ",".join(name for name in every if all(name in own for _, own in files))
    advice = f", or take what all have: --variables {shared}" if shared else ""
    same = f"for the same {' and '.join(dims)}"
    by_place: dict[Any, list[tuple[SourceFile, tuple[str, ...]]]] = {}
    for place, pair in zip(places, files, strict=True):
        by_place.setdefault(place, []).append(pair)
    merged = []
    for parts in by_place.values():
        held = [name for _, own in parts for name in own]
        first, *others = [file for file, _ in sorted(parts, key=lambda part: sorted(part[1]))]
        if len(held) > len(set(held)):
            raise FileFormatError(
                f"{first.path}: has variables {same} as {others[0].path}, and other files have "
                f"other variables; name files of one member, or forecast, at a time{advice}"
            )
        if missing := [name for name in every if name not in held]:
            other = next(file for file, own in files if missing[0] in own)
            raise FileFormatError(
                f"{first.path}: variable {missing[0]!r} is missing, expected as in {other.path}: "
                f"no file has it {same}; add that file, or cut files alike{advice}"
            )
        merged.append(_merged(first, others) if others else first)
    return merged


def _merged(first: SourceFile, others: Sequence[SourceFile]) -> SourceFile:
    """Return a file with the variables of others too."""
    fields = ("dims", "variables", "coordinates", "described")
    union, held = {field: dict(getattr(first, field)) for field in fields}, {}
    for file in others:
        for field, known in union.items():
            for name, each in getattr(file, field).items():
                if name not in known:
                    known[name], held[name] = each, file
    skipped = {
        name: why
        for file in (*others, first)
        for name, why in file.skipped.items()
        if name not in union["variables"]
    }
    return replace(first, **union, skipped=skipped, others=held)


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


def _with_dtypes(spec: SampleSpec, arrays: Arrays, where: Where) -> Sample:
    """Return the arrays with the dtypes of our own reader."""
    return {each.name: arrays[each.name].astype(each.dtype, copy=False) for each in spec}
