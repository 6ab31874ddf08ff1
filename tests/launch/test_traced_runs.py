"""``iobench run --darshan``: what a command finds set, and what the run says of it."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.errors import OptionError
from iobench.recording.clocks import SYSTEM_CLOCK
from iobench.storage.darshan_setup import find_runtime
from tests.support.runtimes_in_c import LEAVES_LOGS, LEAVES_NOTHING, made_runtime

TELLS = """
import json, os
names = ("LD_PRELOAD", "DARSHAN_LOGFILE")
print(json.dumps([os.getpid(), {name: os.environ.get(name) for name in names}]))
"""
LOADS = """
import os, sys
import numpy, torch
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __init__(self, folder):
        self.paths = sorted(os.path.join(folder, name) for name in os.listdir(folder))
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, number):
        with open(self.paths[number], "rb") as file:
            return torch.from_numpy(numpy.frombuffer(file.read(), "f4").copy())

if __name__ == "__main__":
    loader = DataLoader(
        Files(sys.argv[1]), batch_size=4, num_workers=2, multiprocessing_context=sys.argv[2]
    )
    print(sum(len(batch) for batch in loader))
"""
FILE_NBYTES = 400_000


def _told(run):
    told: dict[str, Any] = json.loads((run / "run.json").read_text())["darshan"]
    return told


@pytest.fixture
def around(tmp_path):
    """The environment of a command that is not traced yet, with no library that starts slowly."""
    folder = tmp_path / "modules"
    folder.mkdir()
    for name in ("numpy", "h5py", "netCDF4"):
        (folder / f"{name}.py").write_text("raise ImportError")
    kept = {name: text for name, text in os.environ.items() if "DARSHAN" not in name}
    kept.pop("LD_PRELOAD", None)
    return kept | {"PYTHONPATH": str(folder)}


def test_a_command_is_traced_where_the_runtime_works(tmp_path, script, launch, around):
    library = made_runtime(tmp_path / "runtime", LEAVES_LOGS)
    environment = around | {"DARSHAN_LIB": str(library), "DARSHAN_LOGFILE": "/nowhere/one.darshan"}
    done = launch(sys.executable, script(TELLS), environment=environment, darshan=("auto",))
    pid, found = json.loads(done.out)
    assert found["LD_PRELOAD"] == str(library)
    assert found["DARSHAN_LOGFILE"] is None
    told = _told(done.run)
    assert (told["state"], told["runtime"], told["logs"]) == ("on", str(library), "darshan")
    (log,) = (done.run / "darshan").glob("*.darshan")
    assert f"-{pid}_" in log.name
    assert not Path(told["set"]["DARSHAN_MMAP_LOGPATH"]).is_relative_to("/dev") or (
        not Path(told["set"]["DARSHAN_MMAP_LOGPATH"]).exists()
    )
    assert done.said[-1] == f"darshan: 1 log in {done.run / 'darshan'}"


def test_without_a_runtime_that_works_the_command_runs_all_the_same(
    tmp_path, script, launch, around
):
    library = made_runtime(tmp_path / "runtime", LEAVES_NOTHING)
    done = launch(
        sys.executable,
        script(TELLS),
        environment=around | {"DARSHAN_LIB": str(library)},
        darshan=("auto",),
    )
    assert done.code == 0
    assert json.loads(done.out)[1]["LD_PRELOAD"] is None
    told = _told(done.run)
    assert told["state"] == "off"
    assert "left no log" in told["reason"]
    assert [line for line in done.said if "not traced" in line and told["reason"] in line]
    assert not (done.run / "darshan").exists()


def test_nothing_is_set_unless_asked_for_and_logs_of_the_users_own_are_named(
    tmp_path, script, launch, around
):
    path = script("import os; print(os.environ.get('DARSHAN_ENABLE_NONMPI'))")
    plain = launch(sys.executable, path, environment=around)
    own = launch(
        sys.executable, path, environment=around, out=tmp_path / "own",
        darshan=(str(tmp_path),),
    )  # fmt: skip
    assert plain.out == own.out == "None\n"
    for done in (plain, own):
        assert [line.split()[0] for line in done.said] == ["recording"]
    assert _told(plain.run)["state"] == "off"
    assert _told(own.run)["logs"] == [str(tmp_path)]


def test_logs_that_are_not_there_are_refused_before_anything_starts(tmp_path, launch):
    with pytest.raises(OptionError, match="--darshan /nowhere/logs: no such file or folder"):
        launch(sys.executable, "-c", "", darshan=("/nowhere/logs",))
    assert not (tmp_path / "run").exists()


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_every_read_of_a_training_script_is_in_the_logs_of_its_workers(
    tmp_path, script, launch, method
):
    pytest.importorskip("torch", reason="the script loads with torch")
    pytest.importorskip("darshan", reason="reads the logs")
    runtime = find_runtime(os.environ)
    if runtime is None:
        pytest.skip("no runtime of Darshan here; DARSHAN_LIB may name one")
    from iobench.analysis.placement import place_segments
    from iobench.storage.darshan_reader import read_traces

    data = tmp_path / "data"
    data.mkdir()
    for number in range(40):
        (data / f"{number:02d}.f4").write_bytes(os.urandom(FILE_NBYTES))
    done = launch(sys.executable, script(LOADS), data, method, darshan=("auto",))
    assert done.out == "40\n"
    assert _told(done.run)["state"] == "on", _told(done.run)
    (facts,) = [facts for facts in done.facts if facts.role == "consumer"]
    workers = set(facts.loaders[0].worker_pids)
    # With spawn, multiprocessing's resource tracker lives longer than the command, and so its log.
    deadline = SYSTEM_CLOCK.now_ns() + 60 * 10**9
    while list((done.run / "darshan").rglob("*_partial")) and SYSTEM_CLOCK.now_ns() < deadline:
        threading.Event().wait(0.1)
    trace = read_traces([done.run / "darshan"])
    assert trace.notes == ()
    of_workers = [each for each in trace.processes if each.pid in workers]
    assert len(of_workers) == len(workers) == 2
    assert not any(each.partial_modules for each in of_workers)
    for process in of_workers:
        ours = [n for n, path in enumerate(process.files) if Path(path).parent == data]
        nbytes = process.segments["nbytes"][np.isin(process.segments["file"], ours)]
        assert len(ours) == 20
        assert nbytes.sum() == 20 * FILE_NBYTES
    placement = place_segments(done.profile, trace)
    coverage = placement.coverage
    assert coverage.n_segments >= 80
    assert coverage.n_logs == coverage.n_expected
    assert coverage.n_placed == coverage.n_segments
