"""What a run says of itself: its name, its script's commit, versions and settings of threads."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys

import pytest

from iobench.analysis.run import Run
from iobench.cli import main
from iobench.errors import OptionError
from iobench.launch.running import ScriptRun, run_script
from iobench.recording.run_directory import RunDirectory
from tests.support.run_json import to_json

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="asks git")
TRAIN = "import numpy\n"


@pytest.fixture
def repository(tmp_path):
    """Make git commands in a repository that holds ``train.py``."""
    folder = tmp_path / "code"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        "GIT_CONFIG_GLOBAL": str(tmp_path / "gitconfig"),
        **{
            f"GIT_{who}_{what}": f"nobody{sign}"
            for who in ("AUTHOR", "COMMITTER")
            for what, sign in (("NAME", ""), ("EMAIL", "@example.org"))
        },
    }

    def git(*words):
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "data.bin").write_text("first\n")
    git("init", "--quiet")
    git("add", "--all")
    git("commit", "--quiet", "--message", "first")
    return git


def commit_of(launched):
    (run,) = to_json([Run(launched.run)])["runs"]
    assert run["commit_hash"] == RunDirectory.open(launched.run).config["commit"]["hash"]
    return run["commit_hash"]


@pytest.mark.long
@needs_git
def test_the_commit_of_a_script(launch, repository, tmp_path):
    folder = tmp_path / "code"
    first = repository("rev-parse", "HEAD")
    assert commit_of(launch(sys.executable, folder / "train.py", out=tmp_path / "run")) == first
    with contextlib.chdir(folder):
        found = launch(sys.executable, "-m", "train", out=tmp_path / "module")
        assert commit_of(found) == first


@needs_git
def test_nothing_of_a_strangers_repository_is_run(launch, repository, tmp_path):
    folder, ran = tmp_path / "code", tmp_path / "ran"
    program = folder / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    program.chmod(0o755)
    (folder / ".gitattributes").write_text("*.bin filter=mean\n")
    for name, value in (
        ("core.fsmonitor", program), ("filter.mean.clean", program),
        ("filter.mean.process", program),
    ):  # fmt: skip
        repository("config", name, str(value))
    (folder / "data.bin").write_text("other\n")  # to be compared, filtered
    commit = commit_of(launch(sys.executable, folder / "train.py"))
    assert not ran.exists()
    assert commit == repository("rev-parse", "HEAD")
    with contextlib.suppress(subprocess.CalledProcessError):  # that program answers nothing
        repository("status")
    assert ran.exists(), "as git status would have"


@pytest.mark.long
def test_a_name_is_the_directory_the_title_and_what_trackers_are_told(
    monkeypatch, tmp_path, script, capfd
):
    monkeypatch.chdir(tmp_path)
    command = (sys.executable, str(script(TRAIN)))
    for number in (1, 2):
        ended = run_script(ScriptRun(command, name="  wide  Net, b=32 "), lambda line: None)
        assert ended.run == tmp_path / "iobench-runs" / f"wide-Net-b-32-{number}"
    (run,) = to_json([Run(ended.run)])["runs"]
    assert run["name"] == "wide Net, b=32"
    assert main(["report", str(ended.run)]) == 0
    assert capfd.readouterr().out.startswith("wide Net, b=32 (")
    assert main(["report", "iobench-runs"]) == 0
    assert capfd.readouterr().out.count(" wide Net, b=32") == 2
    ended = run_script(ScriptRun(command, name="x", out=tmp_path / "mine"), lambda line: None)
    assert ended.run == tmp_path / "mine"
    assert RunDirectory.open(ended.run).config["name"] == "x"


@pytest.mark.parametrize("name", ["", " - ", "x" * 101])
def test_what_is_no_name_is_refused_before_anything_is_started(name, tmp_path):
    asked = ScriptRun((sys.executable, "-c", "open('started', 'w')"), name=name, out=tmp_path / "r")
    with pytest.raises(OptionError, match=r"--name .*: expected a name of 1 to 100 signs"):
        run_script(asked, lambda line: None)
    assert not (tmp_path / "r").exists()


def test_versions_of_what_was_imported_and_threads(launch, script, tmp_path, capfd):
    told = {
        **os.environ,
        "OPENBLAS_NUM_THREADS": "3",
        "DASK_SCHEDULER": "tls://me:Zq7Wv9hidden@host:1",
    }
    told.pop("OMP_NUM_THREADS", None)
    text = """
        import os
        os.environ["OMP_NUM_THREADS"] = "2"  # as many scripts do, before the first import
        import numpy
    """
    found = launch(sys.executable, script(text), environment=told, batches_per_step=6)
    assert RunDirectory.open(found.run).config["batches_per_step"] == 6
    (run,) = to_json([Run(found.run)])["runs"]
    import numpy

    assert run["versions"] == {"numpy": numpy.__version__}
    settings = Run(found.run).of_rank().about.thread_settings
    assert (settings["OMP_NUM_THREADS"], settings["OPENBLAS_NUM_THREADS"]) == ("2", "3")
    assert "Zq7Wv9hidden" not in "".join(
        path.read_text(errors="replace") for path in found.run.rglob("*.json")
    )
    assert "host:1" in settings["DASK_SCHEDULER"]


@pytest.mark.long
@needs_git
def test_a_commit_that_is_not_known(launch, script, tmp_path):
    train = script(TRAIN)
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    for number, (command, path) in enumerate((
        ((sys.executable, train), os.environ["PATH"]),  # a repository without a commit
        ((sys.executable, train), "/nowhere"),  # no git
        ((sys.executable, "-c", TRAIN), os.environ["PATH"]),  # no script
    )):  # fmt: skip
        out = tmp_path / f"run-{number}"
        launched = launch(*command, out=out, environment={**os.environ, "PATH": path})
        assert commit_of(launched) is None
