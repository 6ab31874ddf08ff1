"""Outputs of runs that are unfinished, newer, damaged or hostile, and to places that take none.

One clear line, and nothing half-written that looks whole.
"""

from __future__ import annotations

import contextlib
import html.parser
import json
import os
import random
import re
import resource
import sys
from pathlib import Path

import pytest

from iobench.cli import main
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.recording.span_reader import Anchor
from iobench.recording.this_process import boot_id, host_name
from iobench.runs.reading import open_profile
from iobench.testing import FakeClock
from tests.support.sketched_runs import CONSUMER, SketchedRun

sys.path.append(str(Path(__file__).parents[1] / "support"))

from energy_files import source, write_energy

MS = 1_000_000
N_BATCHES = 12
HOSTILE = (
    "<script>alert(1)</script></script><img src=x onerror=alert(2)>\"'><svg/onload=alert(3)>"
    "--><!--\u2028{{7*7}}[x](javascript:alert(4))`|\n# y\x1b]0;owned\x07\x1b[31m"
)
FILES = {
    "html": ("report", "--html", "page.html"),
    "trace": ("report", "--trace", "trace.json.gz"),
    "compare": ("compare", "--html", "compared.html"),
}
"""Outputs that are files: the command, its option, and a name."""
TEXTS = (
    *(("report",), ("report", "--json"), ("report", "--markdown")),
    *(("compare",), ("compare", "--json"), ("compare", "--markdown")),
)
"""Outputs that are printed."""
each_file = pytest.mark.parametrize("output", FILES)
pytest.importorskip("jinja2", reason="pages are made with it")
pytest.importorskip("pyarrow", reason="tables of spans are written with it")


@pytest.fixture
def say(capsys, tmp_path):
    """Run a command on a run; return its exit code, and what it printed."""

    def run(command, path, *arguments):
        runs = [path, *[whole_run(tmp_path / "beside")] * (command == "compare")]
        capsys.readouterr()
        code = main([command, *map(str, (*runs, *arguments))])
        told = capsys.readouterr()
        assert "Traceback" not in told.err
        assert not code or len(told.err.strip().splitlines()) == 1, told.err
        return code, told.out, told.err

    return run


def some_batches(name="plain", **config):
    """Return a run of some batches, each with a file, stages and a wait, without an end."""
    told = {
        "dataset": name, "format": "source", "framework": "native", "workers": 0, "prefetch": 0,
        "batch_size": 1, "n_samples": N_BATCHES, "command": name, "files_hint": name,
        "machine": {"host": name, "cpus": 2, "cpu_model": name}, "described_by": name,
        "iobench_version": "1", "compute": {"forward_ns": MS, "backward_ns": 0, "source": name},
    }  # fmt: skip
    run = SketchedRun(told, **config)
    here = {"pid": os.getpid(), "host": host_name(), "boot_id": boot_id()}
    run.process = {**here, "anchors": (Anchor(0, 10**18),)}
    for batch in range(N_BATCHES):
        at, of = batch * 10 * MS, {"batch": batch, "epoch": 0}
        read = {"nbytes": 9, "detail": f"/data/{name}/{batch}"}
        run.add(CONSUMER, Kind.READ, at, at + 4 * MS, **read, **of)
        run.add(CONSUMER, Kind.DECODE, at + 4 * MS, at + 6 * MS, label=name, **of)
        run.wait(batch, at, at + 6 * MS, "consumer", nbytes=9, epoch=0)
        run.add(CONSUMER, Kind.FORWARD, at + 6 * MS, at + 9 * MS, label=name, **of)
    return run


def whole_run(path, name="plain", **config):
    """Return a run directory that ended; the same one again if it is there."""
    if path.exists():
        return path
    run, end = some_batches(name, **config), N_BATCHES * 10 * MS
    run.shutdown(end, end + MS)
    run.round(0, end + MS)
    run.write(path)
    write_energy(
        path, [0, 0], [end + MS, 10**7], sources=[source(title=name)],
        unreadable=[("cpu", name)], host=host_name(), boot_id=boot_id(),
    )  # fmt: skip
    loader = {"number": 0, "framework": name, "kind": name, "name": name, "unseen": [name]}
    process = {
        "version": 1, "pid": os.getpid(), "ppid": 1, "host": host_name(), "role": "consumer",
        "command": [name], "loaders": [loader], "unseen": [name], "ended": name,
    }  # fmt: skip
    (path / "processes").mkdir(exist_ok=True)
    (path / "processes" / "rank0.json").write_text(json.dumps(process))
    return path


@pytest.fixture
def run(tmp_path):
    return whole_run(tmp_path / "run")


# -- runs ---------------------------------------------------------------------------------


