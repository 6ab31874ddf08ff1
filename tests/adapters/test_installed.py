"""Installing and uninstalling: what is replaced looks as before, and comes back as it was."""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import inspect
import io
import os
import pickle
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from iobench.adapters import TimedCall
from iobench.adapters import installed as state
from iobench.adapters.hook import ImportHook
from iobench.adapters.installed import install, uninstall, unseen
from iobench.adapters.patches import Patches, timed
from iobench.recording.kinds import Kind

PATCHED = (
    (builtins, "open"), (io, "open"), (os, "open"), (os, "read"), (os, "pread"), (os, "preadv"),
    (np, "load"), (np, "fromfile"), (np, "loadtxt"), (np.memmap, "__new__"),
    (np.lib.npyio.NpzFile, "__getitem__"),
)  # fmt: skip
FUNCTIONS = [(owner, name) for owner, name in PATCHED if isinstance(owner, ModuleType)]


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    uninstall()
    yield
    uninstall()


def timed_read(original: Any) -> Any:
    return timed(original, TimedCall("read", Kind.READ))


def held() -> list[object]:
    return [vars(owner)[name] for owner, name in PATCHED]


def test_uninstalling_brings_back_the_very_objects() -> None:
    before, finders = held(), list(sys.meta_path)
    modules = [getattr(value, "__module__", None) for value in before]
    for _ in range(2):
        install()
        assert all(now is not then for now, then in zip(held(), before, strict=True))
        uninstall()
        assert all(now is then for now, then in zip(held(), before, strict=True))
        assert [getattr(value, "__module__", None) for value in before] == modules
        assert sys.meta_path == finders
    uninstall()


def test_installing_again_changes_nothing() -> None:
    install()
    first = held()
    install()
    assert all(now is then for now, then in zip(held(), first, strict=True))
    assert sys.meta_path.count(state._hook) == 1


@pytest.mark.parametrize(("owner", "name"), FUNCTIONS, ids=str)
def test_a_timed_function_looks_like_the_one_it_stands_for(owner: Any, name: str) -> None:
    original = getattr(owner, name)
    signature, documented = inspect.signature(original), original.__doc__
    install()
    ours = getattr(owner, name)
    assert ours.__wrapped__ is original
    assert inspect.signature(ours) == signature
    assert (ours.__doc__, ours.__name__) == (documented, name)


@pytest.mark.parametrize(("owner", "name"), FUNCTIONS, ids=str)
def test_both_functions_can_be_pickled_by_reference(owner: Any, name: str) -> None:
    original = getattr(owner, name)
    install()
    ours = getattr(owner, name)
    pickled = pickle.dumps(ours), pickle.dumps(original)
    assert pickle.loads(pickled[0]) is ours
    assert pickle.loads(pickled[1]) is original
    assert all(b"iobench" not in data for data in pickled)
    uninstall()
    assert [pickle.loads(data) for data in pickled] == [original, original]


def test_a_function_kept_from_before_times_nothing_after(watch: Any, tmp_path: Path) -> None:
    install(where="everywhere")
    kept_load, kept_open = np.load, open
    uninstall()
    np.save(tmp_path / "a.npy", np.arange(4))

    def work() -> None:
        kept_load(tmp_path / "a.npy")
        kept_open(tmp_path / "a.npy", "rb").close()

    watch(work)
    assert watch.spans == []


def test_what_somebody_else_replaced_stays_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    install()
    ours = np.load

    def theirs(*args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs)

    monkeypatch.setattr(np, "load", theirs)
    uninstall()
    assert np.load is theirs


def test_classes_stay_the_classes_they_are(tmp_path: Path) -> None:
    kept = np.memmap
    install()
    assert np.memmap is kept
    mapped = np.memmap(tmp_path / "m", dtype="u1", mode="w+", shape=(4,))
    assert type(mapped) is np.memmap


def test_a_library_that_is_not_as_we_know_it_goes_on_and_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(np, "fromfile")
    load = np.load
    install()
    assert unseen() == {"numpy": "AttributeError: numpy has no fromfile of its own"}
    assert np.load is not load  # what fits is timed
    uninstall()
    assert unseen() == {}
    assert np.load is load


def test_only_functions_of_its_own_are_replaced() -> None:
    class Base:
        def read(self) -> int:
            return 1

    class Derived(Base):
        limit = 3

    patches = Patches()
    with pytest.raises(AttributeError, match="Derived has no read of its own"):
        patches.put(Derived, "read", timed_read)
    with pytest.raises(TypeError, match=r"Derived\.limit cannot be called"):
        patches.put(Derived, "limit", timed_read)
    with pytest.raises(TypeError):
        patches.put(int, "__add__", timed_read)
    assert 1 + 1 == 2


# -- imported later -----------------------------------------------------------------------


