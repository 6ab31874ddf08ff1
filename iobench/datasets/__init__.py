"""What samples are made from: the dataset contract, locating files, source readers."""

from iobench.datasets.contract import (
    Arrays,
    Dataset,
    Locator,
    Progress,
    PublishedStep,
    Raw,
    SampleIndex,
    Synthesizer,
    Where,
    make_sample,
    no_progress,
    sample_steps,
)
from iobench.datasets.extents import FileExtent, read_extents
from iobench.datasets.files import user_files
from iobench.datasets.grib import GribIndex, decode_message, index_grib, read_messages
from iobench.datasets.locate import FileLocator
from iobench.datasets.processes import Advance, run_jobs, stopwatch
from iobench.datasets.sidecars import index_folders, make_index_folder
from iobench.datasets.standins import (
    PlannedFile,
    ensure_stand_in,
    locate_files,
    stand_in_identity,
    stand_in_root,
    write_planned_files,
)

__all__ = [
    "Advance",
    "Arrays",
    "Dataset",
    "FileExtent",
    "FileLocator",
    "GribIndex",
    "Locator",
    "PlannedFile",
    "Progress",
    "PublishedStep",
    "Raw",
    "SampleIndex",
    "Synthesizer",
    "Where",
    "decode_message",
    "ensure_stand_in",
    "index_folders",
    "index_grib",
    "locate_files",
    "make_index_folder",
    "make_sample",
    "no_progress",
    "read_extents",
    "read_messages",
    "run_jobs",
    "sample_steps",
    "stand_in_identity",
    "stand_in_root",
    "stopwatch",
    "user_files",
    "write_planned_files",
]
