"""Adapter to h5py: files opened, data read; with filters, reading and decoding are one call."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from iobench.adapters.notes import file_name
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from iobench.adapters.patches import Patches
    from iobench.recording.outside import OutsideSpan

KNOWN: Final = "_iobench_source"
"""What a dataset object is found to be, kept with it."""


def adapt(patches: Patches, h5py: Any) -> None:
    """Time ``File``, ``Dataset[...]``, ``read_direct`` and what goes through them."""
    name_of_file, name_of_object = h5py.h5f.get_name, h5py.h5i.get_name
    virtual = h5py.h5d.VIRTUAL
    opened = h5py._objects.ObjectID

    def opens_to_read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        name = args[1] if len(args) > 1 else kwargs["name"]
        mode = args[2] if len(args) > 2 else kwargs.get("mode", "r")
        # ``dataset.file`` makes one of a file that is open already.
        return mode in {None, "r", "r+"} and not isinstance(name, opened)

    def note_open(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        span.detail = file_name(args[1] if len(args) > 1 else kwargs.get("name"))

    def find_source(dataset: Any) -> tuple[str, bool]:
        """Return file and name of a dataset, and whether what is stored has to be decoded."""
        known: tuple[str, bool] | None = vars(dataset).get(KNOWN)
        if known is None:
            held = dataset.id
            layout = held.get_create_plist()
            known = (
                os.fsdecode(name_of_file(held) + b":" + (name_of_object(held) or b"")),
                # The sources of a virtual dataset may have filters.
                bool(layout.get_nfilters()) or layout.get_layout() == virtual,
            )
            vars(dataset)[KNOWN] = known  # asking costs as much as a small read
        return known

    def note_source(span: OutsideSpan, dataset: Any) -> None:
        span.detail, is_decoded = find_source(dataset)
        if is_decoded:
            span.kind, span.label = Kind.FUSED, "read+decode"

    def note_item(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        span.nbytes = len(result) if isinstance(result, bytes) else int(result.nbytes)
        note_source(span, args[0])

    def note_direct(span: OutsideSpan, result: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        target = args[1] if len(args) > 1 else kwargs["dest"]
        selected = args[3] if len(args) > 3 else kwargs.get("dest_sel")
        if selected is None:
            span.nbytes = int(target.nbytes)
        note_source(span, args[0])

    patches.time(h5py.File, "__init__", Kind.OPEN, only_if=opens_to_read, note=note_open)
    # CPU time tells a read that waited from one that computed, also where filters were applied.
    for name, note in (
        ("__getitem__", note_item),
        ("read_direct", note_direct),
        ("__array__", note_item),
    ):
        patches.time(h5py.Dataset, name, Kind.READ, with_cpu=True, note=note)
