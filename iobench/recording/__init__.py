"""Recording: spans, their files, the run directory, and the only clock of the package."""

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
from iobench.recording.span_reader import Anchor, SpanFile, read_span_file
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
    "record",
    "stage",
    "stage_name",
    "start_energy_reader",
    "unit_costs",
    "wait_until_ns",
    "wants_energy",
]
