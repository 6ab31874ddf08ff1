"""The U-Net's grid loader, as it is today, gives the samples of our own reader."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator
from iobench.datasets.own_pipelines import MapStyle, UpstreamBaseline
from iobench.errors import MissingExtraError, StorageError
from iobench.recording.this_process import read_process_io
from iobench_maelstrom.ens10 import upstream
from iobench_maelstrom.ens10.dataset import Ens10
from iobench_maelstrom.ens10.ens5mini import Ens5mini

for library in ("xarray", "dask", "netCDF4"):
    pytest.importorskip(library, reason=f"upstream's loader needs {library}")

N_TARGET_TIMES = 10


@pytest.fixture
def baseline(tiny, tmp_path):
    """Return our dataset, its index and its baseline; files are written below ``tmp_path``."""

    def make(root=tiny.root, *, stand_in=True, batch_size=None, **options):
        dataset = Ens10(**options)
        place = {"stand_in": root} if stand_in else {"data_dir": root}
        locator = FileLocator(**place, cache_dir=tmp_path / "cache")
        files = dataset.files(locator)
        index = dataset.samples(files, locator)
        return dataset, index, dataset.upstream(files, index, locator, batch_size=batch_size)

    return make


@pytest.fixture
def as_if_full_size(monkeypatch):
    """Take the tiny stand-in's grid for the real one, and few fields for those of training."""
    monkeypatch.setattr(upstream, "GRID", (91, 180))
    monkeypatch.setattr(upstream, "N_TRAINING_TIMES", N_TARGET_TIMES)


def assert_equal_samples(dataset, index, pipeline):
    assert len(pipeline.index) == len(index)
    assert pipeline.index.spec == index.spec
    for number, where in enumerate(index.where):
        ours = make_sample(dataset, where)
        theirs = make_sample(pipeline.dataset, pipeline.index.where[number])
        index.spec.check(theirs, where=f"sample {number}")
        assert list(theirs) == list(ours)
        for name, array in ours.items():
            # Both are float32 of the same definition; the files hold ours.
            np.testing.assert_array_equal(theirs[name], array, err_msg=name)


def stored_times(baseline):
    import netCDF4

    found = {}
    for path in baseline.files:
        with netCDF4.Dataset(path) as file:
            found[path.name] = len(file["time"])
    return found


@pytest.mark.quick_cases(1)
def test_its_samples_are_ours(baseline):
    dataset, index, made = baseline()
    assert isinstance(dataset, UpstreamBaseline)
    assert_equal_samples(dataset, index, made.pipeline)


@pytest.mark.long
@pytest.mark.parametrize("target", ["z500", pytest.param("t850", marks=pytest.mark.long)])
def test_its_samples_are_ours_at_pressure_levels(baseline, pressure_root, target):
    dataset, index, made = baseline(pressure_root, dtype="pl", target=target)
    names = ["ENS10_pl_mean_normalized.nc", "ENS10_pl_std_normalized.nc", f"ERA5_{target}.nc"]
    assert [path.name for path in made.files] == names
    assert_equal_samples(dataset, index, made.pipeline)


def test_its_samples_are_ours_without_a_target(baseline):
    dataset, index, made = baseline(target="none")
    assert len(made.files) == 2
    assert "No target is read" in made.source
    assert_equal_samples(dataset, index, made.pipeline)


def test_its_settings_are_upstreams(baseline):
    _, _, made = baseline()
    pipeline = made.pipeline
    assert isinstance(pipeline, MapStyle)
    assert (pipeline.framework, pipeline.workers, pipeline.prefetch, made.batch_size) == (
        "torch", 2, 2, 1,
    )  # fmt: skip
    assert pipeline.dataset.fused == ("read", "decode")
    assert baseline(batch_size=4)[2].batch_size == 4


@pytest.mark.thorough
def test_its_files_are_of_upstreams_layout(baseline, pressure_root):
    import netCDF4

    _, _, made = baseline()
    mean, _, target = made.files
    with netCDF4.Dataset(mean) as file:
        names = ["SSTK", "TCW", "TCWV", "CP", "MSL", "TCC", "U10M", "V10M", "T2M", "TP", "SKT"]
        assert [name for name in file.variables if name not in ("time", "lat", "lon")] == names
        for name in names:
            assert file[name].dimensions == ("time", "lat", "lon")
            assert file[name].dtype == np.float32
            assert not file[name].filters()["zlib"]
    with netCDF4.Dataset(target) as file:
        assert file["T2M"].shape == (4, 91, 180)
    _, _, made = baseline(pressure_root, dtype="pl", target="z500")
    with netCDF4.Dataset(made.files[1]) as file:
        assert list(file.variables)[4:] == ["Z", "T", "Q", "W", "D", "U", "V"]
        assert file["Z"].dimensions == ("time", "plev", "lat", "lon")
        assert file["plev"][:].tolist() == [50000]


def test_of_a_tiny_stand_in_the_target_is_as_it_is(baseline):
    _, _, made = baseline()
    assert set(stored_times(made).values()) == {4}
    assert "The whole ERA5 target, 4 fields, is read for every sample." in made.source
    # Upstream has a data set for each split.
    assert made.pipeline.index.where == [(0, 0, 2), (1, 0, 2), (2, 2, 4), (3, 2, 4)]


