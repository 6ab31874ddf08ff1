"""What a script is started with may hold credentials: none of them are in the run directory."""

from __future__ import annotations

import sys

SECRET = "QQsecretQQ"


def test_no_credentials_of_command_lines_are_written_down(script, launch):
    path = script(
        f"""
        import os, subprocess, sys, numpy, iobench
        with iobench.stage("read"):
            subprocess.run([sys.executable, "-c", "import numpy", "--api-key", "{SECRET}"])
            os.system("true --password={SECRET}")
        """
    )
    done = launch(sys.executable, path, "--mlflow", f"https://me:{SECRET}@host/", "--token", SECRET)
    assert done.code == 0
    assert done.launcher.command[2:] == ["--mlflow", "***", "--token", "***"]
    assert "true --password=***" in done.launcher.children
    for file in done.run.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file
    assert SECRET not in done.err


def test_values_of_options_are_kept_when_asked(script, launch):
    path = script("import numpy, os; os.system('true --seed 5')")
    done = launch(sys.executable, path, "--lr", "0.25", "--api-key", SECRET, keep_command=True)
    assert done.code == 0
    assert done.launcher.command[2:] == ["--lr", "0.25", "--api-key", "***"]
    assert "true --seed 5" in done.launcher.children
    assert "--lr 0.25" in (done.run / "run.json").read_text()
