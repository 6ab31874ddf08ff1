"""Adapter to zarr-python 2 and 3: gets of stores are read, codecs decode, the rest is fused.

Version 3 works in an event loop and its threads while the caller waits. So what goes on there
is gathered for the call, and laid on the caller's own time line: where something is decoded,
the call decodes; else, where a get is under way, it reads.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

from iobench.adapters import scope
from iobench.adapters.notes import READ_AND_DECODE, note_array
from iobench.adapters.scope import ELSEWHERE
from iobench.recording import activation
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from iobench.adapters.patches import Patches

SELECTIONS: Final = ("basic", "orthogonal", "coordinate", "mask", "block")
STORES: Final = ("DirectoryStore", "FSStore", "ZipStore", "LMDBStore", "SQLiteStore", "N5Store")
"""Of version 2, those that bring bytes themselves."""

Piece = tuple[int, int, int, int]


def adapt(patches: Patches, zarr: Any) -> None:
    """Time selections; inside of one, gets of stores and codecs."""
    for name in SELECTIONS:
        if f"get_{name}_selection" in vars(zarr.Array):  # by block: since 2.16
            patches.put(zarr.Array, f"get_{name}_selection", _selecting)
    if zarr.__version__.startswith("2."):
        _adapt_version_2(patches, zarr)
        return
    sharding = zarr.codecs.ShardingCodec
    patches.put(zarr.storage.StorePath, "get", lambda original: _awaited(original, Kind.READ))
    patches.put(
        zarr.abc.codec.BaseCodec,
        "decode",
        # A shard is taken apart by gets and by codecs of its own.
        lambda original: _awaited(original, Kind.DECODE, but=sharding),
    )


def _adapt_version_2(patches: Patches, zarr: Any) -> None:
    for name in STORES:
        store = getattr(zarr.storage, name, None)
        if store is not None and "__getitem__" in vars(store):
            patches.put(store, "__getitem__", lambda original: _called(original, Kind.READ))
    if "getitems" in vars(zarr.storage.FSStore):
        patches.put(zarr.storage.FSStore, "getitems", lambda original: _called(original, Kind.READ))
    # Whole chunks are decoded at their place in the answer, by the second of these alone.
    for name in ("_decode_chunk", "_process_chunk"):
        patches.put(zarr.core.Array, name, lambda original: _called(original, Kind.DECODE))


def _selecting(original: Callable[..., Any]) -> Callable[..., Any]:
    def select(*args: Any, **kwargs: Any) -> Any:
        recorder = activation._active
        span = (
            None if recorder is None else scope.begin(recorder, Kind.FUSED, READ_AND_DECODE, True)
        )
        if span is None:
            return original(*args, **kwargs)
        pieces: list[Piece] = []
        with span:
            token = ELSEWHERE.set(pieces)
            try:
                result = original(*args, **kwargs)
            finally:
                ELSEWHERE.reset(token)
                span.stop()
                for piece in laid_out(pieces):
                    span.split(*piece)
            try:
                span.detail = str(args[0].path)
                note_array(span, result, args, kwargs)
            except Exception:  # noqa: BLE001 - the call went well, whatever zarr's object may do
                span.nbytes = -1
        return result

    return select


def _awaited(
    original: Callable[..., Any], kind: int, but: type | tuple[()] = ()
) -> Callable[..., Any]:
    """Return a coroutine function that notes for the call it works for when it ran."""

    async def call(*args: Any, **kwargs: Any) -> Any:
        pieces = ELSEWHERE.get()
        recorder = activation._active
        if pieces is None or recorder is None or isinstance(args[0], but):
            return await original(*args, **kwargs)
        clock = recorder.clock
        start_ns, nbytes = clock.now_ns(), 0
        try:
            result = await original(*args, **kwargs)
            nbytes = _length(result) if kind == Kind.READ else -1
        finally:
            pieces.append((kind, start_ns, clock.now_ns(), nbytes))
        return result

    return call


def _called(original: Callable[..., Any], kind: int) -> Callable[..., Any]:
    """Return what `_awaited` does, for a function."""

    def call(*args: Any, **kwargs: Any) -> Any:
        pieces = ELSEWHERE.get()
        recorder = activation._active
        if pieces is None or recorder is None:
            return original(*args, **kwargs)
        clock = recorder.clock
        start_ns, nbytes = clock.now_ns(), 0
        try:
            result = original(*args, **kwargs)
            nbytes = _length(result) if kind == Kind.READ else -1
        finally:
            pieces.append((kind, start_ns, clock.now_ns(), nbytes))
        return result

    return call


def _length(result: Any) -> int:
    """Return the bytes of what a store brought: one object, several by name, or none."""
    if isinstance(result, dict):
        return _sum([_length(part) for part in result.values()])
    nbytes = getattr(result, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    try:
        return 0 if result is None else len(result)
    except TypeError:
        return -1


def _sum(counts: list[int]) -> int:
    """Return a sum; -1 if a part of it is unknown."""
    return -1 if min(counts, default=0) < 0 else sum(counts)


def laid_out(pieces: Iterable[Piece]) -> list[Piece]:
    """Return pieces that may overlap, of kinds READ and DECODE, laid on one time line."""
    pieces = list(pieces)
    changes = sorted(
        change for kind, start, end, _ in pieces for change in ((start, kind, 1), (end, kind, -1))
    )
    active = {int(Kind.DECODE): 0, int(Kind.READ): 0}  # decoding counts before reading
    intervals: list[list[int]] = []
    since_ns = 0
    for now_ns, changed, difference in changes:
        running = next((kind for kind, n in active.items() if n), None)
        if running is not None and now_ns > since_ns:
            if intervals and intervals[-1][:3:2] == [running, since_ns]:
                intervals[-1][2] = now_ns
            else:
                intervals.append([running, since_ns, now_ns, -1])
        active[changed] += difference
        since_ns = now_ns
    reads = [each for each in intervals if each[0] == Kind.READ]
    for each in reads:
        each[3] = 0
    ends = [each[2] for each in reads]
    for kind, _, end, nbytes in pieces:
        if kind == Kind.READ and reads:
            interval = reads[min(bisect_left(ends, end), len(reads) - 1)]
            interval[3] = _sum([interval[3], nbytes])
    return [(kind, start, end, nbytes) for kind, start, end, nbytes in intervals]
