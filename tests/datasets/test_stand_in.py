"""The stand-in through the command line: interrupted, made by two at once, laid out by the user."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from iobench.cli import main
from iobench_maelstrom.ens10.dataset import Ens10

COMMAND = [sys.executable, "-c", "import sys; from iobench.cli import main; sys.exit(main())"]
QUICK = ["--batches", "4", "--workers", "0", "--compute", "none", "--json"]
NO_NETWORK = """\
import socket

def refuse(*arguments, **more):
    raise AssertionError("the network was tried")

socket.getaddrinfo = socket.create_connection = socket.socket.connect = refuse
"""


@pytest.mark.long
def test_ctrl_c_leaves_it_unfinished_and_the_next_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = Ens10.write

    def interrupted(dataset, plan, key, path):
        write(dataset, plan, key, path)
        if key == plan.keys[1]:
            os.kill(os.getpid(), signal.SIGINT)

    command = ["profile", "maelstrom-ens10", "--tiny", "--store-dir", str(tmp_path), *QUICK]
    with monkeypatch.context() as patched:
        patched.setattr(Ens10, "write", interrupted)
        assert main([*command, "--out", str(tmp_path / "a")]) == 75
    assert capsys.readouterr().err.splitlines()[-1].startswith("iobench: interrupted")
    [root] = (tmp_path / "stand-ins").iterdir()
    assert json.loads((root / "stand-in.json").read_text())["files"] == []
    [first] = root.rglob("output.sfc.20180101")
    written = first.stat().st_mtime_ns
    assert main([*command, "--out", str(tmp_path / "b")]) == 0
    assert json.loads((root / "stand-in.json").read_text())["files"] != []
    assert first.stat().st_mtime_ns == written


@pytest.mark.long
@pytest.mark.timeout(110)
def test_two_runs_at_once_share_one_stand_in_and_one_store(tmp_path: Path) -> None:
    command = [
        *COMMAND, "profile", "maelstrom-ens10", "--tiny", "--format", "numpy",
        "--store-dir", str(tmp_path / "stores"), *QUICK,
    ]  # fmt: skip
    both = [
        subprocess.Popen(
            [*command, "--out", str(tmp_path / name)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name in ("a", "b")
    ]  # fmt: skip
    said = [run.communicate(timeout=100) for run in both]
    assert [run.returncode for run in both] == [0, 0], said
    stores = {json.loads((tmp_path / n / "run.json").read_text())["store"]["path"] for n in "ab"}
    assert len(stores) == 1
    assert len(list((tmp_path / "stores/stand-ins").iterdir())) == 1
    assert not list((tmp_path / "stores").rglob("*lock*"))


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mirror")
    assert main(["synthesize", "maelstrom-ens10", str(folder), "--tiny"]) == 0
    return folder


@pytest.mark.long
@pytest.mark.timeout(110)
def test_the_climetlab_mirror_is_found_and_no_network_is_tried(
    iobench, mirror: Path, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_NETWORK)
    environment = os.environ | {"CLIMETLAB_MIRROR": str(mirror), "PYTHONPATH": str(tmp_path)}
    done = iobench("profile", "maelstrom-ens10", "--out", "run", *QUICK, env=environment)
    assert done.returncode == 0, done.stderr
    [run] = json.loads(done.stdout)["runs"]
    assert run["stand_in"] is True
    assert f"in {mirror}" in done.stderr
    assert f"{mirror}/url" in json.loads((tmp_path / "run/run.json").read_text())["files_hint"]


@pytest.mark.long
@pytest.mark.timeout(110)
def test_a_home_directory_is_not_filled_silently(iobench, tmp_path: Path) -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("TMPDIR", "XDG_CACHE_HOME", "SCRATCH")
    } | {"HOME": str(tmp_path / "home")}
    done = iobench("profile", "maelstrom-ens10", "--tiny", *QUICK, env=environment)
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/home/.cache/iobench" in done.stderr
