"""The real plugin, run on our stand-ins without a network, gives the arrays our readers give."""

from __future__ import annotations

import itertools
import socket

import numpy as np
import pytest

from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench_maelstrom.radiation.dataset import DATES, PATCHES, Radiation
from iobench_maelstrom.radiation.published import TIMESTEPS
from iobench_maelstrom.radiation.tf_dataset import RadiationTf

pytest.importorskip(
    "climetlab_maelstrom_radiation",
    reason="the real plugin climetlab-maelstrom-radiation is not installed",
)

pytestmark = [
    pytest.mark.timeout(110),
    pytest.mark.filterwarnings("ignore:Deprecated decorator @normalize_arg:UserWarning"),
]
N_COLUMNS = 128
PATCH_ORDER = (0, 10, 2)  # upstream sorts URLs as text


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments):
        raise AssertionError(f"tried to connect to {arguments[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("radiation-upstream")


@pytest.fixture(scope="module")
def pairs(tiny_root, folder):
    root = tiny_root(Radiation())
    return FileLocator(stand_in=root, cache_dir=folder / "cache"), root


@pytest.fixture
def load(tmp_path, no_network):
    """Run the real plugin with a stand-in as mirror: a context in which it is open."""
    import contextlib

    import climetlab
    from climetlab.mirrors.directory_mirror import DirectoryMirror

    @contextlib.contextmanager
    def opened(root, name, **options):
        with (
            climetlab.settings.temporary("cache-directory", str(tmp_path / "cache")),
            climetlab.settings.temporary("check-out-of-date-urls", False),
            DirectoryMirror(path=str(root)),
        ):
            yield climetlab.load_dataset(name, **options)

    return opened


def ours(pairs, **options):
    """Return all samples of three patches, stacked, in upstream's order of patches."""
    locator, _ = pairs
    dataset = Radiation(patch="0,2,10", **options)
    index = dataset.samples(dataset.files(locator), locator)
    first = {patch: n * N_COLUMNS for n, patch in enumerate((0, 2, 10))}
    order = [first[patch] + n for patch in PATCH_ORDER for n in range(N_COLUMNS)]
    samples = [make_sample(dataset, index.where[number]) for number in order]
    return {name: np.stack([sample[name] for sample in samples]) for name in index.spec.names}


@pytest.mark.parametrize(
    "options",
    [
        {"raw_inputs": True},
        {"raw_inputs": False},
        {"raw_inputs": False, "gather_fluxes": True, "hr_units": "K s-1"},
        {"raw_inputs": False, "minimal_outputs": True},
        {"raw_inputs": False, "minimal_outputs": True, "topnetflux": True},
        {"raw_inputs": False, "heating_rate": False},
    ],
    ids=["raw", "grouped", "gathered, per second", "minimal", "net at top", "no heating rates"],
)
def test_columns_equal_the_real_plugins(pairs, load, options):
    mine = ours(pairs, **{name: str(value) for name, value in options.items()})
    with load(pairs[1], "maelstrom-radiation", patch=[0, 2, 10], **options) as plugin:
        theirs = plugin.to_xarray().load()
    assert set(theirs.data_vars) - {"lat", "lon"} == set(mine) - {"lat", "lon"}
    for name, array in mine.items():
        values = theirs[name].transpose("column", ...).values
        assert values.dtype == array.dtype
        np.testing.assert_array_equal(array, values, err_msg=name)


def test_decoded_columns_equal_the_files_as_the_plugin_opens_them(pairs, load):
    locator, root = pairs
    dataset = Radiation(patch="0,2,10")
    index = dataset.samples(dataset.files(locator), locator)
    with load(root, "maelstrom-radiation", patch=[0, 2, 10], heating_rate=False) as plugin:
        theirs = plugin.to_xarray().load()
    for number in (0, 200, 383):
        place = PATCH_ORDER.index((0, 2, 10)[number // N_COLUMNS]) * N_COLUMNS + number % N_COLUMNS
        decoded = dataset.decode(dataset.read(index.where[number]), index.where[number])
        for name in set(decoded) & set(theirs.data_vars):
            np.testing.assert_array_equal(decoded[name], theirs[name].values[place], err_msg=name)


def test_the_choices_are_the_real_plugins():
    from climetlab_maelstrom_radiation import radiation as plugin

    assert sorted(plugin.valid_date) == sorted(DATES)
    assert plugin.valid_timestep == list(map(int, TIMESTEPS))
    assert plugin.valid_patch == list(map(int, PATCHES))
    assert list(Radiation.subsets) == plugin.valid_subset
    assert [*Radiation.subsets["2020"][0]] == plugin.date_subsets["2020"]


@pytest.fixture(scope="module")
def examples(tiny_root, folder):
    pytest.importorskip("tensorflow", reason="the real plugin's TFRecord part needs TensorFlow")
    root = tiny_root(RadiationTf())
    return FileLocator(stand_in=root, cache_dir=folder / "cache"), root


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hr_units": "K s-1", "netflux": True, "input_fields": ["sca_inputs", "hl_inputs"]},
        {"minimal_outputs": True, "topnetflux": True, "output_fields": ["sw", "hr_sw"]},
        {"minimal_outputs": True},
        {"norm": True},
        {"norm": True, "nonormsolar": True},
    ],
    ids=["default", "net", "minimal, net at top", "minimal", "norm", "nonormsolar"],
)
def test_examples_equal_the_real_plugins(examples, load, options):
    locator, root = examples
    texts = {
        name: ",".join(value) if isinstance(value, list) else str(value)
        for name, value in options.items()
    }
    dataset = RadiationTf(timestep="0", **texts)
    index = dataset.samples(dataset.files(locator), locator)
    with load(root, "maelstrom-radiation-tf", timestep=[0], **options) as plugin:
        batches = plugin.to_tfdataset(batch_size=1, shuffle=False, parallel_reads=1)
        theirs = [
            {name: array.numpy()[0] for part in batch for name, array in part.items()}
            for batch in itertools.islice(batches, 40)
        ]
    assert len(theirs) == 40
    for number, expected in enumerate(theirs):
        sample = make_sample(dataset, index.where[number])
        assert set(sample) == set(expected)
        for name, array in sample.items():
            assert array.dtype == expected[name].dtype
            values = expected[name]
            if "norm" in options and name == "sca_inputs":
                values = values[0]  # upstream's norms have an axis for batches that come later
            np.testing.assert_array_equal(array, values, err_msg=name)


def test_every_example_of_mcica_equals_the_real_plugins(examples, load, tmp_path):
    """Upstream mends the heating rates of mcica's files, which are named otherwise."""
    locator, root = examples
    bucket = "url/https/object-store.os-api.cci1.ecmwf.int/maelstrom-ap3"
    copy = tmp_path / bucket / "TFR" / "TripCloud0.0.tfrecord"
    copy.parent.mkdir(parents=True)
    copy.write_bytes((root / bucket / "records" / "triplecloud0.0.tfrecord").read_bytes())
    dataset = RadiationTf(dataset="mcica", output_fields="hr_sw,hr_lw", input_fields="sca_inputs")
    index = dataset.samples([copy], locator)
    with load(tmp_path, "maelstrom-radiation-tf", dataset="mcica") as plugin:
        [(_, theirs)] = plugin.to_tfdataset(batch_size=256, shuffle=False, parallel_reads=1)
    for name in ("hr_sw", "hr_lw"):
        mine = np.stack([make_sample(dataset, where)[name] for where in index.where])
        np.testing.assert_array_equal(mine, theirs[name].numpy())


def test_subsets_are_the_real_plugins():
    pytest.importorskip("tensorflow", reason="the real plugin's TFRecord part needs TensorFlow")
    from climetlab_maelstrom_radiation import radiation_tf as plugin

    assert set(RadiationTf.subsets) == set(plugin.timestep_subset)
    for name, (timesteps, numbers) in RadiationTf.subsets.items():
        assert list(map(int, timesteps)) == plugin.timestep_subset[name]
        assert list(map(int, numbers)) == plugin.filenum_subset[name]
