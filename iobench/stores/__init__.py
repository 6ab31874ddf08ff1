"""Finished samples in standard containers: contract, manifest, checksums, framing, claims."""

from iobench.json_files import read_json
from iobench.stores.atomic import (
    TEMPORARY_SUFFIX,
    is_local,
    storage_errors,
    sync_directory,
    write_atomically,
)
from iobench.stores.budget import Budget
from iobench.stores.checksums import (
    CHECKSUMS_NAME,
    crc32c,
    crc32c_of_file,
    read_checksums,
    write_checksums,
)
from iobench.stores.claims import (
    JOURNAL_NAME,
    Claim,
    claim,
    find_holder,
    find_writer,
    remove_claims_of_the_dead,
    try_claim,
)
from iobench.stores.comparison import MakeSamples, verify_against
from iobench.stores.contract import (
    Converter,
    DescribedFormat,
    Extent,
    Format,
    Notice,
    ShardInfo,
    Store,
    Writer,
)
from iobench.stores.encoding import EncodedSample, Encoder, Encoding, Errors, merge_errors
from iobench.stores.example import (
    MAX_EXAMPLE_NBYTES,
    ExampleTemplate,
    Feature,
    FeatureKind,
    encode_example,
    parse_example,
)
from iobench.stores.extents import ExtentStore, ExtentTable, descriptors, open_file_size
from iobench.stores.feature_kinds import feature_kinds
from iobench.stores.fields import FieldDecoder, FieldLayout, FieldPart, RowDecoder
from iobench.stores.finishing import finish_store
from iobench.stores.folders import (
    clear_room,
    drop_uploads,
    free_nbytes,
    list_folders,
    open_room,
    remove_leftovers,
    remove_tree,
)
from iobench.stores.manifest import (
    MANIFEST_NAME,
    Manifest,
    Shard,
    ShardFile,
    canonical_json,
    read_manifest,
    write_manifest,
)
from iobench.stores.opening import open_store
from iobench.stores.places import (
    choose_place,
    kept_beside,
    list_items,
    list_places,
    make_item,
    remember_place,
    remove_item,
    user_folder,
)
from iobench.stores.plan import (
    ConversionPlan,
    fingerprint,
    modified_ns,
    plan_conversion,
    probe_samples,
    store_name,
)
from iobench.stores.remote import as_place
from iobench.stores.shard_file import ShardFileWriter
from iobench.stores.stacked import StackedSamples
from iobench.stores.tally import Tally
from iobench.stores.tfrecord import (
    FRAME_NBYTES,
    HEADER_NBYTES,
    frame_footer,
    frame_footers,
    frame_header,
    scan_frames,
)
from iobench.stores.verification import not_covered, verify_store
from iobench.stores.verify_result import Difference, SourceFiles, VerifyResult

__all__ = [
    "CHECKSUMS_NAME",
    "FRAME_NBYTES",
    "HEADER_NBYTES",
    "JOURNAL_NAME",
    "MANIFEST_NAME",
    "MAX_EXAMPLE_NBYTES",
    "TEMPORARY_SUFFIX",
    "Budget",
    "Claim",
    "ConversionPlan",
    "Converter",
    "DescribedFormat",
    "Difference",
    "EncodedSample",
    "Encoder",
    "Encoding",
    "Errors",
    "ExampleTemplate",
    "Extent",
    "ExtentStore",
    "ExtentTable",
    "Feature",
    "FeatureKind",
    "FieldDecoder",
    "FieldLayout",
    "FieldPart",
    "Format",
    "MakeSamples",
    "Manifest",
    "Notice",
    "RowDecoder",
    "Shard",
    "ShardFile",
    "ShardFileWriter",
    "ShardInfo",
    "SourceFiles",
    "StackedSamples",
    "Store",
    "Tally",
    "VerifyResult",
    "Writer",
    "as_place",
    "canonical_json",
    "choose_place",
    "claim",
    "clear_room",
    "crc32c",
    "crc32c_of_file",
    "descriptors",
    "drop_uploads",
    "encode_example",
    "feature_kinds",
    "find_holder",
    "find_writer",
    "fingerprint",
    "finish_store",
    "frame_footer",
    "frame_footers",
    "frame_header",
    "free_nbytes",
    "is_local",
    "kept_beside",
    "list_folders",
    "list_items",
    "list_places",
    "make_item",
    "merge_errors",
    "modified_ns",
    "not_covered",
    "open_file_size",
    "open_room",
    "open_store",
    "parse_example",
    "plan_conversion",
    "probe_samples",
    "read_checksums",
    "read_json",
    "read_manifest",
    "remember_place",
    "remove_claims_of_the_dead",
    "remove_item",
    "remove_leftovers",
    "remove_tree",
    "scan_frames",
    "storage_errors",
    "store_name",
    "sync_directory",
    "try_claim",
    "user_folder",
    "verify_against",
    "verify_store",
    "write_atomically",
    "write_checksums",
    "write_manifest",
]
