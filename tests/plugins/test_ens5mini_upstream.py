"""The real plugin, run on our stand-in without a network, gives the arrays our reader decodes."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from iobench.datasets.locate import FileLocator
from iobench_maelstrom.ens10.ens5mini import Ens5mini

pytest.importorskip(
    "climetlab_maelstrom_ens10", reason="the real plugin climetlab-maelstrom-ens10 is not installed"
)


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments):
        raise AssertionError(f"tried to connect to {arguments[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.usefixtures("no_network")
@pytest.mark.filterwarnings("ignore:Deprecated decorator @normalize_arg:UserWarning")
@pytest.mark.parametrize("month", ["01", "07"])
def test_the_real_plugin_gives_equal_arrays(tiny_root, tmp_path, month):
    import climetlab
    from climetlab.mirrors.directory_mirror import DirectoryMirror

    root = tiny_root(Ens5mini())
    dataset = Ens5mini(date=month)
    locator = FileLocator(stand_in=root, cache_dir=tmp_path)
    index = dataset.samples(dataset.files(locator), locator)
    with (
        climetlab.settings.temporary("cache-directory", str(tmp_path / "cache")),
        DirectoryMirror(path=str(root)),
    ):
        real = climetlab.load_dataset("maelstrom-ens5mini", date=month).to_xarray().load()
    assert [str(time)[:10] for time in real.time.values] == index.coordinate
    for number, where in enumerate(index.where):
        ours = dataset.decode(dataset.read(where), where)
        assert set(ours) == set(real.data_vars)
        for name, array in ours.items():
            np.testing.assert_array_equal(array, real[name].values[:, number, 1])