@pytest.mark.usefixtures("as_if_full_size")
def test_of_a_stand_in_the_target_is_of_the_published_length(baseline):
    dataset, index, made = baseline()
    assert list(stored_times(made).values()) == [4, 4, N_TARGET_TIMES]
    assert "10 fields, is read for every sample; the stand-in's 4 fields are rep" in made.source
    assert made.source.endswith("as many as upstream's.")
    assert_equal_samples(dataset, index, made.pipeline)


@pytest.mark.usefixtures("as_if_full_size")
def test_of_a_users_own_files_the_target_is_as_it_is(baseline, tiny, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    for file in tiny.files:
        shutil.copyfile(file, own / file.name)
    _, _, made = baseline(own, stand_in=False)
    assert set(stored_times(made).values()) == {4}


@pytest.mark.usefixtures("as_if_full_size")
def test_less_of_the_target_where_memory_is_short(baseline, monkeypatch):
    room = 2 * 2 * 91 * 180 * 4 * 5
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=room))
    _, _, made = baseline()
    assert list(stored_times(made).values()) == [4, 4, 5]
    assert "fewer than upstream's 10 for lack of memory" in made.source


@pytest.mark.usefixtures("as_if_full_size")
def test_the_whole_target_is_read_for_each_sample(baseline):
    _, _, made = baseline()
    dataset, where = made.pipeline.dataset, made.pipeline.index.where
    dataset.read(where[0])  # opens the files
    before = read_process_io()[0]
    dataset.read(where[1])
    field = 91 * 180 * 4
    assert (22 + N_TARGET_TIMES) * field <= read_process_io()[0] - before < 3 * 32 * field


def test_files_are_written_once(baseline):
    made = [baseline()[2] for _ in range(2)]
    assert made[0].files == made[1].files
    assert made[0].setup_s[0][0] == "training files"
    [folder] = {path.parent for path in made[0].files}
    inodes = [path.stat().st_ino for path in made[0].files]
    made[0].files[1].write_bytes(b"cut short")
    again = baseline()[2]
    assert [path.stat().st_ino for path in again.files] != inodes
    assert [entry.name for entry in folder.parent.iterdir() if "unfinished" in entry.name] == []


def test_other_samples_have_files_of_their_own(baseline):
    folders = {baseline(**options)[2].files[0].parent for options in ({}, {"date": "0101"})}
    assert len(folders) == 2


def test_progress_is_told(tiny, tmp_path):
    told = []
    locator = FileLocator(
        stand_in=tiny.root,
        cache_dir=tmp_path,
        progress=lambda done, total: told.append((done, total)),
    )
    index = tiny.index
    tiny.dataset.upstream(tiny.files, index, locator, batch_size=None)
    assert told == [(number, 4) for number in (1, 2, 3, 4)]


def test_a_full_disk_is_said_before_anything_is_written(baseline, monkeypatch, tmp_path):
    free = shutil.disk_usage(tmp_path)._replace(free=3_000_000)
    monkeypatch.setattr(upstream.shutil, "disk_usage", lambda path: free)
    with pytest.raises(StorageError, match=r"cache: the training files .* need 0.0 GB, 0.0 GB"):
        baseline()
    assert not list((tmp_path / "cache").glob("*training*"))


def test_what_cannot_be_written_is_said_and_left_nowhere(baseline, monkeypatch, tmp_path):
    def refuse(path, *arguments):
        path.write_bytes(b"begun")
        raise RuntimeError("NetCDF: HDF error")

    monkeypatch.setattr(upstream, "_new_file", refuse)
    with pytest.raises(StorageError, match=r"cannot be kept in .*\(NetCDF: HDF error\)"):
        baseline()
    left = [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    assert [name for name in left if not name.startswith("ens10-normalisation-")] == []


def test_missing_libraries_are_named(baseline, monkeypatch):
    monkeypatch.setattr(upstream, "LIBRARIES", ("numpy", "no_such_library"))
    with pytest.raises(MissingExtraError, match="needs no_such_library: pip install"):
        baseline()


def _sample_in_a_worker(dataset, where, replies):
    replies.send(make_sample(dataset, where)["inputs"])


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_worker_makes_samples_after_its_parent_made_one(baseline):
    _, _, made = baseline()
    dataset, where = made.pipeline.dataset, made.pipeline.index.where
    expected = make_sample(dataset, where[1])["inputs"]
    start = multiprocessing.get_context("fork")
    receiving, sending = start.Pipe(duplex=False)
    worker = start.Process(target=_sample_in_a_worker, args=(dataset, where[1], sending))
    worker.start()
    np.testing.assert_array_equal(receiving.recv(), expected)
    worker.join()
    assert worker.exitcode == 0


def test_it_is_small_in_a_pickle(baseline):
    _, _, made = baseline()
    dataset, where = made.pipeline.dataset, made.pipeline.index.where
    expected = make_sample(dataset, where[0])
    content = pickle.dumps(dataset)
    assert len(content) < 10_000
    again = make_sample(pickle.loads(content), where[0])
    np.testing.assert_array_equal(again["inputs"], expected["inputs"])


def test_what_is_known_of_the_files_has_no_folders_of_this_machine(baseline, tiny):
    _, _, made = baseline()
    about = (made.files[0].parent / "about.json").read_text()
    assert str(tiny.root) not in about
    assert json.loads(about)["n_target_times"] == 4


def test_ens5mini_has_no_training_code_and_no_such_baseline():
    assert not isinstance(Ens5mini(), UpstreamBaseline)
