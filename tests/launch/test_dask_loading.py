"""Scripts whose datasets are lazy: what dask's threads read and compute is of the batch it is for.

Tasks that sleep are the known truth: no task is shorter than its sleep, and with enough threads
those of one sample go on side by side.
"""

from __future__ import annotations

import sys

import pytest

from iobench.analysis.run import Run

# "distributed" is a cluster's, for one test; all start four seconds of dask, xarray and torch each.
for package in ("dask.array", "distributed", "h5netcdf", "netCDF4", "torch", "xarray", "zarr"):
    pytest.importorskip(package, reason="what the script loads with")

pytestmark = [pytest.mark.timeout(240), pytest.mark.long]

N_SAMPLES, N_TIMES, NBYTES = 8, 4, 16 * 16 * 4
SLEEP_NS = 20_000_000

SCRIPT = """
    import sys, time
    import dask, numpy as np, torch, xarray as xr

    engine, workers, scheduler, path = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]

    def slow(block):
        time.sleep(0.02)
        return block + 1

    class Lazy(torch.utils.data.Dataset):
        data = None

        def __len__(self):
            return 8

        def __getitem__(self, i):
            if self.data is None:
                self.data = xr.open_dataset(path, engine=engine, chunks={"time": 1})
            part = self.data.x.isel(time=slice(4 * i, 4 * i + 4)).data
            found = part.map_blocks(slow, dtype="f4", meta=np.ones((1, 1, 1), "f4")).compute()
            assert (found == np.arange(4 * i, 4 * i + 4)[:, None, None] + 1).all()
            return torch.from_numpy(found)

    if __name__ == "__main__":
        field = np.broadcast_to(np.arange(32, dtype="f4")[:, None, None], (32, 16, 16))
        made = xr.Dataset({"x": (("time", "y", "x"), field.copy())})
        if engine == "zarr":
            made.to_zarr(path)
        else:
            how = {"zlib": True, "chunksizes": (1, 16, 16)}
            made.to_netcdf(path, engine=engine, encoding={"x": how})
        dask.config.set(scheduler=scheduler, num_workers=4)
        for batch in torch.utils.data.DataLoader(Lazy(), batch_size=2, num_workers=workers):
            pass
"""


def stages_of(found):
    """Return the stages of a run over all its batches, after holding what is true of any."""
    assert found.code == 0, found.err
    window = Run(found.run).of_rank().exposure.whole
    assert window.n_batches == N_SAMPLES // 2
    assert sum(row.exposed_ns for row in window.stages) == window.wait_ns
    assert all(0 <= row.exposed_ns <= row.busy_ns for row in window.stages)
    return {row.stage: row for row in window.stages}


@pytest.mark.parametrize("workers", [1, 0, 2])
def test_what_sleeps_in_tasks_side_by_side_is_waited_for_once(launch, script, tmp_path, workers):
    found = launch(sys.executable, script(SCRIPT), "netcdf4", workers, "threads", tmp_path / "x.nc")
    stages = stages_of(found)
    computed = stages["preprocess"]
    assert computed.busy_ns >= N_SAMPLES * N_TIMES * SLEEP_NS
    # Four at a time: on the way of a sample lies one of them at least. Of the samples after the
    # first batch workers hide what they make while the loop waits for that batch's hand-over.
    n_waited_for = 2 if workers else N_SAMPLES
    assert computed.exposed_ns >= n_waited_for * SLEEP_NS
    assert computed.exposed_ns <= computed.busy_ns - N_SAMPLES * SLEEP_NS
    assert "preprocess:dask" in stages
    read = stages["fused:read+decode"]
    assert (read.n_spans, read.nbytes) == (N_SAMPLES * N_TIMES, N_SAMPLES * N_TIMES * NBYTES)


@pytest.mark.parametrize("engine", ["zarr", "netcdf4", "h5netcdf"])
def test_every_engine_shows_what_it_reads(launch, script, tmp_path, engine):
    found = launch(sys.executable, script(SCRIPT), engine, 1, "threads", tmp_path / f"x.{engine}")
    stages = stages_of(found)
    if engine == "zarr":  # its codecs are seen apart from its gets
        assert (stages["read"].nbytes or 0) > 0
        assert stages["decode"].busy_ns > 0
    else:  # libhdf5 reads and inflates in one call: nobody can tell these apart
        assert stages["fused:read+decode"].nbytes == N_SAMPLES * N_TIMES * NBYTES
        assert stages["fused:read+decode"].cpu_ns is not None


@pytest.mark.parametrize("processes", [False, True])
def test_a_cluster_is_waited_for_and_said_to_be_unseen(launch, script, tmp_path, *, processes):
    pytest.importorskip("distributed", reason="is the cluster")
    cluster = f"n_workers=1, threads_per_worker=2, processes={processes}, dashboard_address=None"
    text = SCRIPT.replace(
        "dask.config.set(scheduler=scheduler, num_workers=4)",
        f"import distributed; client = distributed.Client(distributed.LocalCluster({cluster}))",
    )
    text += "        client.cluster.close(); client.close()\n"
    found = launch(sys.executable, script(text), "netcdf4", 0, "-", tmp_path / "x.nc")
    stages = stages_of(found)
    unseen = stages["opaque:dask.distributed"]
    # Two threads for four tasks.
    assert unseen.exposed_ns >= N_SAMPLES * 2 * SLEEP_NS
    assert "fused:read+decode" not in stages
