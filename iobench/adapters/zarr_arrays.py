"""Adapter to zarr-python 2 and 3: gets of stores are read, codecs decode, the rest is fused.

Version 3 works in an event loop and its threads while the caller waits. So what goes on there
is gathered for the call, and laid on the caller's own time line: where something is decoded,
the call decodes; else, where a get is under way, it reads.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from iobench.adapters import scope
from iobench.adapters.chunk_counts import ChunkCounter
from iobench.adapters.notes import READ_AND_DECODE, argument, note_bytes
from iobench.adapters.scope import ELSEWHERE
from iobench.recording import activation
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from iobench.adapters.patches import Patches
    from iobench.recording.outside import OutsideSpan

SELECTIONS: Final = ("basic", "orthogonal", "coordinate", "mask", "block")
COUNTED: Final = ("get_basic_selection", "get_orthogonal_selection")
"""Of these, selections by an index for each dimension."""
STORES: Final = ("DirectoryStore", "FSStore", "ZipStore")
"""Of version 2, those that bring bytes themselves."""

Piece = tuple[int, int, int, int]


def adapt(patches: Patches, zarr: Any) -> None:
    """Time selections; inside of one, gets of stores and codecs."""
    for name in SELECTIONS:
        patches.put(zarr.Array, f"get_{name}_selection", _selecting)
    if zarr.__version__.startswith("2."):
        _adapt_version_2(patches, zarr)
        return
    patches.put(zarr.storage.StorePath, "get", _awaited(Kind.READ))
    # A shard is taken apart by gets and by codecs of its own.
    decode = _awaited(Kind.DECODE, but=zarr.codecs.ShardingCodec)
    patches.put(zarr.abc.codec.BaseCodec, "decode", decode)


def _adapt_version_2(patches: Patches, zarr: Any) -> None:
    for name in STORES:
        patches.put(getattr(zarr.storage, name), "__getitem__", _called(Kind.READ))
    patches.put(zarr.storage.FSStore, "getitems", _called(Kind.READ))
    # Whole chunks are decoded at their place in the answer, by the second of these alone.
    for name in ("_decode_chunk", "_process_chunk"):
        patches.put(zarr.core.Array, name, _called(Kind.DECODE))


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
                note_bytes(span, result, args, kwargs)
                if original.__name__ in COUNTED:
                    _note_chunks(span, args[0], argument(args, kwargs, 1, "selection"))
            except Exception:  # noqa: BLE001 - the call went well, whatever zarr's object may do
                span.nbytes = -1
        return result

    return select


def _note_chunks(span: OutsideSpan, array: Any, selection: Any) -> None:
    """Note the chunks that were decoded for a selection: none stays decoded."""
    names = getattr(getattr(array, "metadata", None), "dimension_names", None)
    store = array.store
    name = f"{getattr(store, 'root', getattr(store, 'path', ''))}:{span.detail}"
    dims = names or [f"dim_{number}" for number in range(len(array.shape))]
    ChunkCounter(array, array.chunks, 0, name).note(span, selection, dims)


@contextmanager
def _noted(kind: int) -> Iterator[list[Any]]:
    """Note for the call that is worked for when this ran; yield a list for what it brings."""
    pieces, recorder = ELSEWHERE.get(), activation._active
    brought: list[Any] = []
    if pieces is None or recorder is None:
        yield brought
        return
    start_ns = recorder.clock.now_ns()
    try:
        yield brought
    finally:
        nbytes = sum(map(_length, brought)) if kind == Kind.READ else -1
        pieces.append((kind, start_ns, recorder.clock.now_ns(), nbytes))


def _awaited(kind: int, but: type | tuple[()] = ()) -> Callable[..., Any]:
    """Return what makes a coroutine function note when it ran; one of ``but`` notes nothing."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            if isinstance(args[0], but):
                return await original(*args, **kwargs)
            with _noted(kind) as brought:
                brought.append(await original(*args, **kwargs))
            return brought[0]

        return call

    return make


def _called(kind: int) -> Callable[..., Any]:
    """Return what makes a function note when it ran."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with _noted(kind) as brought:
                brought.append(original(*args, **kwargs))
            return brought[0]

        return call

    return make


def _length(result: Any) -> int:
    """Return the bytes of what a store brought: one object, several by name, or none."""
    if isinstance(result, dict):
        return sum(map(_length, result.values()))
    return 0 if result is None else len(result)


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
            interval[3] += nbytes
    return [(kind, start, end, nbytes) for kind, start, end, nbytes in intervals]
