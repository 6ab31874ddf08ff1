"""How the application loads the NetCDF pairs, as climetlab-maelstrom-radiation 0.7.5 does.

xarray joins all files lazily, and a generator asks it for one column of one variable at a time, a
dask graph each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.datasets import Baseline, Stream, StreamStage
from iobench_maelstrom.hdf5_lock import LIBRARY
from iobench_maelstrom.radiation.grouping import G_CP
from iobench_maelstrom.radiation.pairs import COLUMN
from iobench_maelstrom.radiation.published import HR_SCALES
from iobench_maelstrom.radiation.schema import FLUXES, ON_LEVELS, PRESSURE, SCALARS, SHARED
from iobench_maelstrom.xarray_files import open_joined, require_xarray

if TYPE_CHECKING:
    from iobench.samples import Sample, SampleSpec

UPSTREAM_BATCH_SIZE: Final = 512
SOURCE = (
    "climetlab-maelstrom-radiation 0.7.5, to_tfdataset of the raw data set: one dask graph for "
    "each variable of each column, made by a generator in the order of the files. Assumed: "
    "batches of 512 as with the TFRecords, one of them made ahead, and no shuffling, of which the "
    "raw data set has none"
)


def column_stream(
    files: Sequence[tuple[Path, Path]],
    *,
    spec: SampleSpec,
    raw_inputs: bool,
    outputs: Mapping[str, Any],
    batch_size: int | None,
) -> Baseline:
    """Return the application's loading of pairs of files; they are opened here.

    Parameters
    ----------
    files : sequence of (Path, Path)
        Inputs and outputs, in upstream's order.
    spec : SampleSpec
        Of our samples: its variables are asked for.
    raw_inputs, outputs : bool, mapping
        As in `Radiation`.
    batch_size : int or None
        None: upstream's.

    Raises
    ------
    MissingExtraError
        If xarray, dask or netCDF4 cannot be imported.
    FileFormatError
        If xarray cannot open the files.
    """
    dataset = _joined(files, raw_inputs, outputs)
    names = spec.names

    def column(number: int) -> Sample:
        with LIBRARY:  # which the workers of another pipeline may not inherit held
            return {name: dataset[name].sel(column=number).to_numpy() for name in names}

    n_columns = int(dataset.sizes["column"])
    stream = Stream(
        spec=spec,
        items=lambda _: range(n_columns),
        stages=(StreamStage("read+decode+preprocess", column),),
        n_samples=lambda _: 1,
        n_samples_all=n_columns,
    )
    return Baseline(stream, batch_size or UPSTREAM_BATCH_SIZE, SOURCE)


def _joined(
    files: Sequence[tuple[Path, Path]], raw_inputs: bool, outputs: Mapping[str, Any]
) -> Any:
    """Return the columns of all files as one lazy ``xarray.Dataset``; see `column_stream`."""
    require_xarray("maelstrom-radiation", "dask")
    import xarray

    inputs, targets = (
        open_joined([pair[n] for pair in files], COLUMN, preprocess=_with_irradiance_by_column)
        for n in (0, 1)
    )
    if not raw_inputs:
        groups = _grouped_lazily(inputs)
        inputs = xarray.Dataset({**groups, "lat": inputs["lat"], "lon": inputs["lon"]})
    return xarray.merge([inputs, _targets_lazily(targets, outputs)])


def _with_irradiance_by_column(file: Any) -> Any:
    """Give all columns of a file of inputs its irradiance, one number."""
    if SHARED in file:
        file[SHARED] = file[SHARED].broadcast_like(file["lat"])
    return file


def _grouped_lazily(inputs: Any) -> Mapping[str, Any]:
    """Return the five groups of inputs, each joined along a last dimension of its own."""
    levels = []
    for variable in ON_LEVELS:
        array = inputs[variable.name]
        if len(variable.dims) > 1:
            levels.append(array.transpose("column", *variable.dims))
        else:
            levels.append(array)
    scalars = [inputs[variable.name] for variable in SCALARS]
    half_levels = [inputs[name] for name in ("temperature_hl", "pressure_hl")]
    pressure, overlap = [inputs[PRESSURE.name]], [inputs["overlap_param"]]
    return {
        "sca_inputs": _side_by_side(scalars, "scalar", own_axis=1),
        "col_inputs": _side_by_side(levels, "channel", own_axis=2),
        "hl_inputs": _side_by_side(half_levels, "half_level_channel", own_axis=2),
        "pressure_hl": _side_by_side(pressure, "pressure_channel", own_axis=2),
        "inter_inputs": _side_by_side(overlap, "interface_channel", own_axis=2),
    }


def _side_by_side(arrays: Sequence[Any], dim: str, *, own_axis: int) -> Any:
    """Join arrays along ``dim``, which is axis ``own_axis`` of each, made where it is lacking."""
    import xarray

    joined = [
        array.rename({array.dims[-1]: dim})
        if array.ndim > own_axis
        else array.expand_dims(dim, axis=-1)
        for array in arrays
    ]
    return xarray.concat(joined, dim)


def _targets_lazily(found: Any, wanted: Mapping[str, Any]) -> Any:
    """Return fluxes as asked for and heating rates, as lazy as their files."""
    targets = {}
    if wanted["all_outputs"]:
        targets = {name: found[name] for name in found.data_vars if name != PRESSURE.name}
    elif not (wanted["gather_fluxes"] or wanted["minimal_outputs"]):
        targets = {name: found[name] for name in FLUXES}
    for band in ("sw", "lw"):
        both = _side_by_side(
            [found[f"flux_dn_{band}"], found[f"flux_up_{band}"]], "direction", own_axis=2
        )
        if wanted["gather_fluxes"]:
            targets[band] = both
        if wanted["minimal_outputs"]:
            targets[f"fluxes_{band}"] = _boundaries_lazily(both, net_at_top=wanted["topnetflux"])
        if wanted["heating_rate"]:
            scale = G_CP * HR_SCALES[wanted["hr_units"]]
            targets[f"hr_{band}"] = _heating_lazily(both, found[PRESSURE.name], scale)
    import xarray

    return xarray.Dataset(targets)


def _heating_lazily(both: Any, pressure: Any, scale: float) -> Any:
    net = both[..., 0] - both[..., 1]
    rate = -scale * (net[..., 1:] - net[..., :-1]) / (pressure[..., 1:] - pressure[..., :-1])
    return rate.rename({"half_level": "level"})


def _boundaries_lazily(both: Any, *, net_at_top: bool) -> Any:
    import xarray

    down, up = both[..., 0], both[..., 1]
    top = down[:, :1] - up[:, :1] if net_at_top else up[:, :1]
    ends = xarray.concat([top, down[:, -1:], up[:, -1:]], "half_level")
    return ends.rename({"half_level": "boundaries"})
