"""Which samples make up which batch of which epoch: computed, never stored.

A pass in random order is a permutation that depends on seed and epoch alone, and any part of it can
be computed by itself. So the order does not depend on threads, memory does not grow with the number
of samples, and a run that stopped in the middle goes on with the same batches.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.errors import OptionError
from iobench.loaders.contract import PlannedBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

SORTED_LIMIT: Final = 1 << 16
"""Up to here sorting random keys takes milliseconds, and is uniform for the smallest sizes too."""
N_ROUNDS: Final = 8
MIXED_BLOCKS: Final = 32
BLOCK: Final = 4096
"""Places computed at once: single ones would cost a thousand times their share."""
MOST_PLANNED: Final = 1 << 17
"""Of longer passes the order is told in parts: the loop waits for its telling, 1 us a sample."""
_FACTORS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64 bits that depend on all bits of each value.

    The finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
    Generators, OOPSLA 2014).
    """
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
        values = (values ^ (values >> shift)) * factor
    return values ^ (values >> _SHIFTS[2])


def _keys(seed: int | str, epoch: int, count: int) -> NDArray[np.uint64]:
    """Return numbers that seed and epoch decide, the same for all versions of all libraries."""
    text = f"iobench order {seed} {epoch}".encode()
    digest = hashlib.shake_256(text).digest(8 * count)
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def drawn_below(
    counts: Sequence[int], samples: NDArray[np.int64], *, seed: int | str, epoch: int
) -> NDArray[np.int64]:
    """Return for each sample a random number below each count: (samples, counts).

    It depends on seed, epoch and sample alone, so that any part of an epoch can be drawn by itself;
    each number is as likely as any other, to one in 2**32 of it.
    """
    keys = _keys(f"{seed} drawn", epoch, 2 * len(counts)).reshape(-1, 2)
    drawn = np.empty((len(samples), len(counts)), dtype=np.int64)
    for column, (count, (start, step)) in enumerate(zip(counts, keys, strict=True)):
        bits = _mixed(_mixed(samples.astype(np.uint64) * (step | np.uint64(1))) + start)
        drawn[:, column] = ((bits >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32)
    return drawn


class Permutation:
    """A random order of ``n`` things, of which any part is computed when it is asked for.

    Up to 65,536 things random keys are sorted. Beyond that a Feistel network permutes the smallest
    power of two that holds them, and values beyond ``n`` are permuted again until they are within
    (Black and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002): no memory, however
    many there are.
    """

    def __init__(self, n: int, *, seed: int | str, epoch: int) -> None:
        self.n = n
        self._sorted: NDArray[np.int64] | None = None
        if n <= SORTED_LIMIT:
            start, step = _keys(seed, epoch, 2)
            places = np.arange(n, dtype=np.uint64)
            keys = _mixed(_mixed(places * (step | np.uint64(1))) + start)
            self._sorted = np.argsort(keys, kind="stable").astype(np.int64)
            return
        n_bits = (n - 1).bit_length()
        self._bits = (n_bits - n_bits // 2, n_bits // 2)
        self._keys = _keys(seed, epoch, N_ROUNDS)

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which things come at these places, each from 0 to ``n`` - 1."""
        if self._sorted is not None:
            things: NDArray[np.int64] = self._sorted[places]
            return things
        values = self._encrypted(places.astype(np.uint64))
        outside = np.flatnonzero(values >= self.n)
        while outside.size:
            values[outside] = self._encrypted(values[outside])
            outside = outside[values[outside] >= self.n]
        return values.astype(np.int64)

    def place_of(self, thing: int) -> int:
        """Return at which place a thing comes: the inverse of `at`."""
        if self._sorted is not None:
            return int(np.flatnonzero(self._sorted == thing)[0])
        place = self._decrypted(thing)
        while place >= self.n:
            place = self._decrypted(place)
        return place

    def _decrypted(self, value: int) -> int:
        left_bits, right_bits = self._bits
        left, right = value >> right_bits, value & ((1 << right_bits) - 1)
        for key in self._keys[::-1]:
            left_bits, right_bits = right_bits, left_bits
            mixed = int(_mixed(np.array([left], dtype=np.uint64) + key)[0])
            left, right = right ^ (mixed & ((1 << left_bits) - 1)), left
        return left << right_bits | right

    def _encrypted(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left_bits, right_bits = self._bits
        left = values >> np.uint64(right_bits)
        right = values & np.uint64((1 << right_bits) - 1)
        for key in self._keys:  # an even number of rounds: the halves end as wide as they began
            mask = np.uint64((1 << left_bits) - 1)
            left, right = right, left ^ (_mixed(right + key) & mask)
            left_bits, right_bits = right_bits, left_bits
        return (left << np.uint64(right_bits)) | right


class BlockPermutation:
    """A random order whose neighbours in time are neighbours in the store, for slow storage.

    The store is cut into blocks of consecutive samples; blocks come in random order, and samples
    in random order within `MIXED_BLOCKS` blocks. So storage is read a block at a time, once, and
    a batch has samples of about as many places as blocks are mixed.
    """

    def __init__(self, n: int, block: int, *, seed: int, epoch: int) -> None:
        self._n = n
        self._block = block
        self._seed, self._epoch = seed, epoch
        self._n_blocks = -(-n // block)
        self._blocks = Permutation(self._n_blocks, seed=seed, epoch=epoch)
        self._missing = self._n_blocks * block - n  # samples of the last block of the store,
        self._short = self._blocks.place_of(self._n_blocks - 1)  # and where it comes
        self._inner: tuple[int, NDArray[np.int64]] | None = None

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which samples come at these places, each from 0 to ``n`` - 1."""
        group = self._number_of(places) // MIXED_BLOCKS
        mixed = np.empty(len(places), dtype=np.int64)
        for number in np.unique(group).tolist():
            inside = group == number
            mixed[inside] = self._mixed_in(number, places[inside])
        number = self._number_of(mixed)
        things: NDArray[np.int64] = (
            self._blocks.at(number) * self._block + mixed - self._begin_of(number)
        )
        return things

    def _begin_of(self, number: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the place of the first sample of blocks, by the order in which these come."""
        begin: NDArray[np.int64] = number * self._block - self._missing * (number > self._short)
        return begin

    def _number_of(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which block, in the order in which they come, each place is in."""
        beyond = places >= (self._short + 1) * self._block - self._missing
        number: NDArray[np.int64] = (places + self._missing * beyond) // self._block
        return number

    def _mixed_in(self, group: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where the samples of places come from, within the blocks that are mixed."""
        low = group * MIXED_BLOCKS
        high = min(low + MIXED_BLOCKS, self._n_blocks)
        begin, end = self._begin_of(np.array([low, high])).tolist()
        inner = self._inner
        if inner is None or inner[0] != group:
            # Epochs of groups are numbered apart from those of the blocks.
            seed = f"{self._seed} group {group}"
            order = Permutation(end - begin, seed=seed, epoch=self._epoch)
            inner = self._inner = group, order.at(np.arange(end - begin))
        mixed: NDArray[np.int64] = begin + inner[1][places - begin]
        return mixed


class BatchOrder:
    """The batches of every epoch, of one rank of several.

    The order of samples is cut into batches for all ranks together; rank ``r`` of ``world_size``
    takes batches ``r``, ``r + world_size``, and so on. All ranks get the same number: with
    ``drop_last`` what does not go round is left out; without, the last round is filled up with
    the first batches of the epoch, so that every sample comes at least once.
    """

    def __init__(
        self,
        n_samples: int,
        batch_size: int,
        *,
        shuffle: bool | str = False,
        seed: int = 0,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch_size < 1:
            raise OptionError(f"batch_size={batch_size}: expected 1 or more")
        if not 0 <= rank < world_size:
            raise OptionError(f"rank={rank}, world_size={world_size}: expected 0 <= rank < world")
        if n_samples < 1:
            raise OptionError("there are no samples to load")
        self.n_samples = n_samples
        self.batch_size = batch_size
        self.shuffle = shuffle
        self._shuffled_block = min(block_of(shuffle), n_samples)
        self.seed = seed
        self.drop_last = drop_last
        self.rank = rank
        self.world_size = world_size
        self._n_all = n_samples // batch_size if drop_last else -(-n_samples // batch_size)
        self._n_rounds = self._n_all // world_size if drop_last else -(-self._n_all // world_size)
        if not self._n_rounds:
            raise OptionError(
                f"drop_last leaves no batch: {n_samples} samples, batch_size={batch_size}, "
                f"world_size={world_size}"
            )

    def __len__(self) -> int:
        """Batches of one epoch, for this rank."""
        return self._n_rounds

    def samples(self, epoch: int, batch: int) -> NDArray[np.int64]:
        """Return the sample numbers of this rank's batch number ``batch`` of an epoch."""
        if not 0 <= batch < self._n_rounds:
            raise IndexError(f"batch {batch} of {self._n_rounds}")
        overall = (batch * self.world_size + self.rank) % self._n_all
        first = overall * self.batch_size
        end = min(first + self.batch_size, self.n_samples)
        if not self.shuffle:
            return np.arange(first, end)
        parts = []
        for number in range(first // BLOCK, (end - 1) // BLOCK + 1):
            begin = number * BLOCK
            places = _places(self.n_samples, self._shuffled_block, self.seed, epoch, number)
            parts.append(places[max(first - begin, 0) : end - begin])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def batches(
        self,
        epoch: int,
        first: int = 0,
        expect: Callable[..., object] | None = None,
        pending: Sequence[int] = (),
    ) -> Iterator[NDArray[np.int64]]:
        """Yield the samples of the batches of an epoch, which ``expect`` is given before.

        Those ``pending`` of the batches before ``first`` take the place of as many that came then.
        """

        def samples(place: int) -> NDArray[np.int64]:
            begin = (place - first) * self.batch_size
            following = self.samples(epoch, place)
            before = np.array(pending[begin : begin + len(following)], dtype=np.int64)
            return np.concatenate([before, following[len(before) :]]) if len(before) else following

        n_planned = max(1, MOST_PLANNED // self.batch_size)
        for place in range(first, len(self)):
            if expect is not None and (place - first) % n_planned == 0:
                places = range(place, min(place + n_planned, len(self)))
                expect(np.concatenate([*map(samples, places)]), follows=place > first)
            yield samples(place)

    @property
    def quality(self) -> str:
        """How random the order is, beside one over all samples; one line."""
        n, block, size = self.n_samples, self._shuffled_block, self.batch_size
        if not self.shuffle:
            return "as stored: no shuffle"
        if not block:
            return f"global permutation of {n} samples"
        mixed = min(MIXED_BLOCKS * block, n)
        return (
            f"blocks of {block}, {MIXED_BLOCKS} mixed: the {size} samples of a batch are drawn "
            f"from {mixed} of {n}"
        )


@functools.lru_cache(maxsize=8)  # several iterations at once
def _places(n: int, block: int, seed: int, epoch: int, number: int) -> NDArray[np.int64]:
    """Return the samples at the places of one `BLOCK`."""
    return _permutation(n, block, seed, epoch).at(
        np.arange(number * BLOCK, min((number + 1) * BLOCK, n))
    )


@functools.lru_cache(maxsize=8)
def _permutation(n: int, block: int, seed: int, epoch: int) -> Permutation | BlockPermutation:
    if block:
        return BlockPermutation(n, block, seed=seed, epoch=epoch)
    return Permutation(n, seed=seed, epoch=epoch)


def block_of(shuffle: bool | str) -> int:
    """Return the samples of a block, 0 for an order over all."""
    if isinstance(shuffle, bool):
        return 0
    name, _, number = str(shuffle).partition(":")
    if name != "blocks" or not number.isdecimal() or int(number) < 1:
        raise OptionError(f"shuffle={shuffle!r}: expected True, False or 'blocks:N'")
    return int(number)


# -- of a measured run: without end ---


def plan_batches(
    n_samples: int,
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    drawn: Callable[[NDArray[np.int64]], object] | None = None,
    taken: NDArray[np.int64] | None = None,
) -> Iterator[PlannedBatch]:
    """Yield batches without end: each epoch visits every sample once, in a new order.

    A batch may span two epochs when ``batch_size`` does not divide ``n_samples``, so that all
    batches have one size; it then counts to the epoch its first sample is of. ``drawn`` is told the
    order of each epoch before its first batch, `MOST_PLANNED` samples at a time. ``taken`` says
    what the samples are called, where they are some of many.
    """
    order = BatchOrder(n_samples, BLOCK, shuffle=shuffle, seed=seed)

    def named(samples: NDArray[np.int64]) -> NDArray[np.int64]:
        return samples if taken is None else taken[samples]

    def expect(samples: NDArray[np.int64], *, follows: bool) -> None:
        if drawn is not None:
            drawn(named(samples))

    def batches() -> Iterator[PlannedBatch]:
        number = begun = 0
        left = np.empty(0, dtype=np.int64)
        for epoch in itertools.count():
            for samples in order.batches(epoch, expect=None if drawn is None else expect):
                begun = begun if len(left) else epoch
                left = np.concatenate([left, named(samples)])
                while len(left) >= batch_size:
                    yield PlannedBatch(number, begun, tuple(left[:batch_size].tolist()))
                    number, begun, left = number + 1, epoch, left[batch_size:]

    return batches()


class BatchPlan:
    """Hands out an endless plan round by round, until a limit of batches or its end."""

    def __init__(
        self,
        batches: Iterator[PlannedBatch],
        *,
        limit: int | None,
        before_epoch: Callable[[], None] | None = None,
    ) -> None:
        self._batches = batches
        self._left = limit
        self._before_epoch = before_epoch
        self._epoch = -1
        self._pending: PlannedBatch | None = None
        self._ended = False

    @property
    def finished(self) -> bool:
        """Whether no further batch will be handed out."""
        return self._ended or self._left == 0

    def end(self) -> None:
        """Hand out no further batch."""
        self._ended = True

    def start_round(self) -> None:
        """Do what comes before an epoch, if the next round begins one."""
        if self._before_epoch is None or self.finished:
            return
        self._pending = self._pending or next(self._batches)
        if self._pending.epoch != self._epoch:
            self._epoch = self._pending.epoch
            self._before_epoch()

    def take(self, n_batches: int | None) -> Iterator[PlannedBatch]:
        """Yield the next ``n_batches`` (all that are left for None), fewer at the end."""
        taken = 0
        while not self.finished and (n_batches is None or taken < n_batches):
            planned = self._pending or next(self._batches)
            self._pending = None
            if self._before_epoch is not None and planned.epoch != self._epoch:
                self._pending = planned
                return
            if self._left is not None:
                self._left -= 1
            taken += 1
            yield planned
