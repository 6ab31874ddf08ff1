"""``iobench profile`` and ``limits`` as users call them: stores reused, signals, damaged files."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from iobench.cli import main
from iobench.cli.own_process import Interrupted
from iobench.profiling.profile_run import measure
from iobench.registry import find_dataset
from iobench.storage.file_systems import file_system_of
from iobench.storage.probe_figures import read_limits

POWER = ("profile", "maelstrom-power", "--tiny", "--workers", "0", "--compute", "none")


@pytest.fixture
def store(iobench_here, store_dir, tmp_path):
    """Profile the tiny stand-in from a store; return what it said and where it was kept."""

    def run(name, stores=store_dir, *more):
        done = iobench_here(
            "profile", "maelstrom-ens10", "--tiny", "--format", "numpy", "--workers", "0",
            "--batches", "12", "--store-dir", stores, "--out", tmp_path / name, *more,
        )  # fmt: skip
        return done, tmp_path / name

    return run


@pytest.mark.long
@pytest.mark.timeout(110)
def test_a_probe_is_reused_and_refused_where_it_was_cut_short(store, tmp_path):
    own = tmp_path / "own"
    done, run = store("run", own)
    assert done.returncode == 0, done.stderr
    done, again = store("again", own)
    assert done.returncode == 0, done.stderr
    made = json.loads((again / "run.json").read_text())["store"]
    assert made["path"] == json.loads((run / "run.json").read_text())["store"]["path"]
    (shard,) = Path(made["path"]).glob("*.npy")
    os.truncate(shard, shard.stat().st_size - 1)
    done, _ = store("short", own)
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert f"{shard}: " in line
    assert f"rm -r {shard.parent})" in line
    shutil.rmtree(shard.parent)
    assert store("whole", own)[0].returncode == 0


@pytest.mark.long
def test_a_quiet_profile_keeps_the_command_of_a_loud_one(tmp_path, store_dir, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words, more = [*POWER], ["--batches", "3", "--store-dir", str(store_dir), "--out", "run"]
    monkeypatch.setattr(sys, "argv", ["iobench", "--quiet", *words, "--quiet", *more])
    assert main() == 0
    assert capsys.readouterr().err == ""
    config = json.loads(Path("run/run.json").read_text())
    assert config["command"] == shlex.join(["iobench", *words, *more])


def test_an_interrupted_profile_names_the_run_that_it_kept(iobench_here, store_dir, monkeypatch):
    def interrupted(runs, **more):
        measure(runs, **more)
        raise Interrupted

    monkeypatch.setattr("iobench.profiling.profile_run.measure", interrupted)
    done = iobench_here(*POWER, "--store-dir", store_dir, "--batches", "3")
    kept = "iobench-runs/maelstrom-power-1"
    assert done.returncode == 75
    assert done.stderr.splitlines()[-1].endswith(f"iobench report {kept}")
    assert iobench_here("report", kept).returncode == 0


GOING = '''
import multiprocessing
import numpy as np

class Going:
    """Samples that a worker makes; once under way it waits until somebody reads the pipe."""

    told = False

    def __len__(self):
        return 64

    def __getitem__(self, number):
        if number >= 64:
            raise IndexError(number)
        if multiprocessing.parent_process() is not None and not Going.told:
            Going.told = True
            open("going", "w").close()
        return {"x": np.full((8, 8), number, "f4")}
'''


@pytest.mark.long
@pytest.mark.timeout(110)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_was_ended_leaves_a_report_and_no_process(iobench_here, tmp_path, number):
    """A profile of 90 s with one worker, which waits for a reader of the pipe ``going``."""
    (tmp_path / "own.py").write_text(GOING)
    os.mkfifo(tmp_path / "going")
    command = [
        sys.executable, "-c", "import sys; from iobench.cli import main; sys.exit(main())",
        "profile", "own:Going", "--compute", "2ms", "--duration", "90", "--workers", "1",
        "--out", str(tmp_path / "run"),
    ]  # fmt: skip
    with subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, text=True,
        start_new_session=True, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        (tmp_path / "going").read_bytes()  # until a worker has begun
        assert len(list((tmp_path / "run").glob("spans/*.spans"))) == 2
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
            _, stderr = process.communicate(timeout=30)
            assert (process.returncode, "interrupted" in stderr) == (75, True)
            with pytest.raises(ProcessLookupError):
                os.killpg(process.pid, 0)
        else:
            process.send_signal(number)
            process.wait(30)
    (run,) = json.loads(iobench_here("report", tmp_path / "run", "--json").stdout)["runs"]
    assert sum(run["exposed_ns"].values()) == run["wait_ns"]


# -- damaged files: one line that says where, never fewer samples -------------------------

TF = "maelstrom-radiation-tf"
EXAMPLE_NBYTES = 20_576
# One of each container: TFRecord, GRIB, classic NetCDF, NetCDF-4.
FILES = {
    TF: ("triplecloud0.0.tfrecord", rf"at byte {255 * EXAMPLE_NBYTES}: .*cut short"),
    "maelstrom-ens10": ("output.sfc.20180104", r"message at offset \d+ is cut short"),
    "maelstrom-power": ("sfc_20190102_00.nc", r"cut short: .*ends at byte \d+"),
    "maelstrom-downscaling-tier1": ("downscaling_tier1_2020-05.nc", r"truncated file: eof = \d+"),
}


@pytest.fixture
def damaged(tiny_root, tmp_path, capsys):
    """Copy a stand-in's files as if they were a user's, damage one, and profile a whole pass.

    Return what is said of it: one line of exit code 1.
    """
    pytest.importorskip("netCDF4", reason="stand-ins are written with netCDF4")
    pytest.importorskip("eccodes", reason="stand-ins of ENS-10 are written with ecCodes")

    def run(name, change, *arguments):
        folder = tmp_path / "data"
        folder.mkdir()
        for path in tiny_root(find_dataset(name)).rglob("*"):
            if path.is_file() and "url" in path.parts:
                shutil.copyfile(path, folder / path.name)
        path = folder / FILES[name][0]
        path.write_bytes(change(path.read_bytes()))
        words = ["profile", name, "--data-dir", folder, "--epochs", "1", "--workers", "1",
                 "--compute", "none", "--store-dir", tmp_path / "stores",
                 "--out", tmp_path / "run", *arguments]  # fmt: skip
        assert main([*map(str, words)]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert "Traceback" not in said.err
        line = said.err.splitlines()[-1]
        assert line.startswith(f"iobench: {path}")
        return line

    return run


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_short_is_named_with_the_place(damaged, name):
    assert re.search(FILES[name][1], damaged(name, lambda data: data[:-5000]))


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param((), marks=pytest.mark.long),
        ("--framework", "torch"),
        ("--format", "numpy"),
        pytest.param(("--pipeline", "upstream"), marks=pytest.mark.long),
    ],
    ids=" ".join,
)
def test_one_flipped_bit_of_an_example_is_named_with_its_place(damaged, arguments):
    if "torch" in arguments:
        pytest.importorskip("torch", reason="its DataLoader runs the workers")
    if "upstream" in arguments:
        pytest.importorskip("tensorflow", reason="the application reads with TensorFlow")
    at = 7 * EXAMPLE_NBYTES
    flipped = lambda data: data[: at + 5000] + bytes([data[at + 5000] ^ 4]) + data[at + 5001 :]  # noqa: E731
    line = damaged(TF, flipped, *arguments)
    # TensorFlow counts from where the data begin, after 12 bytes of length.
    assert f"record at {at + 12}" in line if "upstream" in arguments else f"byte {at}:" in line


# -- limits of storage --------------------------------------------------------------------


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    for number in range(3):
        (tmp_path / "data" / f"{number}.bin").write_bytes(os.urandom(256 << 10))
    return tmp_path / "data"


def test_limits_of_a_folder_are_printed(data, iobench_here):
    text = " ".join(iobench_here("limits", data, "--duration", "0.3").stdout.split())
    for words in (f"{data}: {file_system_of(data).name}", "Random reads of", "wrote nothing"):
        assert words in text
    words = ("--duration", "0.3", "--request", "40kB", "--json")
    told = json.loads(iobench_here("limits", data, *words).stdout)
    assert (told["request_nbytes"], [each["way"] for each in told["reads"]]) == (40_000, ["direct"])


@pytest.mark.long
def test_a_profile_is_held_against_its_own_storage_or_says_why_not(
    iobench_here, store_dir, tmp_path
):
    def profiled(*words):
        more = ("--batches", "4", "--store-dir", store_dir, "--out", tmp_path / "run", "--json")
        done = iobench_here(*words, *more)
        assert done.returncode == 0, done.stderr
        (run,) = json.loads(done.stdout)["runs"]
        told = json.loads((tmp_path / "run" / "run.json").read_text())
        shutil.rmtree(tmp_path / "run")
        return run["storage_limit"], told

    use, told = profiled(*POWER, "--limits", "0.4", "--format", "tfrecord")
    (before,) = read_limits(told["storage_limits"])
    assert {each.threads for each in before.reads} == {1}
    assert use["storage_bytes_per_s"] or use["reason"]
    if use["limit_bytes_per_s"] is not None:
        assert use["used_fraction"] == use["used_bytes_per_s"] / use["limit_bytes_per_s"]
    use, told = profiled(*POWER, "--limits", "off")
    assert not {"storage_limits", "storage_probed"} & set(told)
    assert use is None
    (tmp_path / "own.py").write_text(GOING.replace("Going", "Numbered"))
    _, told = profiled("profile", "own:Numbered", "--compute", "none", "--workers", "0")
    assert told["no_storage_probe"] == "which files are read is unknown"