@each_file
def test_a_run_that_is_still_written_has_every_output(tmp_path, say, output):
    begun = some_batches()
    run = RunDirectory.create(tmp_path / "run", begun.config)
    recorder = run.recorder(role="consumer", clock=FakeClock(1000, wall_offset_ns=10**18))
    for span in begun.spans:
        texts = {name: recorder.string(span.get(name, "")) for name in ("label", "detail")}
        recorder.emit(**{name: span[name] for name in span if name != "lane"} | texts)
    command, option, name = FILES[output]
    code, out, err = say(command, run.path, option, tmp_path / name)
    assert code == 0, err
    assert (tmp_path / name).stat().st_size > 0
    assert command != "report" or "still running" in " ".join(out.split())
    # The writer goes on undisturbed, and a later report has what came since.
    before = len(open_profile(run.path).spans)
    recorder.emit(Kind.READ, 200 * MS, 201 * MS, batch=99, epoch=0)
    assert len(open_profile(run.path).spans) == before + 1
    recorder.close()


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        ({"version": 2}, r"run\.json: .*use the iobench that wrote it"),
        ("", r"run\.json: is not"),
        ("null", r"run\.json: is not"),
        ("[" * 100_000, r"run\.json: is not"),
        ({"dataset": 3}, r"run\.json: Expected `str.*`, got `int` - at `\$\.dataset`; put it"),
        ({"cache": {"asked": 3}}, r"run\.json: .*got `int` - at `\$\.cache\.asked`; put it right"),
    ],
    ids=["newer", "nothing", "null", "deep", "text", "inner"],
)
def test_a_run_whose_description_is_not_ours_is_refused_by_name(
    run, tmp_path, say, change, pattern
):
    document = json.loads((run / "run.json").read_text())
    text = change if isinstance(change, str) else json.dumps({**document, **change})
    (run / "run.json").write_text(text)
    for command, *options in (*FILES.values(), *TEXTS):
        target = tmp_path / options[-1] if options and "." in options[-1] else None
        code, out, err = say(command, run, *([*options[:-1], target] if target else options))
        assert (code, out) == (1, ""), (command, options)
        assert re.search(pattern, err), err
        assert target is None or not target.exists()


@pytest.mark.parametrize("name", ["run.json", "spans/0.spans", "processes/0.json"])
def test_a_pipe_among_the_files_is_not_waited_for(run, say, name):
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    code, _, err = say("report", run)
    assert code == (0 if name.startswith("processes") else 1)
    assert not code or name in err


@pytest.mark.parametrize(
    "seed", [None, 0, 1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 40))]
)
def test_damaged_or_absent_spans_give_outputs_or_one_line(run, tmp_path, say, seed):
    (file,) = (run / "spans").iterdir()
    data, draw = bytearray(file.read_bytes()), random.Random(seed)
    if seed is None:
        file.unlink()
    elif seed % 2:
        file.write_bytes(data[: draw.randrange(len(data))])
    else:
        for _ in range(draw.choice((1, 8, 100))):
            data[draw.randrange(min(len(data), 1 << 17))] ^= 1 << draw.randrange(8)
        file.write_bytes(data)
    for number, (output, (command, option, name)) in enumerate(FILES.items()):
        target = tmp_path / f"{number}-{name}"
        code, _, err = say(command, run, option, target)
        assert code in (0, 1)
        assert target.exists() == (code == 0), (output, err)


# -- names --------------------------------------------------------------------------------


class Elements(html.parser.HTMLParser):
    """The elements of a page, as a browser would find them."""

    def __init__(self, text):
        super().__init__()
        self.found, self.links = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, tuple(name for name, _ in attrs)))
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action")]


@pytest.mark.parametrize("output", ["html", "compare"])
def test_names_put_nothing_into_a_page(tmp_path, say, output):
    pages = []
    for run in (whole_run(tmp_path / "hostile", HOSTILE), whole_run(tmp_path / "plain", "other")):
        target = tmp_path / f"{run.name}.html"
        code, _, err = say(FILES[output][0], run, "--html", target)
        assert code == 0, err
        pages.append(Elements(target.read_text()))
    hostile, plain = pages
    assert {tag for tag, _ in hostile.found} == {tag for tag, _ in plain.found}
    for tag in ("script", "style", "link", "iframe", "object", "form", "base", "meta"):
        assert [e for e in hostile.found if e[0] == tag] == [e for e in plain.found if e[0] == tag]
    assert not {name for _, names in hostile.found for name in names if name.startswith("on")}
    assert not [link for link in hostile.links if "javascript" in link.lower()]


def test_names_do_nothing_to_a_terminal(tmp_path, say):
    run = whole_run(tmp_path / "run", HOSTILE, setup={HOSTILE: 1.0}, cache={"asked": HOSTILE})
    for command, *options in (*TEXTS, ("info",)):
        _, out, err = say(command, run, *options)
        assert not {"\x1b", "\x07"} & {*(out + err)}


# -- places -------------------------------------------------------------------------------


@contextlib.contextmanager
def no_file_above(nbytes):
    """Let no file of this process grow above a size: a disk that is full, for anybody's tests."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Python leaves half a file where it can write no more: here, and in what is started meanwhile.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("there_before", [False, True])
@each_file
def test_a_disk_that_fills_up_leaves_nothing_under_the_name(
    run, tmp_path, say, output, there_before
):
    whole_run(tmp_path / "beside")
    folder = tmp_path / "full"
    folder.mkdir()
    command, option, name = FILES[output]
    if there_before:
        (folder / name).write_text("before")
    with no_file_above(512):
        code, _, err = say(command, run, option, folder / name)
    assert code == 1
    assert re.search(r"[\w./-]+: File too large", err), err
    kept = {path.name: path.read_text() for path in folder.iterdir()}
    assert kept == ({name: "before"} if there_before else {})


@each_file
def test_a_place_that_cannot_be_written_is_one_line(run, tmp_path, say, output):
    command, option, name = FILES[output]
    (folder := tmp_path / f"folder-{name}").mkdir()
    (folder / "kept").touch()
    (device := tmp_path / f"device-{name}").symlink_to("/dev/full")
    for target in (tmp_path / "none" / name, run / "run.json" / name, folder, device):
        code, _, err = say(command, run, option, target)
        assert code == 1
        assert target.name in err or target is device
    assert [path.name for path in folder.iterdir()] == ["kept"]
    assert device.is_symlink()
    assert not list(tmp_path.glob(".*part*"))
