"""Every loader of iobench keeps the contract of loaders, whatever the container and framework."""

from __future__ import annotations

from types import MappingProxyType

import pytest

import iobench
from iobench.testing import LoaderTests


class TestThreads(LoaderTests):
    def open_loader(self, store, batch_size, **options):
        return iobench.loader(store, batch_size, **options)


class TestThreadsOverZarr(TestThreads):
    format = "zarr"


class TestThreadsOverTfrecord(TestThreads):
    format = "tfrecord"


class TestThreadsOverSharedChunks(TestThreadsOverZarr):
    format_options = MappingProxyType({"chunk-samples": "4", "codec": "shuffle,zstd"})


class TestProcesses(LoaderTests):
    forks = False

    def open_loader(self, store, batch_size, **options):
        return iobench.loader(store, batch_size, processes=True, **options)


class TestProcessesOverSharedChunks(TestProcesses):
    format = "zarr"
    format_options = MappingProxyType({"chunk-samples": "4", "codec": "shuffle,zstd"})


class TestTensorsOfTorch(LoaderTests):
    def open_loader(self, store, batch_size, **options):
        pytest.importorskip("torch", reason="its tensors are what is tested")
        return iobench.loader(store, batch_size, framework="torch", **options)


class TestTensorsOfTensorflow(LoaderTests):
    def open_loader(self, store, batch_size, **options):
        pytest.importorskip("tensorflow", reason="its tensors are what is tested")
        return iobench.loader(store, batch_size, framework="tensorflow", **options)
