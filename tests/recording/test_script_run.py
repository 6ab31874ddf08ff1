"""What a recorded script is called."""

from __future__ import annotations

import sys

import pytest

from iobench.recording.script_run import command_line

KERNEL = ["/opt/env/bin/python", "-m", "ipykernel_launcher", "-f", "/tmp/kernel-1.json"]


def test_a_script_is_called_as_it_was_started_but_for_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", "--epochs", "2"])
    assert command_line() == ["python", "train.py", "--epochs", "***"]


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"JPY_SESSION_NAME": "/home/ada/work/first try.ipynb"}, ["notebook", "first try.ipynb"]),
        ({"JPY_SESSION_NAME": ""}, ["notebook"]),
        ({}, ["notebook"]),
    ],
)
def test_a_notebook_is_called_by_its_name(
    environ: dict[str, str], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", KERNEL)
    assert command_line(environ) == told
