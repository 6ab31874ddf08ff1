"""Stores that are objects elsewhere (``s3://bucket/prefix``); see `StoreAddress` and `staging`."""

from iobench.stores.remote.addresses import StoreAddress, as_place
from iobench.stores.remote.objects import Objects, ObjectStat, objects_at
from iobench.stores.remote.reading import fill_ranges, read_ranges
from iobench.stores.remote.staging import RemoteFile, clear_room, open_room, remove_below

__all__ = [
    "ObjectStat",
    "Objects",
    "RemoteFile",
    "StoreAddress",
    "as_place",
    "clear_room",
    "fill_ranges",
    "objects_at",
    "open_room",
    "read_ranges",
    "remove_below",
]
