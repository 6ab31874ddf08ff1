"""The contract of stand-ins as tests: subclass `StandInTests`, give the dataset, run pytest."""

from __future__ import annotations

import multiprocessing
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iobench.datasets.contract import make_sample
from iobench.datasets.locate import FileLocator, write_stand_in
from iobench.errors import IobenchError

if TYPE_CHECKING:
    from pathlib import Path


class StandInTests:
    """What the stand-in of every dataset keeps. A subclass overrides the fixture ``dataset``.

    Examples
    --------
    >>> class TestMine(StandInTests):  # doctest: +SKIP
    ...     @pytest.fixture
    ...     def dataset(self):
    ...         return MyDataset()
    """

    @pytest.fixture
    def dataset(self) -> Any:
        """Return the dataset, a `iobench.datasets.Synthesizer`; the subclass gives it."""
        raise NotImplementedError("override the fixture 'dataset'")

    @pytest.fixture
    def root(self, dataset: Any, tmp_path: Path) -> Path:
        """Return the folder of its tiny stand-in of seed 0, which no test changes."""
        _synthesize(dataset, tmp_path / "root", seed=0)
        return tmp_path / "root"

    def test_a_larger_share_has_no_fewer_files(self, dataset: Any) -> None:
        shares = (1e-6, 0.01, 0.02)
        files = [len(dataset.stand_in_files(scale=s, tiny=False, seed=0)) for s in shares]
        assert 0 < files[0] <= files[1] <= files[2]

    @pytest.mark.timeout(120)
    def test_the_seed_alone_decides_the_bytes(
        self, dataset: Any, root: Path, tmp_path: Path
    ) -> None:
        process = multiprocessing.get_context("spawn").Process(
            target=_synthesize, args=(dataset, tmp_path / "again", 0)
        )
        process.start()
        _synthesize(dataset, tmp_path / "other", seed=1)
        process.join(100)
        assert process.exitcode == 0
        first, again, other = (
            _contents(folder) for folder in (root, tmp_path / "again", tmp_path / "other")
        )
        assert list(first) == list(again) == list(other)
        assert [name for name in first if first[name] != again[name]] == [], "the same seed differs"
        assert first != other, "another seed gives the same bytes"

    def test_samples_are_numbers(self, dataset: Any, root: Path, tmp_path: Path) -> None:
        locator = FileLocator(stand_in=root, cache_dir=tmp_path / "cache")
        index = dataset.samples(dataset.files(locator), locator)
        assert len(index) > 0
        for number in sorted({0, len(index) // 2, len(index) - 1}):
            for name, array in make_sample(dataset, index.where[number]).items():
                is_finite = np.issubdtype(array.dtype, np.integer) or np.isfinite(array).all()
                assert is_finite, f"sample {number}: {name} is not finite"

    def test_files_that_are_gone_are_named(self, dataset: Any, root: Path, tmp_path: Path) -> None:
        copy = tmp_path / "copy"
        shutil.copytree(root, copy)
        for name in _contents(root):
            (copy / name).unlink()
        locator = FileLocator(stand_in=copy, cache_dir=tmp_path / "cache")
        with pytest.raises(IobenchError, match="://"):
            dataset.samples(dataset.files(locator), locator)


def _synthesize(dataset: Any, root: Path, seed: int) -> None:
    root.mkdir()
    write_stand_in(root, dataset.stand_in_files(scale=None, tiny=True, seed=seed))


def _contents(root: Path) -> dict[str, bytes]:
    """Return the bytes of the files below a folder, but for its own marks."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.name.startswith((".", "stand-in."))
    }
