"""A SLURM of one node, of the real daemons, on loopback and in a folder of its own."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")  # on few users' PATH
PROGRAMS = ("munged", "slurmctld", "slurmd", "sinfo", "srun", "sbatch", "scancel", "squeue")
N_CPUS = 4
START_S = 60.0

# The daemons bind to loopback only. config_overrides: as many CPUs as this says, whatever is there.
# linuxproc and no task plugin: neither cgroups nor root are needed.
CONFIGURATION = """
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={n_cpus}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@pytest.fixture(scope="session")
def slurm():
    """Start munge and SLURM; yield the environment in which srun and sbatch find it.

    Skips where they are not installed.
    """
    path = os.pathsep.join((os.environ["PATH"], *SBIN))
    found = {name: shutil.which(name, path=path) for name in PROGRAMS}
    missing = [name for name, program in found.items() if program is None]
    if missing:
        pytest.skip(
            f"no {', '.join(missing)} here: a real SLURM needs the Debian packages slurmctld, "
            "slurmd, slurm-client and munge"
        )
    # Not pytest's folder: the path of a socket has 107 bytes.
    with tempfile.TemporaryDirectory(prefix="slurm-") as name, contextlib.ExitStack() as daemons:
        folder = Path(name)
        environment = {**os.environ, "PATH": path, "SLURM_CONF": str(folder / "slurm.conf")}
        _write_configuration(folder)

        def start(program, *arguments):
            daemons.enter_context(_daemon(program, *arguments, folder=folder, env=environment))

        start(
            "munged", "--foreground", "--force", f"--socket={folder}/munge.socket",
            f"--key-file={folder}/munge.key", f"--pid-file={folder}/munged.pid",
            f"--seed-file={folder}/munge.seed",
        )  # fmt: skip
        _wait_for((folder / "munge.socket").exists, "munged", folder)
        start("slurmctld", "-D", "-c")
        start("slurmd", "-D", "-N", _host())

        def is_idle():
            command = ["sinfo", "--noheader", "--format=%t"]
            asked = subprocess.run(command, env=environment, capture_output=True, text=True)
            return asked.stdout.strip() == "idle"

        _wait_for(is_idle, "slurmctld, slurmd", folder)
        yield environment
        subprocess.run(["scancel", f"--user={getpass.getuser()}"], env=environment, check=False)


def _write_configuration(folder):
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(1024))
    for name in ("state", "spool"):
        (folder / name).mkdir()
    with socket.socket() as one, socket.socket() as other:
        ports = []
        for free in (one, other):
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    text = CONFIGURATION.format(
        host=_host(), user=getpass.getuser(), folder=folder, n_cpus=N_CPUS,
        controller_port=ports[0], node_port=ports[1],
    )  # fmt: skip
    (folder / "slurm.conf").write_text(text)


def _host():
    return socket.gethostname().partition(".")[0]


@contextlib.contextmanager
def _daemon(program, *arguments, folder, env):
    with (folder / f"{program}.out").open("wb") as out:
        process = subprocess.Popen([program, *arguments], stdout=out, stderr=out, env=env)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(condition, who, folder):
    deadline = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > deadline:
            said = "\n".join(path.read_text()[-2000:] for path in sorted(folder.glob("*.out")))
            pytest.fail(f"{who} did not start within {START_S:.0f} s:\n{said}")
        time.sleep(0.1)