class Library:
    """A module on the search path, and what a hook was told of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = "iobench_test_library"
        self.told: list[tuple[str, ModuleType]] = []
        self.hook = ImportHook(lambda name, module: self.told.append((name, module)))

    def write(self, text: str = "value = 1\n") -> None:
        (self.folder / f"{self.name}.py").write_text(text)
        importlib.invalidate_caches()

    def get(self) -> Any:
        return importlib.import_module(self.name)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    library = Library(tmp_path)
    library.write()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    library.hook.install([library.name])
    yield library
    library.hook.remove()
    sys.modules.pop(library.name, None)


def test_a_module_is_told_of_once_it_has_run(library: Library) -> None:
    module = library.get()
    assert library.told == [(library.name, module)]
    assert module.value == 1
    # Nothing of ours is left on it.
    loader = module.__spec__.loader
    assert type(loader) is importlib.machinery.SourceFileLoader
    assert "exec_module" not in vars(loader)
    assert module.__loader__ is loader
    assert inspect.getsource(module) == "value = 1\n"


def test_a_module_loaded_again_is_told_of_again(library: Library) -> None:
    importlib.reload(library.get())
    assert len(library.told) == 2


def test_an_import_that_fails_fails_as_ever(library: Library) -> None:
    library.write("raise ZeroDivisionError('its own')\n")
    with pytest.raises(ZeroDivisionError, match="its own"):
        library.get()
    library.write("value = (\n")
    with pytest.raises(SyntaxError):
        library.get()
    assert library.told == []
    (library.folder / f"{library.name}.py").unlink()
    importlib.invalidate_caches()
    with pytest.raises(ModuleNotFoundError, match=f"^No module named '{library.name}'$"):
        library.get()


def test_looking_without_importing_is_no_import(library: Library) -> None:
    for _ in range(3):
        assert importlib.util.find_spec(library.name) is not None
    assert library.told == []
    library.get()
    assert len(library.told) == 1


def test_a_hook_taken_away_meanwhile_is_silent(library: Library) -> None:
    spec = importlib.util.find_spec(library.name)
    assert spec is not None
    assert spec.loader is not None
    library.hook.remove()
    library.hook.remove()
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    library.get()
    assert library.told == []


class OtherHook:
    """Somebody else's: asks all finders for what it watches, and wraps the loader's method."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asking = False
        self.heard: list[str] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name or self.asking:
            return None
        self.asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.asking = False
        assert spec is not None
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            self.heard.append(module.__name__)

        loader.exec_module = exec_module
        return spec


@pytest.mark.parametrize("first", [True, False])
def test_hooks_of_others_hear_what_they_heard(
    library: Library, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = OtherHook(library.name)
    finders = list(sys.meta_path)
    finders.insert(0 if first else 1, other)
    monkeypatch.setattr(sys, "meta_path", finders)
    module = library.get()
    assert library.told == [(library.name, module)]
    assert other.heard == [library.name]


def test_a_lazy_module_is_told_of_when_it_runs(library: Library) -> None:
    spec = importlib.util.find_spec(library.name)
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[library.name] = module
    spec.loader.exec_module(module)
    assert library.told == []
    assert module.value == 1
    assert library.told == [(library.name, module)]


def test_a_module_in_an_archive_is_told_of(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    (library.folder / f"{library.name}.py").unlink()
    archive = library.folder / "archive.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr(f"{library.name}.py", "import iobench_test_beside\nvalue = 2\n")
        packed.writestr("iobench_test_beside.py", "value = 3\n")
    monkeypatch.syspath_prepend(archive)
    importlib.invalidate_caches()
    assert library.get().value == 2
    assert [name for name, _ in library.told] == [library.name]
    sys.modules.pop("iobench_test_beside")


ROWS = """
from iobench.adapters import TimedCall
def fails(*args):
    raise ZeroDivisionError("of a note")
ROWS = (
    TimedCall("missing", "read"),
    TimedCall("double", "no such kind"),
    "no row",
    TimedCall("twice", "decode", fails, only_if=lambda args, kwargs: args[0] / args[0]),
)
"""


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (ROWS, ["library has no missing", "'no such kind'", "no attribute 'attribute'"]),
        ("1 / 0", ["ZeroDivisionError: division by zero"]),
        ("", ["has no attribute 'ROWS'"]),
        (None, ["No module named 'iobench_test_rows'"]),
    ],
)
def test_rows_of_others_that_fail_are_named_and_change_nothing(
    watch: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str | None,
    faults: list[str],
) -> None:
    library = "def twice(value):\n    return 2 * value\ndef double(value):\n    return 2 * value\n"
    (tmp_path / "iobench_test_library.py").write_text(library)
    if text is not None:
        (tmp_path / "iobench_test_rows.py").write_text(text)
    importlib.invalidate_caches()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("IOBENCH_RUN_ADAPTERS", "iobench_test_library=iobench_test_rows:ROWS")
    monkeypatch.setitem(sys.modules, "h5py", None)  # how an import is forbidden
    install()
    module: Any = importlib.import_module("iobench_test_library")
    try:
        assert set(unseen()) == {"iobench_test_library"}
        assert all(fault in unseen()["iobench_test_library"] for fault in faults)
        assert watch(lambda: (module.twice(4), module.twice(0), module.double(4))) == (8, 0, 8)
        expected = [("decode", -1)] if text == ROWS else []
        assert [(span.kind, span.nbytes) for span in watch.spans] == expected
    finally:
        for name in ("iobench_test_library", "iobench_test_rows"):
            sys.modules.pop(name, None)


LATER = """
    import sys
    from iobench.adapters.installed import install, uninstall, unseen
    from iobench.adapters.scope import loading, quiet
    install()
    loaded = {"h5py", "numpy", "torch", "xarray"} & set(sys.modules)
    import h5py
    import numpy
    assert h5py.Dataset.__getitem__.__wrapped__, "patched"
    assert numpy.load.__wrapped__
    print(sorted(loaded), unseen())
    uninstall()
    assert not hasattr(h5py.File.__init__, "__wrapped__")
    print(h5py.Dataset.__getitem__.__module__, sys.meta_path[0].__class__.__name__)
"""


def test_a_library_imported_later_is_timed_and_none_is_imported_for_it() -> None:
    pytest.importorskip("h5py", reason="a library that is imported later")
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LATER)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert answer.stderr == ""
    first, second = answer.stdout.splitlines()
    # What loads recording loads numpy; nothing else is loaded for its adapter.
    assert "'h5py'" not in first.partition("]")[0]
    assert "'torch'" not in first
    assert first.endswith("{}")
    assert second.startswith("h5py._hl.dataset ")
    assert "ImportHook" not in second
