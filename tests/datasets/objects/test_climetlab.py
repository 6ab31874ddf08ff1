"""``climetlab:NAME``: any dataset CliMetLab knows, with the network cut off."""

import multiprocessing
import socket

import numpy as np
import pytest

from iobench.datasets.contract import make_sample
from iobench.datasets.python_objects import climetlab_downloads
from iobench.datasets.standins import ensure_stand_in
from iobench.errors import MissingFileError, OptionError, UnknownNameError
from iobench_maelstrom.power.features import PowerFeatures

climetlab = pytest.importorskip("climetlab", reason="climetlab is not installed")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:numpy.ndarray size changed:RuntimeWarning"),
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise AssertionError(f"tried to connect to {arguments[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with climetlab.settings.temporary("cache-directory", str(tmp_path / "cache")):
        yield


@pytest.fixture
def mirror(monkeypatch):
    """What CLIMETLAB_MIRROR does, which CliMetLab reads when it is imported."""
    from climetlab import mirrors

    def use(root):
        monkeypatch.setenv("CLIMETLAB_MIRROR", str(root))
        mirrors._reset_mirrors(use_env_var=True)

    yield use
    mirrors._reset_mirrors(use_env_var=False)


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """A dataset of a registry of the user's own: two files by pattern."""
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    from climetlab.datasets import Dataset

    class MadeUp(Dataset):
        terms_of_use = "do good with it"
        citation = "-"

        def __init__(self, factor=1, days=(1,)):
            self.factor, self.days = factor, days

        def to_xarray(self):
            values = np.arange(12.0).reshape(4, 3) * self.factor
            return xarray.Dataset({"v": (("day", "x"), values)}).isel(day=list(self.days))

    from climetlab.core import plugins

    monkeypatch.setitem(plugins.PLUGINS, "dataset", {"made-up": _Entry(MadeUp)})


class _Entry:
    def __init__(self, loaded):
        self.loaded = loaded

    def load(self):
        return self.loaded


def test_a_dataset_of_another_registry(made_up, opened):
    dataset, index = opened(
        "climetlab:made-up", sample_dim="day", options={"factor": "0.5", "days": "[0, 3]"}
    )
    assert len(index) == 2
    assert make_sample(dataset, index.where[1])["v"].tolist() == [4.5, 5.0, 5.5]
    assert index.provenance["terms_of_use"] == "do good with it"
    assert "citation" not in index.provenance
    assert index.provenance["options"] == {"factor": 0.5, "days": [0, 3]}


@pytest.mark.parametrize(
    ("target", "options", "expected"),
    [
        ("climetlab:made-up", {"colour": "1"}, "raised TypeError: .*colour"),
        ("climetlab:", {}, "climetlab:: name a dataset"),
        ("climetlab:no-such-one", {}, r"Cannot find dataset 'no-such-one'.*values are"),
    ],
)
def test_wrong_names_and_options(made_up, opened, target, options, expected):
    with pytest.raises((OptionError, UnknownNameError), match=expected):
        opened(target, options=options, sample_dim="day")


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="needs processes that are forked"
)
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_process_opens_it_for_itself(mirror, opened, tmp_path):
    """The thread of CliMetLab's cache does not outlive a fork: it must not be waited for."""
    pytest.importorskip(
        "climetlab_maelstrom_power_production.dataset", reason="the real plugin is not installed"
    )
    mirror(ensure_stand_in(PowerFeatures(), tmp_path / "stand-in", tiny=True))
    dataset, index = opened("climetlab:maelstrom-constants-a-b", sample_dim="dim0_0")
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(
        target=lambda: answers.put(make_sample(dataset, index.where[1])), daemon=True
    )
    child.start()
    child.join(40)
    if child.is_alive():
        child.kill()
    assert child.exitcode == 0
    made = answers.get()
    expected = make_sample(dataset, index.where[1])
    assert made.keys() == expected.keys()
    assert all(np.array_equal(made[name], expected[name]) for name in expected)


def test_a_file_that_is_not_at_hand_is_named_at_once(opened, tmp_path):
    pytest.importorskip(
        "climetlab_maelstrom_power_production.dataset", reason="the real plugin is not installed"
    )
    with pytest.raises(MissingFileError, match=r"ECMWF_AB137\.nc is neither in .*--download"):
        opened("climetlab:maelstrom-constants-a-b", sample_dim="level")


def test_its_download_is_the_same_call():
    options = {"size": "5GB", "dates": "[a]"}
    (call,) = climetlab_downloads("climetlab:maelstrom-yr", options).calls
    assert (call.name, call.arguments) == ("maelstrom-yr", {"size": "5GB", "dates": ["a"]})
    assert call.to_xarray
    with pytest.raises(OptionError, match="--download: is for CliMetLab's datasets, not for list"):
        climetlab_downloads([1], {})
