"""Starting a run under Darshan: which runtime there is, whether it works here, what it is told."""

from iobench.storage.tracing.attaching import attached, probed_before, restart_under
from iobench.storage.tracing.choice import DarshanChoice
from iobench.storage.tracing.gathering import GatheredLogs, gather_logs
from iobench.storage.tracing.interpreters import interpreter_of
from iobench.storage.tracing.probing import ProbedRuntime, probe, ready_runtime
from iobench.storage.tracing.runtimes import DarshanRuntime, find_runtime
from iobench.storage.tracing.setting_up import DarshanSetup, job_number, set_up

__all__ = [
    "DarshanChoice",
    "DarshanRuntime",
    "DarshanSetup",
    "GatheredLogs",
    "ProbedRuntime",
    "attached",
    "find_runtime",
    "gather_logs",
    "interpreter_of",
    "job_number",
    "probe",
    "probed_before",
    "ready_runtime",
    "restart_under",
    "set_up",
]
