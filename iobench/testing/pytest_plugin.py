"""Fixtures of iobench for pytest; loaded with every pytest session, so it imports next to nothing.

Found through the entry-point group ``pytest11``; ``-p no:iobench`` leaves it out.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

UPDATE = "--iobench-update"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that rewrites files of counts."""
    parser.getgroup("iobench").addoption(
        UPDATE,
        action="store_true",
        default=False,
        help="Write what loaders do to their files of counts, instead of comparing it.",
    )


@pytest.fixture
def iobench_counts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> KeptCounts:
    """Fail a test whose loader does other than it did: more reads, more bytes, other samples.

    What is iterated over inside the ``with`` statement is recorded, and its counts are compared
    with those in a file that is committed: exactly, on any machine. ``pytest --iobench-update``
    writes the file. Loaders are seen as by `iobench.record`, and PyTorch's own as well where torch
    is imported by then.

    Examples
    --------
    ::

        def test_loader_reads_each_sample_once(iobench_counts):
            with iobench_counts("tests/counts/loader.json"):
                for batch in make_loader(seed=0):
                    pass

    Let what is counted be the same each time: a fixed seed, as many batches, files that do not
    change. The time it takes does not matter.
    """
    return KeptCounts(
        tmp_path_factory, request.config.rootpath, update=bool(request.config.getoption(UPDATE))
    )


class KeptCounts:
    """What `iobench_counts` gives a test: called with a file, a context manager.

    Parameters
    ----------
    folders : pytest.TempPathFactory
        Makes the folders that are recorded in.
    root : Path
        What relative names of files are relative to: pytest's ``rootdir``.
    update : bool
        Write the file instead of comparing.
    """

    def __init__(
        self, folders: pytest.TempPathFactory, root: Path, *, update: bool = False
    ) -> None:
        self._folders, self._root, self._update = folders, root, update

    @contextmanager
    def __call__(self, file: Path | str, *, digests: bool = False) -> Iterator[None]:
        """Count what loaders do inside, and compare it; fails the test with the differences.

        Parameters
        ----------
        file : Path or str
            Of counts; relative to pytest's ``rootdir``.
        digests : bool
            Compare the samples' own bytes as well; needs ``iobench[digest]``.
        """
        from iobench.errors import FileFormatError, IobenchError, MissingFileError
        from iobench.recording.session import record

        path = self._folders.mktemp("iobench-counts", numbered=True) / "run"
        with ExitStack() as stack:
            _see_torch(stack)
            try:
                stack.enter_context(record(path, detail="sample", digests=digests))
            except IobenchError as error:
                pytest.fail(f"iobench: {error}", pytrace=False)
            yield
        try:
            lines = self._judged(path, self._root / file)
        except IobenchError as error:
            of_file = isinstance(error, (MissingFileError, FileFormatError))
            again = f"; pytest {UPDATE} writes the file" if of_file and not self._update else ""
            lines = [f"iobench: {error}{again}"]
        if lines:
            pytest.fail("\n".join(lines), pytrace=False)

    def _judged(self, run: Path, file: Path) -> list[str]:
        """Return what is wrong, no lines if nothing is; or write the file."""
        from iobench.subjects.check.gated_runs import gate_counts, keep_counts
        from iobench.subjects.check.gates import Outcome
        from iobench.subjects.check.section import difference_lines

        if self._update:
            keep_counts(run, file, memory=False)
            return []
        lines = []
        for gate in gate_counts(run, file):
            if gate.judged[0] != Outcome.PASSED:
                found = difference_lines(gate, f"if that is meant: pytest {UPDATE}")
                lines += [f"iobench: not the counts in {file}:", *(f"  {line}" for line in found)]
        return lines


def _see_torch(stack: ExitStack) -> None:
    """Record PyTorch's own DataLoader too, for so long."""
    loading = sys.modules.get("torch.utils.data")
    if loading is None or hasattr(loading.DataLoader.__iter__, "_iobench_original"):
        return
    from iobench.torch import hooks

    hooks.install()
    stack.callback(hooks.uninstall)
