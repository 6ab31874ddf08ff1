"""A command under ``iobench run`` does what it does without: results, output, exit, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

SELF = """
import random, sys, numpy as np
import __main__
print(sys.argv, sys.path, sys.flags, __name__, __main__.__file__ if "__file__" in globals() else "")
print(random.random() < 2, sorted(name for name in globals() if not name.startswith("_")))
print(np.random.default_rng(7).random(), [random.Random(3).random() for _ in range(3)])
print(len(np.random.get_state()[1]), np.random.RandomState(1).rand(), hash("word") != 0)
print("to stderr", file=sys.stderr)
"""
SELF_COMMANDS = {
    "file": [sys.executable, "inside.py", "--lr", "1", "--", "x"],
    "options": [sys.executable, "-W", "error", "-X", "utf8", "-B", "-m", "inside", "a"],
    "shell": ["sh", "-c", f"echo first; {sys.executable} inside.py $0 && exit 5", "a"],
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("form", SELF_COMMANDS)
def test_a_script_sees_itself_as_it_is(same, script, form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script(SELF, "inside.py")
    found = same(*SELF_COMMANDS[form])
    assert [facts.role for facts in found.facts] == ["consumer", "launcher"]
    assert found.launcher.unseen == []


ENDS = {
    "text": "raise SystemExit('no data')",
    "error": "raise ValueError('é')",
    "segv": "import ctypes; ctypes.string_at(0)",
    "hard": "import os; os._exit(4)",
    "interrupt": "raise KeyboardInterrupt",
}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("end", ENDS)
def test_it_ends_as_it_would(same, script, end):
    found = same(sys.executable, script(f"import numpy\n{ENDS[end]}\n"))
    told = f"exit {found.code}" if found.code >= 0 else signal.Signals(-found.code).name
    assert found.launcher.ended == told


def test_the_environment_is_as_it_was_but_for_ours(launch, plainly, script):
    path = script("import os; print(sorted(os.environ.items()))")
    environment = {**os.environ, "PYTHONPATH": f"{os.sep}else{os.pathsep}", "MINE": "1"}
    expected = dict(eval(plainly(sys.executable, path, env=environment).stdout))
    found = dict(eval(launch(sys.executable, path, environment=environment).out))
    added = {name for name in found if name.startswith("IOBENCH_RUN")}
    assert found["PYTHONPATH"].endswith(os.pathsep + expected["PYTHONPATH"])
    differs = {name for name in found if found[name] != expected.get(name)} - added
    assert differs == {"PYTHONPATH"}


def test_stdin_and_other_descriptors_pass_through(tmp_path, script, plainly, cli):
    read, write = os.pipe()
    path = script(f"import sys, os; os.write({write}, sys.stdin.buffer.read()[::-1])")
    os.set_inheritable(write, True)
    arguments = ["--no-report", "--out", tmp_path / "run", sys.executable, path]
    found = plainly(*cli, *arguments, input="stdin", close_fds=False)
    os.close(write)
    with os.fdopen(read) as file:
        assert (found.returncode, found.stdout, file.read()) == (0, "", "nidts")


WAITS = """
import os, signal, sys, numpy
def stop(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    sys.exit(9)
for name in ("SIGTERM", "SIGUSR1", "SIGINT"):
    signal.signal(getattr(signal, name), stop)
told, tell = os.pipe()
os.set_blocking(tell, False)
signal.set_wakeup_fd(tell)
print("ready", flush=True)
os.read(told, 1)
"""
"""A `signal.pause` would wait for ever where the signal comes just before it."""


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
def test_a_signal_to_the_launcher_goes_on_to_the_script(tmp_path, script, cli, name):
    arguments = ["--no-report", "--out", tmp_path / "run", "--", sys.executable, script(WAITS)]
    with subprocess.Popen(
        [*cli, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.Signals[name])
        rest = process.stdout.read()
    assert (process.returncode, rest) == (9, f"got {name}\n")


CTRL_C = """
import os, pty, sys
pid, terminal = pty.fork()
if not pid:
    os.execv(sys.argv[1], sys.argv[1:])
text = b""
def until(wanted):
    global text
    while wanted not in text:
        try:
            text += os.read(terminal, 1024)
        except OSError:
            break
until(b"ready")
os.write(terminal, b"\\x03")
until(b"got SIGINT")
os.write(terminal, b"end\\n")
until(b"never")
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text.count(b"got SIGINT"))
"""


@pytest.mark.long
def test_ctrl_c_reaches_the_script_once(tmp_path, script, plainly, cli):
    waits = WAITS.replace("    sys.exit(9)\n", "")
    path = script(waits + "sys.exit(len(input()))\n")
    arguments = ["--no-report", "--out", tmp_path / "run", "--", sys.executable, path]
    found = plainly(sys.executable, "-c", CTRL_C, *cli, *arguments)
    assert found.stdout == "3 1\n", found.stderr


OTHERS = """
import os, signal
launcher = f"/proc/{os.getppid()}"
bit = 1 << signal.SIGINT - 1
for thread in os.listdir(launcher + "/task"):
    with open(f"{launcher}/task/{thread}/status") as file:
        (mask,) = (int(line.split()[1], 16) for line in file if line.startswith("SigBlk"))
    if thread != str(os.getppid()) and not mask & bit:
        print("takes Ctrl-C")
"""


@pytest.mark.long
def test_only_the_thread_that_waits_for_signals_is_sent_any(tmp_path, script, plainly, cli):
    arguments = ["--no-report", "--out", tmp_path / "run", "--", sys.executable, script(OTHERS)]
    found = plainly(*cli, *arguments, env={**os.environ, "OPENBLAS_NUM_THREADS": "4"})
    assert (found.returncode, found.stdout) == (0, ""), found.stderr


def test_what_cannot_be_started_is_said(tmp_path, plainly, cli):
    found = plainly(*cli, *["--out", tmp_path / "run", "--", "no-such-program", "-x"])
    assert found.returncode == 1
    assert found.stderr.startswith("iobench: no-such-program: no such program; ")
    assert list(tmp_path.iterdir()) == []


def test_a_script_that_records_itself_joins_the_run_and_ends_as_without(
    tmp_path, script, launch, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    path = script(
        """
        import numpy, iobench
        for _ in range(2):
            with iobench.record("mine"):
                with iobench.stage("read"):
                    print("reads")
        """
    )
    done = launch(sys.executable, path)
    assert (done.code, done.out) == (0, "reads\nreads\n"), done.err
    assert done.err.count("that continues") == 1
    assert not (tmp_path / "mine").exists()
