"""Recording: spans, their files, the run directory, and the only clock of the package."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from iobench.recording.activation import activate, active_recorder
    from iobench.recording.clocks import SYSTEM_CLOCK, Clock, DeviceClock, now_ns, wait_until_ns
    from iobench.recording.costs import unit_costs
    from iobench.recording.delivery_log import DeliveryLog
    from iobench.recording.device_lane import DeviceLane, DeviceRegion
    from iobench.recording.digests import DIGEST_DTYPE, DigestLog, DigestTable, read_digests
    from iobench.recording.energy_counters import EnergySource, UnreadableEnergy
    from iobench.recording.energy_file import EnergySeries, HostEnergy, read_energy
    from iobench.recording.energy_reader import start_energy_reader, wants_energy
    from iobench.recording.facts import LoaderFacts, ProcessFacts, read_process_facts
    from iobench.recording.job import JobRank, find_job
    from iobench.recording.kinds import (
        CONSUMER_KINDS,
        HANDOVER_KINDS,
        LIFE_KINDS,
        WORKER_KINDS,
        Kind,
        stage_name,
    )
    from iobench.recording.measured import MeasuredRecording
    from iobench.recording.process_io import ProcessIoReader, read_process_io
    from iobench.recording.recorder import Recorder
    from iobench.recording.run_directory import RunDirectory
    from iobench.recording.session import (
        RUN_PATH,
        Recording,
        current_recording,
        loop_recording,
        record,
    )
    from iobench.recording.span_file import SPAN_DTYPE, Flag, io_looks
    from iobench.recording.span_reader import Anchor, SpanFile, read_span_file, read_span_files
    from iobench.recording.stages import stage
    from iobench.recording.stopped import StoppedRecording

__all__ = [
    "CONSUMER_KINDS",
    "DIGEST_DTYPE",
    "HANDOVER_KINDS",
    "LIFE_KINDS",
    "RUN_PATH",
    "SPAN_DTYPE",
    "SYSTEM_CLOCK",
    "WORKER_KINDS",
    "Anchor",
    "Clock",
    "DeliveryLog",
    "DeviceClock",
    "DeviceLane",
    "DeviceRegion",
    "DigestLog",
    "DigestTable",
    "EnergySeries",
    "EnergySource",
    "Flag",
    "HostEnergy",
    "JobRank",
    "Kind",
    "LoaderFacts",
    "MeasuredRecording",
    "ProcessFacts",
    "ProcessIoReader",
    "Recorder",
    "Recording",
    "RunDirectory",
    "SpanFile",
    "StoppedRecording",
    "UnreadableEnergy",
    "activate",
    "active_recorder",
    "current_recording",
    "find_job",
    "io_looks",
    "loop_recording",
    "now_ns",
    "read_digests",
    "read_energy",
    "read_process_facts",
    "read_process_io",
    "read_span_file",
    "read_span_files",
    "record",
    "stage",
    "stage_name",
    "start_energy_reader",
    "unit_costs",
    "wait_until_ns",
    "wants_energy",
]

# On first use: a process that records needs half of these, and it is the user's time.
_HOMES: Final = {
    "activate": "activation",
    "active_recorder": "activation",
    "SYSTEM_CLOCK": "clocks",
    "Clock": "clocks",
    "DeviceClock": "clocks",
    "now_ns": "clocks",
    "wait_until_ns": "clocks",
    "unit_costs": "costs",
    "DeliveryLog": "delivery_log",
    "DeviceLane": "device_lane",
    "DeviceRegion": "device_lane",
    "DIGEST_DTYPE": "digests",
    "DigestLog": "digests",
    "DigestTable": "digests",
    "read_digests": "digests",
    "EnergySource": "energy_counters",
    "UnreadableEnergy": "energy_counters",
    "EnergySeries": "energy_file",
    "HostEnergy": "energy_file",
    "read_energy": "energy_file",
    "start_energy_reader": "energy_reader",
    "wants_energy": "energy_reader",
    "LoaderFacts": "facts",
    "ProcessFacts": "facts",
    "read_process_facts": "facts",
    "JobRank": "job",
    "find_job": "job",
    "CONSUMER_KINDS": "kinds",
    "HANDOVER_KINDS": "kinds",
    "LIFE_KINDS": "kinds",
    "WORKER_KINDS": "kinds",
    "Kind": "kinds",
    "stage_name": "kinds",
    "MeasuredRecording": "measured",
    "ProcessIoReader": "process_io",
    "read_process_io": "process_io",
    "Recorder": "recorder",
    "RunDirectory": "run_directory",
    "RUN_PATH": "session",
    "Recording": "session",
    "current_recording": "session",
    "loop_recording": "session",
    "record": "session",
    "SPAN_DTYPE": "span_file",
    "Flag": "span_file",
    "io_looks": "span_file",
    "Anchor": "span_reader",
    "SpanFile": "span_reader",
    "read_span_file": "span_reader",
    "read_span_files": "span_reader",
    "stage": "stages",
    "StoppedRecording": "stopped",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"iobench.recording.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
