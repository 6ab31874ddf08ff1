"""``iobench run``: a training script as it is, profiled; its output and exit code are its own."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iobench.launch.running import EndedCommand
    from iobench.recording.run_directory import RunDirectory


def run(
    *,
    command: Sequence[str],
    json: Path | None,
    report: bool,
    live: int | None,
    live_file: Path | None,
    **values: Any,
) -> None:
    """Run a command and record it; end as it did."""
    from iobench.cli.screen import is_quiet
    from iobench.errors import OptionError
    from iobench.launch.waiting import AWAITED, default_signals, end_like

    if json is not None and (str(json) == "--" or not json.parent.is_dir()):
        raise OptionError(f"--json {json}: expected a file in an existing folder, or - for stdout")
    if live_file is not None and not live_file.parent.is_dir():
        raise OptionError(f"--live-file {live_file}: expected a file in an existing folder")
    if live is not None and live < 0:
        raise OptionError(f"--live {live}: expected seconds, or 0 for no lines")
    # OpenBLAS starts threads as it is imported: none of them may take what is for the command.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    from iobench.launch.running import ScriptRun, run_script

    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    requested = ScriptRun(tuple(command), **values)

    def say(line: str) -> None:
        if not is_quiet():
            print(f"iobench: {line}", file=sys.stderr)

    def look_at(directory: RunDirectory) -> Callable[[], None]:
        from iobench.report.live import EVERY_S, LiveRun

        shown = say if printed else lambda _: None
        return LiveRun(directory.path, shown, every_s=live or EVERY_S, file=live_file).look

    printed = bool(live) or (live is None and sys.stderr.isatty())
    looks = printed or live_file is not None
    ended = run_script(requested, say, look_at=look_at if looks else None)
    default_signals()
    if ended.run is not None and ended.rank == 0:
        _report(ended, json, say, report=report and not is_quiet())
    end_like(ended.code)


def _report(
    ended: EndedCommand,
    json: Path | None,
    say: Callable[[str], None],
    *,
    report: bool,
) -> None:
    """Print the report and write the JSON; what fails is said, and changes no exit code."""
    from iobench.analysis.run import open_runs
    from iobench.cli.report_command import print_report
    from iobench.errors import IobenchError
    from iobench.files.atomic import write_atomically
    from iobench.report.renderers.json_text import JsonRenderer
    from iobench.report.report_document import report_document

    assert ended.run is not None
    again = shlex.join(["iobench", "report", str(ended.run)])
    retained = [f"kept in {ended.run}; show this report again with: {again}"]
    lines, failed = [], ""
    if ended.nothing:
        lines.append(f"nothing was recorded: {ended.nothing}")
    try:
        if report:
            print_report(ended.run, json=False, file=sys.stderr)
            retained.clear()  # its last line names it
        if json is not None and str(json) == "-":
            print_report(ended.run, json=True)
        elif json is not None:
            document = report_document(open_runs(ended.run))
            write_atomically(json, JsonRenderer().render(document) + "\n")
    except (IobenchError, OSError) as error:
        failed = f"iobench: no report: {' '.join(str(error).split())}\n"
    except Exception:  # noqa: BLE001 - days of training must not end in our mistake
        traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stderr.write(failed)
        for line in (*retained, *lines):
            say(line)
