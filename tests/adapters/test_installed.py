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


NAME = "iobench_test_library"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a module that can be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write_module(text, name=NAME):
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return tmp_path / f"{name}.py"

    yield write_module
    for name in (NAME, "iobench_test_rows"):
        sys.modules.pop(name, None)


@pytest.fixture
def told(write):
    """What a hook is told of a module."""
    write("value = 1\n")
    result = []
    hook = ImportHook(lambda name, module: result.append((name, module)))
    hook.install([NAME])
    yield result
    hook.remove()


def test_a_module_is_told_of_once_it_has_run(told):
    module = importlib.import_module(NAME)
    assert told == [(NAME, module)]
    assert module.value == 1
    # Nothing of ours is left on it.
    loader = module.__spec__.loader
    assert type(loader) is importlib.machinery.SourceFileLoader
    assert "exec_module" not in vars(loader)
    assert module.__loader__ is loader
    assert inspect.getsource(module) == "value = 1\n"
    importlib.reload(module)
    assert len(told) == 2


def test_an_import_that_fails_fails_as_ever(told, write):
    for text, error in (("raise ZeroDivisionError('its own')\n", ZeroDivisionError),
                        ("value = (\n", SyntaxError)):  # fmt: skip
        path = write(text)
        with pytest.raises(error):
            importlib.import_module(NAME)
    path.unlink()
    importlib.invalidate_caches()
    with pytest.raises(ModuleNotFoundError, match=f"^No module named '{NAME}'$"):
        importlib.import_module(NAME)
    assert told == []


def test_a_lazy_module_is_told_of_when_it_runs(told):
    spec = importlib.util.find_spec(NAME)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = sys.modules[NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert told == []
    assert module.value == 1
    assert told == [(NAME, module)]


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
    watch, write, monkeypatch, text, faults
):
    write("def twice(value):\n    return 2 * value\ndef double(value):\n    return 2 * value\n")
    if text is not None:
        write(text, "iobench_test_rows")
    monkeypatch.setenv("IOBENCH_RUN_ADAPTERS", f"{NAME}=iobench_test_rows:ROWS")
    monkeypatch.setitem(sys.modules, "h5py", None)  # how an import is forbidden
    install()
    module = importlib.import_module(NAME)
    assert set(unseen()) == {NAME}
    assert all(fault in unseen()[NAME] for fault in faults)
    assert watch(lambda: (module.twice(4), module.twice(0), module.double(4))) == (8, 0, 8)
    assert watch.bytes_of == ([("decode", -1)] if text == ROWS else [])


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
