"""Every way to damage a span file or a JSON document."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.recording import span_file as layout
from iobench.recording.span_file import SPAN_DTYPE

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

RECORD = layout.RECORD_NBYTES


def _put(data: bytearray, offset: int, new: bytes) -> None:
    data[offset : offset + len(new)] = new


HUGE = (2**31 - 1, 2**31, 2**40, 2**53, 2**62, 2**63 - 1, -1, -2, -(2**31), -(2**63))


def _records(data: bytearray) -> list[int]:
    """Return where the records are that hold spans or texts; the first one if none does."""
    rows = len(data) // RECORD
    used = np.frombuffer(data, np.uint8, rows * RECORD).reshape(-1, RECORD).any(axis=1)
    starts = np.flatnonzero(used) * RECORD
    inside = (starts - layout.HEADER_NBYTES) % layout.CHUNK_NBYTES != 0
    found: list[int] = starts[inside & (starts > layout.HEADER_NBYTES)].tolist()
    return found or [0]


def _used(data: bytearray, random: Random) -> int:
    """Return a place where something is written: mostly in a record, else in a head."""
    if random.random() < 0.7:
        return random.choice(_records(data)) + random.randrange(RECORD)
    place = random.choice(
        (0, *range(layout.HEADER_NBYTES, len(data) - RECORD, layout.CHUNK_NBYTES))
    )
    return place + random.randrange(600 if not place else RECORD)


def _absurd(random: Random) -> bytes:
    value = random.choice((*HUGE, None))
    return random.randbytes(8) if value is None else value.to_bytes(8, "little", signed=True)


def flip(data: bytearray, random: Random) -> None:
    for _ in range(random.choice((1, 1, 2, 8, 100))):
        data[_used(data, random)] ^= 1 << random.randrange(8)


def cut(data: bytearray, random: Random) -> None:
    del data[random.choice((random.randrange(len(data)), _used(data, random))) :]


def zero(data: bytearray, random: Random) -> None:
    low = _used(data, random)
    high = min(low + random.choice((1, 8, RECORD, 300, 5000, 70_000)), len(data))
    data[low:high] = bytes(high - low)


def noise(data: bytearray, random: Random) -> None:
    low = _used(data, random)
    high = min(low + random.choice((1, 8, RECORD, 5000)), len(data))
    data[low:high] = random.randbytes(high - low)


def swap(data: bytearray, random: Random) -> None:
    """Swap two records; now and then with the sequence numbers that hide it."""
    for _ in range(random.choice((1, 3, 20))):
        places = [random.choice(_records(data)) for _ in range(2)]
        length = random.choice((RECORD, RECORD - 4))
        rows = [bytes(data[place : place + length]) for place in places]
        for place, row in zip(places, rows[::-1], strict=True):
            data[place : place + length] = row


def repeat(data: bytearray, random: Random) -> None:
    """Write one record over others, with the sequence numbers that hide it."""
    row = random.choice(_records(data))
    for _ in range(random.choice((1, 5))):
        place = random.choice(_records(data))
        data[place : place + RECORD - 4] = data[row : row + RECORD - 4]


def misfit(data: bytearray, random: Random) -> None:
    """Give one field of some records a value that it cannot have."""
    names = random.sample(SPAN_DTYPE.names, k=random.choice((1, 2)))
    for place in random.choices(_records(data), k=random.choice((1, 1, 5, 40))):
        for name in names:
            dtype, offset = SPAN_DTYPE.fields[name][:2]
            _put(data, place + offset, _absurd(random)[: dtype.itemsize])


def move(data: bytearray, random: Random) -> None:
    """Move spans in time, some before themselves."""
    by = random.choice((1, 100, 10**6, 10**12, 2**50, 2**61)) * random.choice((1, -1))
    for place in random.choices(_records(data), k=random.choice((1, 3, 50))):
        for offset in random.choice(((0,), (8,), (0, 8))):
            was = int.from_bytes(data[place + offset :][:8], "little", signed=True)
            now = max(min(was + by, 2**63 - 1), -(2**63))
            _put(data, place + offset, now.to_bytes(8, "little", signed=True))


def misname(data: bytearray, random: Random) -> None:
    """Change the header's fields; mostly with the checksum that makes them believed."""
    field = random.choice((8, 16, 24, 32, 40, 48, 56, 64, 96, 352, 512, 520, 528, 536, 544))
    small = random.randrange(4).to_bytes(8, "little")
    _put(data, field, random.choice((_absurd(random), small)))
    if random.random() < 0.8:
        crc = zlib.crc32(data[: layout.IDENTITY.size])
        layout.IDENTITY_CRC.pack_into(data, layout.IDENTITY_CRC_OFFSET, crc)


DAMAGES: tuple[Callable[[bytearray, Random], None], ...] = (
    flip, cut, zero, noise, swap, repeat, misfit, move, misname,
)  # fmt: skip


ODD = (None, True, -1, 0, 3, 10**30, 1.5, float("nan"), "two", "", [], ["a"], [[]], {}, {"a": "b"})


def distort(document: Any, random: Random) -> Any:
    """Return a JSON document one of whose values, keys included, is another."""
    if isinstance(document, dict) and document and random.random() < 0.9:
        key = random.choice(sorted(document))
        changed = {**document}
        if random.random() < 0.1:
            del changed[key]
        else:
            changed[key] = distort(document[key], random)
        return changed
    if isinstance(document, list) and document and random.random() < 0.7:
        place = random.randrange(len(document))
        return [distort(each, random) if i == place else each for i, each in enumerate(document)]
    return random.choice(ODD)
