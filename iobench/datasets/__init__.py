"""What samples are made from: the dataset contract, locating files, source readers."""

from iobench.cpus import available_cpus
from iobench.datasets.anemoi_store import anemoi_dataset
from iobench.datasets.baselines import (
    PIPELINES,
    Baseline,
    MapStyle,
    PluginBaseline,
    Stream,
    StreamStage,
    UpstreamBaseline,
    pipelines_of,
    stream_samples,
)
from iobench.datasets.cached import PartBytes
from iobench.datasets.contract import (
    Arrays,
    Dataset,
    GroupedDataset,
    Locator,
    PlannedDataset,
    Progress,
    PublishedStep,
    Raw,
    RunJobs,
    SampleIndex,
    SharedChunks,
    Synthesizer,
    Where,
    make_sample,
    no_progress,
    sample_steps,
)
from iobench.datasets.decoded_chunks import (
    DecodeCounts,
    DecodedChunks,
    keeping_nothing,
    share_chunk_cache,
    take_decode_counts,
)
from iobench.datasets.download import (
    DEFAULT_TIMEOUT_S,
    Downloadable,
    Downloads,
    PluginDownload,
    download_missing,
)
from iobench.datasets.extents import FileExtent, read_extents
from iobench.datasets.files import user_files
from iobench.datasets.grib.decoding import decode_message
from iobench.datasets.grib.index import GribIndex, index_grib, read_messages
from iobench.datasets.locate import FileLocator, own_files
from iobench.datasets.memory import pages_used_again
from iobench.datasets.netcdf.boxes import (
    Box,
    ChunkedFields,
    box_extents,
    box_through_library,
    decode_box,
    make_box,
    read_fields,
)
from iobench.datasets.netcdf.file import (
    NetcdfFile,
    NetcdfVariable,
    decode_slab,
    inspect_netcdf,
    read_through_library,
    where_slab,
)
from iobench.datasets.netcdf.storage import (
    Chunked,
    Contiguous,
    Slab,
    Storage,
    slab_array,
    slab_extents,
)
from iobench.datasets.objects.source import ObjectDataset, object_dataset
from iobench.datasets.objects.streams import ReadyBatches
from iobench.datasets.objects.targets import is_object_target
from iobench.datasets.ordered import samples_in_order
from iobench.datasets.packing import Packing, unpack
from iobench.datasets.patterns import DatedFile, FilePattern
from iobench.datasets.positions import cf_times, time_positions
from iobench.datasets.processes import Advance, run_jobs, stopwatch
from iobench.datasets.real_plugins import PluginRequest, network_cut_off, open_through_plugin
from iobench.datasets.sidecars import (
    index_folders,
    load_sidecar,
    make_index_folder,
    save_sidecar,
)
from iobench.datasets.splits import place_index_windows, select_split
from iobench.datasets.standins import (
    PlannedFile,
    ensure_stand_in,
    locate_files,
    stand_in_identity,
    stand_in_root,
    write_planned_files,
)
from iobench.datasets.used_bytes import UsedBytes, first_changed

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "PIPELINES",
    "Advance",
    "Arrays",
    "Baseline",
    "Box",
    "Chunked",
    "ChunkedFields",
    "Contiguous",
    "Dataset",
    "DatedFile",
    "DecodeCounts",
    "DecodedChunks",
    "Downloadable",
    "Downloads",
    "FileExtent",
    "FileLocator",
    "FilePattern",
    "GribIndex",
    "GroupedDataset",
    "Locator",
    "MapStyle",
    "NetcdfFile",
    "NetcdfVariable",
    "ObjectDataset",
    "Packing",
    "PartBytes",
    "PlannedDataset",
    "PlannedFile",
    "PluginBaseline",
    "PluginDownload",
    "PluginRequest",
    "Progress",
    "PublishedStep",
    "Raw",
    "ReadyBatches",
    "RunJobs",
    "SampleIndex",
    "SharedChunks",
    "Slab",
    "Storage",
    "Stream",
    "StreamStage",
    "Synthesizer",
    "UpstreamBaseline",
    "UsedBytes",
    "Where",
    "anemoi_dataset",
    "available_cpus",
    "box_extents",
    "box_through_library",
    "cf_times",
    "decode_box",
    "decode_message",
    "decode_slab",
    "download_missing",
    "ensure_stand_in",
    "first_changed",
    "index_folders",
    "index_grib",
    "inspect_netcdf",
    "is_object_target",
    "keeping_nothing",
    "load_sidecar",
    "locate_files",
    "make_box",
    "make_index_folder",
    "make_sample",
    "network_cut_off",
    "no_progress",
    "object_dataset",
    "open_through_plugin",
    "own_files",
    "pages_used_again",
    "pipelines_of",
    "place_index_windows",
    "read_extents",
    "read_fields",
    "read_messages",
    "read_through_library",
    "run_jobs",
    "sample_steps",
    "samples_in_order",
    "save_sidecar",
    "select_split",
    "share_chunk_cache",
    "slab_array",
    "slab_extents",
    "stand_in_identity",
    "stand_in_root",
    "stopwatch",
    "stream_samples",
    "take_decode_counts",
    "time_positions",
    "unpack",
    "user_files",
    "where_slab",
    "write_planned_files",
]
