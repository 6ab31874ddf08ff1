"""Where adapters record, and where they keep silent."""

# ruff: noqa: PTH123, SIM115 - the builtin itself is what is tested

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest

import iobench
from iobench.adapters.installed import install, uninstall
from iobench.adapters.scope import loading
from iobench.recording.activation import activate
from iobench.recording.outside import DETAIL_LIMIT
from iobench.recording.recorder import Recorder

pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture
def array(tmp_path):
    path = tmp_path / "array.npy"
    np.save(path, np.arange(100.0))
    return path


def test_a_consumer_is_timed_only_while_it_loads(watch, array):
    def work():
        np.load(array)
        with loading():
            np.load(array)
            with loading():
                pass
            np.load(array)
        np.load(array)

    watch(work, role="consumer")
    assert watch.stages == ["read", "read"]


STAGES = {
    **dict.fromkeys(["open", "read", "decode", "verify", "preprocess", "collate"], False),
    **dict.fromkeys(["fused", "opaque", "load my data", "forward"], True),
}
"""Whether a stage of the script of this name is split by what libraries do in it."""


@pytest.mark.parametrize("role", ["worker", "child"])
def test_what_is_named_exactly_is_not_timed_again(watch, array, role):
    watch(lambda: np.load(array), role=role)  # opens, and reads with fromfile
    (span,) = watch.spans
    assert (span.stage, span.nbytes, span.detail) == ("read", 800, str(array))
    for name, split in STAGES.items():

        def work(name=name):
            with iobench.stage(name):
                np.load(array)

        watch(work, role=role)
        *inner, outer = watch.spans
        assert [span.kind for span in inner] == ["read"] * split, name
        assert all(outer.start_ns <= i.start_ns <= i.end_ns <= outer.end_ns for i in inner)


def test_everywhere_is_everywhere_and_wins(watch, array):
    install(where="everywhere")
    install(where="loading")
    watch(lambda: np.load(array), role="consumer")
    assert watch.stages == ["read"]
    uninstall()
    install()
    watch(lambda: np.load(array), role="consumer")
    assert watch.stages == []


def test_an_error_ends_what_it_passes(watch, array):
    def work():
        for scope in (loading(), iobench.stage("read")):
            with pytest.raises(ZeroDivisionError), scope:
                raise ZeroDivisionError
        with pytest.raises(FileNotFoundError):
            np.load(array.parent / "gone.npy")
        np.load(array)

    watch(work)
    assert watch.stages == ["read", "read", "read"]
    assert [span.nbytes for span in watch.spans] == [-1, -1, 800]


def test_names_of_files_are_kept_up_to_a_limit(watch, tmp_path):
    path = tmp_path / "one"
    path.write_bytes(b"1")
    extra = 40
    recorder = Recorder(tmp_path / "spans", role="worker")
    with activate(recorder), recorder:
        for number in range(DETAIL_LIMIT + extra):
            with pytest.raises(FileNotFoundError):
                open(f"{path}-{number}", "rb")
        open(path, "rb").close()
    assert recorder.path is not None
    spans = watch.read(recorder.path)
    assert len(spans) == DETAIL_LIMIT + extra + 1
    named = [span for span in spans if span.detail]
    assert len(named) == DETAIL_LIMIT
    assert spans[-1].detail == ""


def test_a_recorder_that_fails_disturbs_nothing(array, tmp_path):
    recorder = Recorder(tmp_path / "spans", role="worker")
    recorder.close()
    with activate(recorder):
        assert np.load(array).sum() == 4950
        assert array.read_bytes()[:6] == b"\x93NUMPY"
    assert recorder.lost > 0


FORKED = """
    import os, sys
    from pathlib import Path
    import numpy as np
    from iobench.adapters.installed import install, uninstall, unseen
    from iobench.adapters.scope import loading
    from iobench.recording.activation import activate
    from iobench.recording.recorder import Recorder
    from iobench.recording.span_reader import read_span_file

    folder = Path(sys.argv[1])
    np.save(folder / "a.npy", np.arange(3))
    install()
    recorder = Recorder(folder / "spans", role="consumer")
    with activate(recorder), loading():
        pid = os.fork()
        np.load(folder / "a.npy")  # the child makes its file at this, with timed functions
        if pid == 0:
            recorder.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    recorder.close()
    uninstall()
    files = [read_span_file(path) for path in sorted((folder / "spans").glob("*.spans"))]
    print(sorted((file.role, [int(kind) for kind in file.spans["kind"]]) for file in files))
"""


def test_a_forked_child_goes_on_in_a_file_of_its_own(tmp_path):
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORKED), str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (answer.stderr, answer.stdout) == ("", "[('child', [2]), ('consumer', [2])]\n")
