"""What a GRIB message says of its grid and its parameter, in the words of the CF conventions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.chunks.grib.decoding import load_eccodes
from iobench.coordinates import Coordinate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


MAPPING_NAME: Final = "crs"
CELL_METHODS: Final = {
    "accum": "time: sum", "avg": "time: mean", "max": "time: maximum", "min": "time: minimum",
}  # fmt: skip
LATITUDE: Final = {"standard_name": "latitude", "units": "degrees_north"}
LONGITUDE: Final = {"standard_name": "longitude", "units": "degrees_east"}
MAPPINGS: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "lambert": ("lambert_conformal_conic", {
        "standard_parallel": "Latin1InDegrees Latin2InDegrees",
        "longitude_of_central_meridian": "LoVInDegrees",
        "latitude_of_projection_origin": "LaDInDegrees",
    }),
    "polar_stereographic": ("polar_stereographic", {
        "straight_vertical_longitude_from_pole": "orientationOfTheGridInDegrees",
        "standard_parallel": "LaDInDegrees",
    }),
    "mercator": ("mercator", {"standard_parallel": "LaDInDegrees"}),
    "lambert_azimuthal_equal_area": ("lambert_azimuthal_equal_area", {
        "latitude_of_projection_origin": "standardParallelInDegrees",
        "longitude_of_projection_origin": "centralLongitudeInDegrees",
    }),
    "rotated_ll": ("rotated_latitude_longitude", {}),
    "rotated_gg": ("rotated_latitude_longitude", {}),
    **dict.fromkeys(
        ("regular_ll", "regular_gg", "reduced_ll", "reduced_gg"), ("latitude_longitude", {})
    ),
}  # fmt: skip
"""Names of CF's grid mappings by ecCodes' types of grid, and the keys of their parameters."""


def describe_grid(message: memoryview | bytes, dims: Sequence[str]) -> list[Coordinate]:
    """Return latitudes and longitudes of a message's points, and its grid mapping."""
    codes = load_eccodes()
    handle = codes.codes_new_from_message(bytes(message))
    try:
        get = _getter(codes, handle)
        mapping = Coordinate(MAPPING_NAME, (), np.zeros((), np.int32), _mapping(get))
        try:
            latitudes = codes.codes_get_array(handle, "latitudes")
            longitudes = codes.codes_get_array(handle, "longitudes")
        except codes.CodesInternalError:
            return [mapping]
        shape = _shape(get, latitudes.size, dims)
        if shape is None:
            return [mapping]
        lat, lon = latitudes.reshape(shape), longitudes.reshape(shape)
        lat_dims = lon_dims = tuple(dims)
        if set(dims) == {"latitude", "longitude"}:
            lat, lon = (lat[:, 0], lon[0]) if dims[0] == "latitude" else (lat[0], lon[:, 0])
            lat_dims, lon_dims = ("latitude",), ("longitude",)
        return [
            Coordinate("latitude", lat_dims, lat, LATITUDE),
            Coordinate("longitude", lon_dims, lon, LONGITUDE),
            mapping,
        ]
    finally:
        codes.codes_release(handle)


def describe_parameter(message: memoryview | bytes) -> dict[str, Any]:
    """Return the attributes of a message's parameter, without units."""
    codes = load_eccodes()
    handle = codes.codes_new_from_message(bytes(message))
    try:
        get = _getter(codes, handle)
        standard, name = get("cfName", str), get("name", str)
        attributes = {
            "standard_name": standard if standard != "unknown" else None,
            "long_name": name if name != "unknown" else None,
            "cell_methods": CELL_METHODS.get(str(get("stepType", str))),
            "grid_mapping": MAPPING_NAME,
        }
        return {key: value for key, value in attributes.items() if value is not None}
    finally:
        codes.codes_release(handle)


def _getter(codes: Any, handle: int) -> Callable[[str, type], Any]:
    """Return what gets a key of a message, None where it has none."""

    def get(key: str, kind: type) -> Any:
        try:
            if codes.codes_is_missing(handle, key):
                return None
            return codes.codes_get(handle, key, kind)
        except codes.CodesInternalError:
            return None

    return get


def _shape(get: Callable[[str, type], Any], size: int, dims: Sequence[str]) -> Any:
    if len(dims) == 1:
        return (size,)
    ni, nj = get("Ni", int) or 0, get("Nj", int) or 0
    if ni * nj != size:
        return None
    return (ni, nj) if get("jPointsAreConsecutive", int) else (nj, ni)


def _mapping(get: Callable[[str, type], Any]) -> dict[str, Any]:
    grid = str(get("gridType", str))
    name, keys = MAPPINGS.get(grid, ("", {}))
    attributes: dict[str, Any] = {"grid_mapping_name": name} if name else {}
    for attribute, names in keys.items():
        values = [_number(get(key, float)) for key in names.split()]
        if None not in values:
            attributes[attribute] = values if len(values) > 1 else values[0]
    if name == "polar_stereographic":
        south = get("projectionCentreFlag", int)
        attributes["latitude_of_projection_origin"] = -90.0 if south and south & 128 else 90.0
    if name == "rotated_latitude_longitude":
        attributes |= _rotation(get)
    if (radius := _number(get("radius", float))) and radius > 0:
        attributes["earth_radius"] = radius
    return {**attributes, "GRIB_gridType": grid}


def _rotation(get: Callable[[str, type], Any]) -> dict[str, float]:
    """Return where the north pole of a rotated grid is: opposite to the south pole it tells."""
    lat, lon = (
        _number(get(f"{axis}OfSouthernPoleInDegrees", float)) for axis in ("latitude", "longitude")
    )
    if lat is None or lon is None:
        return {}
    return {
        "grid_north_pole_latitude": -lat,
        "grid_north_pole_longitude": (lon + 360) % 360 - 180,
        "north_pole_grid_longitude": _number(get("angleOfRotationInDegrees", float)) or 0.0,
    }


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
