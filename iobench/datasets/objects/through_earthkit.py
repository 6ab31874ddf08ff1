"""``earthkit:SOURCE``: what earthkit-data's ``from_source`` gives, as fields or by xarray."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.datasets.objects.labelled import dask_in_this_thread
from iobench.datasets.objects.targets import EARTHKIT, in_one_line, parse_value, told
from iobench.errors import MissingExtraError, MissingFileError, OptionError
from iobench.masking import mask_urls, note_secrets

if TYPE_CHECKING:
    from numpy.typing import NDArray

CREDENTIALS: Final = {
    "mars": ("~/.ecmwfapirc", ("ECMWF_API_RC_FILE", "ECMWF_API_KEY"), "mars"),
    "cds": ("~/.cdsapirc", ("CDSAPI_RC", "CDSAPI_KEY"), ""),
    "ads": ("~/.adsapirc", (), ""),
    "polytope": ("~/.polytopeapirc", ("POLYTOPE_USER_KEY",), ""),
}
"""Of sources that ask for a key on the terminal: where that may be, and which program needs none.

See the sources' pages in earthkit-data's documentation.
"""


class EarthkitObject:
    """``earthkit.data.from_source(SOURCE, **arguments)``.

    With a sample dimension it is what ``to_xarray()`` gives, one index a sample; without, its
    fields, one a sample. What earthkit downloads, it keeps by its own rules (``cache-policy``);
    each process that reads opens the source for itself.

    Parameters
    ----------
    source : str
        A name of ``from_source``, and after a colon its first argument: ``file:x.grib``.
    options : mapping of str to object
        Further arguments; text is read by `parse_value`.
    is_labelled : bool
        Whether there is a sample dimension.

    Raises
    ------
    OptionError
        If the name is empty.
    """

    makes_it_anew = True

    def __init__(self, source: str, options: Mapping[str, Any], *, is_labelled: bool) -> None:
        kind, colon, first = source.partition(":")
        if not kind or (colon and not first):
            raise OptionError(
                f"{EARTHKIT}{source}: name a source of earthkit-data, e.g. {EARTHKIT}file:x.grib"
            )
        note_secrets([first])
        self.name = f"{EARTHKIT}{mask_urls(source)}"
        self.kind, self.first = kind, (first,) if first else ()
        self.arguments = {name: parse_value(value) for name, value in options.items()}
        self.facts: Mapping[str, Any] = {"object": self.name, "options": told(self.arguments)}
        self._is_labelled = is_labelled

    def open(self) -> Any:
        """Return the ``xarray.Dataset``, or the `Fields`.

        Raises
        ------
        MissingExtraError
            If earthkit-data cannot be imported.
        MissingFileError
            If a file is not there.
        OptionError
            If a source needs credentials that are not there, or earthkit raises anything else.
        """
        self._check()
        try:
            import earthkit.data
        except ImportError as error:
            raise MissingExtraError(
                f"{self.name} needs earthkit-data: pip install 'iobench[earthkit]'"
            ) from error
        self.facts = {**self.facts, "earthkit-data": earthkit.data.__version__}
        with (
            in_one_line(f"{self.name}: from_source raised"),
            dask_in_this_thread(),
        ):
            found = earthkit.data.from_source(self.kind, *self.first, **self.arguments)
            return found.to_xarray() if self._is_labelled else Fields(found.to_fieldlist())

    def _check(self) -> None:
        for path in self.first if self.kind == "file" else ():
            if not any(sign in path for sign in "*?[~$") and not Path(path).exists():
                raise MissingFileError(f"{self.name}: no such file, seen from {Path.cwd()}")
        if self.kind not in CREDENTIALS:
            return
        file, variables, program = CREDENTIALS[self.kind]
        if (
            not Path(file).expanduser().exists()
            and not any(os.environ.get(name) for name in variables)
            and not (program and shutil.which(program))
        ):
            where = ", ".join((file, *(f"${name}" for name in variables)))
            raise OptionError(
                f"{self.name}: needs credentials, which are not in {where}; put them there"
            )


class Fields:
    """The fields of a list as a map-style dataset: each a sample, on its grid."""

    def __init__(self, fields: Any) -> None:
        self._fields = fields

    def __len__(self) -> int:
        return len(self._fields)

    def __getitem__(self, number: int) -> dict[str, NDArray[Any]]:
        return {"field": np.asarray(self._fields[number].to_numpy())}
