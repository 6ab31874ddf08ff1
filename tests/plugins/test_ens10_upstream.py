"""The real plugin, run on our stand-in without a network, gives the arrays our reader decodes."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from iobench.datasets.locate import FileLocator
from iobench_maelstrom.ens10.dataset import Ens10
from iobench_maelstrom.ens10.schema import ALL_DATES, LEVELS

pytest.importorskip(
    "climetlab_maelstrom_ens10", reason="the real plugin climetlab-maelstrom-ens10 is not installed"
)


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments):
        raise AssertionError(f"tried to connect to {arguments[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def real(tmp_path, no_network):
    """Return what the real plugin makes of a date's file of a stand-in."""
    import climetlab
    from climetlab.mirrors.directory_mirror import DirectoryMirror

    def load(root, date, dtype):
        with (
            climetlab.settings.temporary("cache-directory", str(tmp_path / "cache")),
            DirectoryMirror(path=str(root)),
        ):
            return climetlab.load_dataset("maelstrom-ens10", date=date, dtype=dtype).to_xarray()

    return load


@pytest.mark.filterwarnings("ignore:Deprecated decorator @normalize_arg:UserWarning")
@pytest.mark.parametrize("date", ["0101", "20000104"])
def test_the_real_plugin_gives_equal_arrays(tiny, real, date):
    dataset = Ens10(date=date, target="none")
    index = dataset.samples(dataset.files(tiny.locator), tiny.locator)
    fields = real(tiny.root, date, "sfc").load()
    assert [str(time)[:10] for time in fields.time.values] == index.coordinate
    for number, where in enumerate(index.where):
        ours = dataset.decode(dataset.read(where), where)
        assert list(ours) == list(fields.data_vars)
        for name, array in ours.items():
            theirs = fields[name].isel(time=number).sel(step=np.timedelta64(48, "h"))
            np.testing.assert_array_equal(array, theirs.values.squeeze(), err_msg=name)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Deprecated decorator @normalize_arg:UserWarning")
@pytest.mark.parametrize("target", ["z500", pytest.param("t850", marks=pytest.mark.long)])
def test_the_real_plugin_gives_equal_arrays_at_pressure_levels(
    pressure_root, tmp_path, real, target
):
    dataset = Ens10(date="0104", dtype="pl", target=target)
    locator = FileLocator(stand_in=pressure_root, cache_dir=tmp_path)
    index = dataset.samples(dataset.files(locator), locator)
    fields = real(pressure_root, "0104", "pl").load()
    assert fields.isobaricInhPa.values.tolist() == list(LEVELS)
    assert [str(time)[:10] for time in fields.time.values] == index.coordinate
    for number, where in enumerate(index.where):
        ours = dataset.decode(dataset.read(where), where)
        names = [name.removesuffix(target[1:]) for name in ours if name != "target"]
        assert names == list(fields.data_vars)
        at_level = fields.isel(time=number).sel(
            step=np.timedelta64(48, "h"), isobaricInhPa=int(target[1:])
        )
        for name in names:
            array = ours[f"{name}{target[1:]}"]
            np.testing.assert_array_equal(array, at_level[name].values.squeeze(), err_msg=name)


@pytest.mark.filterwarnings("ignore:Deprecated decorator @normalize_arg:UserWarning")
def test_the_dates_are_the_real_plugins():
    from climetlab_maelstrom_ens10.ens10 import Ens10

    assert list(ALL_DATES) == Ens10.all_datelist
