"""Who runs this, where: the names that are looked for first."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from iobench.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOBODY: Final = frozenset({"root", "user", "nobody", "ubuntu", "jovyan", ""})
"""Users of machines and containers, not of people."""
USER_VARIABLES: Final = ("USER", "LOGNAME", "USERNAME", "SLURM_JOB_USER", "SUDO_USER")
JOB_VARIABLES: Final = ("SLURM_JOB_NAME", "SLURM_JOB_ACCOUNT", "PBS_JOBNAME", "LSB_JOBNAME")
HOST_VARIABLES: Final = ("HOSTNAME", "SLURMD_NODENAME", "SLURM_SUBMIT_HOST", "SLURM_CLUSTER_NAME")
OF_HOME: Final = re.compile(r"[/\\](?:home|Users)[/\\]([^/\\\s\"':;,]+)")


@frozen
class Whoami:
    """Names that tell a person or a machine.

    Parameters
    ----------
    homes : tuple of str
        Directories, the longest first.
    numbers : frozenset of str
        Of the user and the group.
    """

    users: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()
    numbers: frozenset[str] = frozenset()


def who_runs_this(texts: Sequence[str], environment: Mapping[str, str]) -> Whoami:
    """Return the names of this process's user and machine, and those that homes in texts tell.

    Parameters
    ----------
    texts : sequence of str
        All that is to be passed on.
    """
    users = {environment.get(name, "") for name in USER_VARIABLES}
    with contextlib.suppress(KeyError, OSError):
        users.add(getpass.getuser())
    homes = {environment.get("HOME", ""), environment.get("USERPROFILE", "")}
    with contextlib.suppress(RuntimeError):  # a container's user may have none
        homes.add(str(Path("~").expanduser()))
    homes -= {"", "/", "~"}
    users |= {Path(home).name for home in homes}
    for text in texts:
        users.update(OF_HOME.findall(text))
    numbers = {str(get()) for name in ("getuid", "getgid") if (get := getattr(os, name, None))}
    return Whoami(
        users=tuple(sorted(users - NOBODY)),
        hosts=tuple(sorted({environment.get(name, "") for name in HOST_VARIABLES} - {""})),
        jobs=tuple(sorted({environment.get(name, "") for name in JOB_VARIABLES} - {""})),
        homes=tuple(sorted(homes, key=lambda home: (-len(home), home))),
        numbers=frozenset(numbers - {"0"}),
    )
