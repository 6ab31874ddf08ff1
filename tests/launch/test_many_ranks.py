"""Jobs of several training processes: one launcher for all, or one for each."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from iobench.analysis.run import Run
from iobench.launch.running import ScriptRun, run_script
from iobench.recording.facts import read_process_facts
from iobench.recording.kinds import Kind
from iobench.runs.reading import open_profile
from iobench.testing import FakeClock
from tests.support.run_json import to_json

RANK = """
import numpy
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.session import current_recording
recording = current_recording()
log = DeliveryLog(recording, recording.add_loader("own", "List", "numbers"))
for number in range(3):
    log.ask(number)
    log.deliver(number, maker="consumer")
log.ask()
log.end()
"""
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
no_mpi = pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not installed")


def deliveries_by_rank(run):
    """Return how many batches each rank was delivered."""
    profile = open_profile(run)
    spans = profile.spans[(profile.spans["kind"] == Kind.WAIT) & (profile.spans["batch"] >= 0)]
    ranks = [profile.processes[process].rank for process in spans["process"]]
    return {rank: ranks.count(rank) for rank in sorted(set(ranks))}


def names_of(run, kind):
    """Return what spans of a kind are called that all ranks have."""
    profile = open_profile(run)
    spans = profile.spans[profile.spans["kind"] == kind]
    told = {(profile.processes[each["process"]].rank, each["label"]) for each in spans}
    by_rank: dict[int, set[str]] = {}
    for rank, label in told:
        by_rank.setdefault(rank, set()).add(profile.strings[label])
    return set.intersection(*by_rank.values())


@no_mpi
def test_one_launcher_and_many_ranks(launch, script):
    found = launch(*MPIRUN, sys.executable, script(RANK))
    assert found.code == 0, found.err
    assert deliveries_by_rank(found.run) == {0: 3, 1: 3}
    told = [(facts.rank, facts.world_size) for facts in found.facts]
    assert told == [(0, 2), (0, 1), (1, 2)]


@pytest.mark.long
@no_mpi
def test_many_launchers_make_one_run_and_the_first_prints(tmp_path, script, plainly, cli):
    found = plainly(*MPIRUN, *cli, "--", sys.executable, script(RANK), cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    (run,) = (tmp_path / "iobench-runs").iterdir()
    assert run.name.startswith("train-")
    assert deliveries_by_rank(run) == {0: 3, 1: 3}
    told = [(facts.role, facts.rank) for facts in read_process_facts(run / "processes")]
    assert told == [("consumer", 0), ("launcher", 0), ("consumer", 1), ("launcher", 1)]
    assert found.stderr.count(" --full\n") == 1
    assert "had not ended" not in found.stderr


def of_job(rank):
    """Return the environment of a task that srun started."""
    named = {"PROCID": rank, "STEP_ID": 0, "STEP_NUM_TASKS": 2, "LOCALID": rank, "JOB_ID": 77}
    return {**os.environ, **{f"SLURM_{name}": str(value) for name, value in named.items()}}


def test_a_rank_that_never_came_is_named_and_not_waited_for(tmp_path, script, capfd):
    clock = FakeClock()
    before = clock.now_ns()
    asked = ScriptRun((sys.executable, str(script(RANK))), out=tmp_path / "run")
    ended = run_script(asked, print, of_job(0), clock)
    assert (ended.code, ended.rank) == (0, 0)
    assert 10e9 <= clock.now_ns() - before < 11e9
    late = run_script(asked, print, of_job(1), clock)
    assert (late.code, late.rank) == (0, 1)
    assert deliveries_by_rank(tmp_path / "run") == {0: 3, 1: 3}
    (line,) = capfd.readouterr().out.splitlines()
    assert line.startswith(f"recording into {tmp_path / 'run'}; "), "of the first rank alone"


def test_a_job_that_is_queued_again_is_another_run(tmp_path, script, monkeypatch):
    asked = ScriptRun((sys.executable, str(script("print(1)"))), out=None)
    monkeypatch.chdir(tmp_path)
    runs = [
        run_script(asked, print, {**of_job(1), "SLURM_RESTART_COUNT": again}).run
        for again in ("0", "0", "1")
    ]
    assert runs[0] == runs[1] != runs[2]


MEETING = """
import atexit
import os
import sys
import time
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)


class Late(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if rank == 1:
            time.sleep(0.1)  # its input is late
        return torch.full((64,), float(index + rank))


def train(data, work):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64))
    for each in model.state_dict().values():
        dist.broadcast(each, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in DataLoader(data, batch_size=2):
        model(x).square().mean().backward()
        for each in model.parameters():
            dist.all_reduce(each.grad)
        optimizer.step()
        if rank == 1:
            time.sleep(work)  # it computes longer
    sums = [float(each.sum()).hex() for each in model.state_dict().values()]
    # One write, which ranks do not mix: torchrun starts them with -u.
    sys.stdout.write(" ".join([str(rank), *sums]) + "\\n")


same = torch.arange(512.0).reshape(8, 64)
train(Late(), 0)
train(same, 0.1)
dist.all_reduce(torch.ones(1000))
sharded = fully_shard(torch.nn.Linear(64, 64), mesh=init_device_mesh("cpu", (2,)))
sharded(same).sum().backward()
dist.barrier()
dist.destroy_process_group()
# Gloo's threads live on. One that wants Python's lock to let go of its last work, while Python 3.11
# ends, is unwound through C++ that aborts: "terminate called without an active exception".
atexit._run_exitfuncs()
os._exit(0)
"""
N_STEPS, SLEPT_NS = 4, 10**8


@pytest.mark.long
def test_time_in_collective_operations_includes_waiting_for_other_ranks(launch, script, plainly):
    pytest.importorskip("torch", reason="torchrun is torch's")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    path = script(MEETING)
    found = launch(*torchrun, path)
    assert found.code == 0, found.err
    plain = plainly(*torchrun, path, timeout=60)
    assert plain.returncode == 0, plain.stderr
    assert sorted(found.out.splitlines()) == sorted(plain.stdout.splitlines()), "bit for bit"

    document = to_json([Run(found.run)])
    first, second = document["job"]["ranks"]
    # The first rank waits in operations for the second one, which loads and then works longer.
    late_ns = 2 * (N_STEPS - 1) * SLEPT_NS
    assert first["comm_held_ns"] - second["comm_held_ns"] >= 0.8 * late_ns
    # It is no computing of the script's; the job's figure is of the rank that loads longest.
    assert document["job"]["rank"] == 1
    assert 0 < document["job"]["comm_ns"] < document["job"]["wall_ns"]
    assert {"all_gather", "reduce_scatter"} <= names_of(found.run, Kind.COMM), "of FSDP"
    told = {text.partition("\n")[0] for facts in found.facts for text in facts.unseen}
    assert not [text for text in told if "collective" in text or "gradients" in text]


def test_communication_by_horovod_is_said_to_be_unseen(launch, script):
    package = script("", "horovod.py").parent
    found = launch(
        sys.executable,
        script("import numpy, horovod"),
        environment={**os.environ, "PYTHONPATH": str(package)},
    )
    assert found.code == 0, found.err
    unseen = [text for facts in found.facts for text in facts.unseen]
    assert unseen == ["collective operations of Horovod"]
