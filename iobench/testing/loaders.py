"""The contract of a loader as tests: subclass `LoaderTests`, give a loader, run pytest."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
import threading
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import psutil
import pytest

from iobench.errors import IobenchError, StoreError
from iobench.registry import find_format
from iobench.samples import SampleSpec, Variable
from iobench.testing.stores import answer_of_fork, flip_bit, random_sample, write_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.stores.contract import Store

N_SAMPLES, SIZE = 23, 4
SPEC = SampleSpec(
    (
        Variable("number", (), "i8", ()),
        Variable("field", (3, 5), "f4", ("y", "x")),
        Variable("large", (80, 81), "i2", ("y", "x"), role="target"),
    )
)
"""A scalar that numbers the sample, a small variable, one that is larger than a page."""


def double_fields(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch whose field is doubled: a transform that a process can import."""
    return {**batch, "field": batch["field"] * 2}


class LoaderTests:
    """What every loader over a store keeps. A subclass overrides `open_loader`.

    Loaders take ``batch_size``, ``shuffle``, ``seed``, ``drop_last``, ``rank``, ``world_size``,
    ``transform``, ``dtype`` and ``verify`` as `iobench.loader` does.

    Examples
    --------
    >>> class TestMine(LoaderTests):  # doctest: +SKIP
    ...     def open_loader(self, store, batch_size, **options):
    ...         return MyLoader(store, batch_size, **options)
    """

    format: ClassVar[str] = "numpy"
    format_options: ClassVar[Mapping[str, str]] = {}
    forks: ClassVar[bool] = True
    """Whether a child that was forked may iterate over the loader of its parent."""

    def open_loader(self, store: Path, batch_size: int, **options: Any) -> Any:
        """Return an iterable of batches, mappings of arrays; the subclass gives it."""
        raise NotImplementedError("override 'open_loader'")

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        """Return a store of 23 numbered samples in three shards."""
        samples = [self.sample(number) for number in range(N_SAMPLES)]
        options, fmt = dict(self.format_options), find_format(self.format)
        return write_store(
            tmp_path / "store", fmt, SPEC, samples, shard_n_samples=8, options=options
        )

    @staticmethod
    def sample(number: int) -> dict[str, NDArray[Any]]:
        """Return one sample of the store."""
        field = np.random.default_rng(number).random((3, 5), dtype="f4")
        bits = random_sample(SPEC, number)
        return {"number": np.array(number, "i8"), "field": field, "large": bits["large"]}

    def numbers(self, batches: Iterable[Any]) -> list[list[int]]:
        """Return the numbers of the samples of each batch, whose arrays are compared as well."""
        result = []
        for batch in batches:
            numbers = np.asarray(batch["number"]).tolist()
            for name in SPEC.names:
                array = np.asarray(batch[name])
                expected = np.stack([self.sample(number)[name] for number in numbers])
                assert (array.dtype, array.shape) == (expected.dtype, expected.shape), name
                assert array.tobytes() == expected.tobytes(), f"{name} is of other samples"
            result.append(numbers)
        return result

    def test_batches_in_order_are_the_samples(self, store: Store) -> None:
        expected = [[*range(first, min(first + SIZE, N_SAMPLES))] for first in range(0, 23, SIZE)]
        loader = self.open_loader(store.path, SIZE)
        assert len(loader) == len(expected)
        assert self.numbers(loader) == expected
        assert self.numbers(loader) == expected

    def test_each_epoch_has_an_order_of_its_own(self, store: Store) -> None:
        loaders = [self.open_loader(store.path, SIZE, shuffle=True, seed=s) for s in (3, 3, 4)]
        epochs = [[self.numbers(loader) for _ in range(2)] for loader in loaders]
        for epoch in itertools.chain.from_iterable(epochs):
            assert sorted(itertools.chain.from_iterable(epoch)) == [*range(N_SAMPLES)]
        assert epochs[0] == epochs[1]
        assert epochs[0][0] != epochs[0][1]
        assert epochs[0] != epochs[2]

    def test_a_short_last_batch_can_be_dropped(self, store: Store) -> None:
        loader = self.open_loader(store.path, SIZE, drop_last=True)
        assert [len(batch) for batch in self.numbers(loader)] == [SIZE] * (N_SAMPLES // SIZE)
        assert len(loader) == N_SAMPLES // SIZE

    def test_ranks_share_an_epoch(self, store: Store) -> None:
        alone = self.numbers(self.open_loader(store.path, SIZE, shuffle=True))
        ranks = [
            self.numbers(self.open_loader(store.path, SIZE, shuffle=True, rank=rank, world_size=2))
            for rank in range(2)
        ]
        together = list(itertools.chain.from_iterable(itertools.zip_longest(*ranks)))
        assert [batch for batch in together if batch is not None] == alone

    @pytest.mark.filterwarnings("ignore:.*batches are held:UserWarning")
    def test_held_batches_stay_what_they_are(self, store: Store) -> None:
        loader = self.open_loader(store.path, SIZE, shuffle=True)
        held = [*loader, *loader]
        views = [np.asarray(batch["large"])[..., ::-1] for batch in held]
        copies = copy.deepcopy(views)
        expected = self.numbers(held)
        every = sorted(itertools.chain.from_iterable(expected))
        assert every == sorted([*range(N_SAMPLES)] * 2), "a batch is written over while it is held"
        self.numbers(loader)
        assert self.numbers(held) == expected
        assert all(np.array_equal(*pair) for pair in zip(views, copies, strict=True))

    def test_a_transform_and_a_cast(self, store: Store) -> None:
        loader = self.open_loader(store.path, SIZE, transform=double_fields, dtype="float16")
        for batch in loader:
            fields = [self.sample(number)["field"] * 2 for number in np.asarray(batch["number"])]
            assert np.array_equal(np.asarray(batch["field"]), np.stack(fields).astype("f2"))
            assert np.asarray(batch["large"]).dtype == np.dtype("i2")

    @pytest.mark.timeout(60)
    def test_damage_is_raised_in_its_place(self, store: Store) -> None:
        extent = store.extents(9)[-1]
        flip_bit(extent.file, extent.offset + extent.nbytes // 2)
        iterator = iter(self.open_loader(store.path, SIZE, verify=True))
        assert self.numbers([next(iterator), next(iterator)]) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        with pytest.raises(StoreError, match=extent.file.name):
            next(iterator)
        with pytest.raises(StopIteration):
            next(iterator)

    def test_a_state_goes_on_in_the_middle_of_an_epoch(self, store: Store) -> None:
        options = {"shuffle": True, "seed": 5}
        whole = self.open_loader(store.path, SIZE, **options)
        expected = [self.numbers(whole), self.numbers(whole)]
        loader = self.open_loader(store.path, SIZE, **options)
        iterator = iter(loader)
        begun = self.numbers(itertools.islice(iterator, 2))
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        other = self.open_loader(store.path, SIZE, **options)
        other.load_state_dict(state)
        assert begun + self.numbers(other) == expected[0]
        assert self.numbers(other) == expected[1]
        with pytest.raises(IobenchError, match="seed"):
            self.open_loader(store.path, SIZE, shuffle=True, seed=6).load_state_dict(state)

    def test_a_pickled_loader_gives_the_same(self, store: Store) -> None:
        loader = self.open_loader(store.path, SIZE, shuffle=True, seed=2)
        sent = pickle.dumps(loader)
        assert len(sent) < 1 << 20
        assert self.numbers(pickle.loads(sent)) == self.numbers(loader)

    @pytest.mark.timeout(60)
    def test_a_forked_child_begins_for_itself(self, store: Store) -> None:
        loader = self.open_loader(store.path, SIZE, shuffle=True)
        expected = self.numbers(loader)

        def first_epoch() -> list[list[int]]:
            if hasattr(loader, "set_epoch"):
                loader.set_epoch(0)
            return self.numbers(loader)

        result = answer_of_fork(first_epoch)
        assert result == expected if self.forks else isinstance(result, str)

    @pytest.mark.parametrize(
        "options", [{"no_such_option": 1}, {"batch_size": 0}, {"rank": 2, "world_size": 2}], ids=str
    )
    def test_options_that_cannot_be_are_refused(
        self, store: Store, options: dict[str, Any]
    ) -> None:
        with pytest.raises((IobenchError, TypeError), match=next(iter(options))):
            self.open_loader(store.path, **{"batch_size": SIZE, **options})

    @pytest.mark.timeout(60)
    def test_a_loop_that_is_left_leaves_nothing(self, store: Store) -> None:
        for n_batches in (N_SAMPLES, 2):  # a whole epoch opens what is opened once and for all
            gc.collect()
            before = self._in_use()
            loader = self.open_loader(store.path, SIZE, shuffle=True)
            for _ in itertools.islice(loader, n_batches):
                pass
            if hasattr(loader, "close"):
                loader.close()
            del loader
            gc.collect()
            more = [after - was for after, was in zip(self._in_use(), before, strict=True)]
        assert max(more) <= 0, f"threads, processes, open files: {more} more than before"

    @staticmethod
    def _in_use() -> tuple[int, int, int]:
        this = psutil.Process()
        return threading.active_count(), len(this.children()), this.num_fds()
