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
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from iobench.adapters import installed as state
from iobench.adapters.installed import ImportHook, install, uninstall, unseen

PATCHED = (
    (builtins, "open"), (io, "open"), (os, "open"), (os, "read"), (os, "pread"), (os, "preadv"),
    (np, "load"), (np, "fromfile"), (np, "loadtxt"), (np.memmap, "__new__"),
    (np.lib.npyio.NpzFile, "__getitem__"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def clean():
    uninstall()
    yield
    uninstall()


def held():
    return [vars(owner)[name] for owner, name in PATCHED]


def test_uninstalling_brings_back_the_very_objects():
    before, finders = held(), list(sys.meta_path)
    modules = [getattr(value, "__module__", None) for value in before]
    for _ in range(2):
        install()
        install()
        assert all(now is not then for now, then in zip(held(), before, strict=True))
        assert sys.meta_path.count(state._hook) == 1
        uninstall()
        assert all(now is then for now, then in zip(held(), before, strict=True))
        assert [getattr(value, "__module__", None) for value in before] == modules
        assert sys.meta_path == finders
    uninstall()


def test_timed_functions_look_like_and_pickle_as_the_ones_they_stand_for():
    functions = [(owner, name) for owner, name in PATCHED if isinstance(owner, ModuleType)]
    originals = [getattr(owner, name) for owner, name in functions]
    install()
    for (owner, name), original in zip(functions, originals, strict=True):
        ours = getattr(owner, name)
        assert ours.__wrapped__ is original
        assert inspect.signature(ours) == inspect.signature(original)
        assert (ours.__doc__, ours.__name__) == (original.__doc__, name)
        pickled = pickle.dumps(ours)
        assert pickle.loads(pickled) is ours
        assert b"iobench" not in pickled


def test_a_function_kept_from_before_times_nothing_after(watch, tmp_path):
    install(where="everywhere")
    kept_load, kept_open = np.load, open
    uninstall()
    np.save(tmp_path / "a.npy", np.arange(4))

    def work():
        kept_load(tmp_path / "a.npy")
        kept_open(tmp_path / "a.npy", "rb").close()

    watch(work)
    assert watch.spans == []


def test_what_somebody_else_replaced_stays_theirs(monkeypatch):
    install()
    ours = np.load

    def theirs(*args, **kwargs):
        return ours(*args, **kwargs)

    monkeypatch.setattr(np, "load", theirs)
    uninstall()
    assert np.load is theirs


def test_a_library_that_is_not_as_we_know_it_goes_on_and_is_named(monkeypatch):
    monkeypatch.delattr(np, "fromfile")
    load = np.load
    install()
    assert unseen() == {"numpy": "AttributeError: numpy has no fromfile of its own"}
    assert np.load is not load  # what fits is timed
    uninstall()
    assert unseen() == {}
    assert np.load is load


# -- imported later -----------------------------------------------------------------------


class Library:
    """A module on the search path, and what a hook was told of it."""

    def __init__(self, folder):
        self.folder = folder
        self.name = "iobench_test_library"
        self.told: list[tuple[str, ModuleType]] = []
        self.hook = ImportHook(lambda name, module: self.told.append((name, module)))

    def write(self, text="value = 1\n"):
        (self.folder / f"{self.name}.py").write_text(text)
        importlib.invalidate_caches()

    def get(self):
        return importlib.import_module(self.name)


@pytest.fixture
def library(tmp_path, monkeypatch):
    library = Library(tmp_path)
    library.write()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    library.hook.install([library.name])
    yield library
    library.hook.remove()
    sys.modules.pop(library.name, None)


def test_a_module_is_told_of_once_it_has_run(library):
    module = library.get()
    assert library.told == [(library.name, module)]
    assert module.value == 1
    # Nothing of ours is left on it.
    loader = module.__spec__.loader
    assert type(loader) is importlib.machinery.SourceFileLoader
    assert "exec_module" not in vars(loader)
    assert module.__loader__ is loader
    assert inspect.getsource(module) == "value = 1\n"
    importlib.reload(module)
    assert len(library.told) == 2


def test_an_import_that_fails_fails_as_ever(library):
    for text, error in (("raise ZeroDivisionError('its own')\n", ZeroDivisionError),
                        ("value = (\n", SyntaxError)):  # fmt: skip
        library.write(text)
        with pytest.raises(error):
            library.get()
    (library.folder / f"{library.name}.py").unlink()
    importlib.invalidate_caches()
    with pytest.raises(ModuleNotFoundError, match=f"^No module named '{library.name}'$"):
        library.get()
    assert library.told == []


def test_a_lazy_module_is_told_of_when_it_runs(library):
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
    watch, tmp_path, monkeypatch, text, faults
):
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


def test_a_library_imported_later_is_timed_and_none_is_imported_for_it():
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
