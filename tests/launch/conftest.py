"""Small scripts, started as they are and under ``iobench run``."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from iobench.launch.running import ScriptRun, run_script
from iobench.recording.facts import ProcessFacts, read_process_facts
from iobench.runs.reading import open_profile

if TYPE_CHECKING:
    from iobench.runs.contents import RunData


@dataclass
class Launched:
    """What a command did under ``iobench run``, and what there is of it."""

    code: int
    out: str
    err: str
    run: Path
    said: list[str] = field(default_factory=list)

    @property
    def facts(self) -> tuple[ProcessFacts, ...]:
        return read_process_facts(self.run / "processes")

    @property
    def launcher(self) -> ProcessFacts:
        (told,) = [facts for facts in self.facts if facts.role == "launcher"]
        return told

    @property
    def profile(self) -> RunData:
        return open_profile(self.run)


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    """Write a script."""

    def write(text: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def launch(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Launched]:
    """Run a command under the launcher, in this process."""

    def run(
        *command: object,
        environment: Mapping[str, str] | None = None,
        out: Path = tmp_path / "run",
        **options: Any,
    ) -> Launched:
        said: list[str] = []
        told = dict(os.environ if environment is None else environment)
        capfd.readouterr()
        asked = ScriptRun(tuple(map(str, command)), out=out, **options)
        ended = run_script(asked, said.append, told)
        text = capfd.readouterr()
        return Launched(ended.code, text.out, text.err, out, said)

    return run


@pytest.fixture
def plainly() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command as a shell would."""

    def run(*command: object, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            list(map(str, command)), capture_output=True, text=True, check=False, **options
        )

    return run


@pytest.fixture
def same(
    launch: Callable[..., Launched], plainly: Callable[..., subprocess.CompletedProcess[str]]
) -> Callable[..., Launched]:
    """Run a command without and with the launcher: exit code, output and errors are the same."""

    def run(
        *command: object, environment: Mapping[str, str] | None = None, **options: Any
    ) -> Launched:
        alone = plainly(*command, env=environment)
        found = launch(*command, environment=environment, **options)
        assert (found.code, found.out) == (alone.returncode, alone.stdout)
        assert found.err == alone.stderr
        return found

    return run


@pytest.fixture
def cli() -> list[str]:
    """``iobench run`` as a process of its own."""
    return [sys.executable, "-c", "from iobench.cli import main; raise SystemExit(main())", "run"]
