"""A module of a user's own, in the current folder."""

import sys
import warnings

import pytest

from iobench.datasets.locate import FileLocator
from iobench.datasets.python_objects import object_dataset
from iobench.loaders.pipeline import dataset_pipeline
from iobench.loaders.planned_loaders import PlannedRing
from iobench.loaders.ring.order import plan_batches
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.recording.process_io import unit_costs
from iobench.recording.run_directory import RunDirectory

MODULE = """
import numpy as np

class Squares:
    def __init__(self, n=5, scale=1.0):
        self.n, self.scale = n, scale
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        return {"x": np.full((2, 3), i * self.scale, "f4"), "y": i * i, "name": f"number {i}"}

class Growing(Squares):
    def __getitem__(self, i):
        return np.zeros(1 + i // 3)

class Failing(Squares):
    def __getitem__(self, i):
        if i == 2:
            raise ZeroDivisionError("the third is bad")
        return np.zeros(2)

class Numbers:
    def __init__(self, n=6):
        self.n = n
    def __iter__(self):
        return iter(np.full(2, i, "f8") for i in range(self.n))

class Counted(Numbers):
    def __len__(self):
        return self.n

def generated(n: int = 4):
    for i in range(n):
        yield {"v": np.float32(i)}

def text_and_number(day: str, count):
    return [np.array([len(day)]) for _ in range(count)]

def signed(url="", api_key=""):
    return Squares(12)

def nothing():
    return None

def broken():
    raise RuntimeError("no such disk\\nand more")

def number():
    return 17

def empty():
    return []

def empty_stream():
    return iter([])

ready = Squares(3)
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """The module ``mydata`` in the current folder, forgotten afterwards."""
    (tmp_path / "mydata.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    sys.modules.pop("mydata", None)
    yield tmp_path
    sys.path[:] = before
    for name in ("mydata", "badly", "needy"):
        sys.modules.pop(name, None)


@pytest.fixture
def locator(tmp_path):
    return FileLocator(cache_dir=tmp_path / "indexes")


@pytest.fixture
def opened(locator):
    """Make a dataset of an object, and index it."""

    def open_object(target, **options):
        dataset = object_dataset(target, **options)
        index = dataset.samples(dataset.files(locator), locator)
        return dataset, index

    return open_object


@pytest.fixture
def load(tmp_path):
    """Load batches of two samples, in order, by two worker processes."""

    def load_batches(dataset, index, n_batches):
        run = RunDirectory.create(tmp_path / "run", {})
        with warnings.catch_warnings():
            # Python 3.12 warns of forks beside threads, which other libraries' tests leave behind.
            warnings.simplefilter("ignore", DeprecationWarning)
            source = PipelineSource(dataset_pipeline(dataset, index), unit_costs=unit_costs())
            with (
                run.recorder(role="consumer") as recorder,
                PlannedRing(
                    source, 2, workers=2, prefetch=1, recorder=recorder, run_directory=run.path
                ) as loader,
            ):
                batches = plan_batches(len(index), 2, shuffle=False)
                plan = [next(batches) for _ in range(n_batches)]
                arrays = [
                    {name: array.copy() for name, array in batch.arrays.items()}
                    for batch in loader.batches(plan)
                ]
        return arrays

    return load_batches
