"""``iobench run``: a training script as it is, profiled; its output and exit code are its own."""

from __future__ import annotations

import contextlib
import shlex
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iobench.cli.command import declared
from iobench.cli.tracer_options import AUTO, Darshan, Energy, Monitor, darshan_words

if TYPE_CHECKING:
    from iobench.launch.running import EndedCommand


def run(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND...",
            help="As you would start it: python train.py --its args; torchrun, a shell script.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The run directory. [default: iobench-runs/SCRIPT-N or NAME-N]"),
    ] = None,
    name: Annotated[str | None, declared("--name")] = None,
    steps: Annotated[
        str | None,
        typer.Option(help="Record these batches of the training loop only, e.g. 100:300."),
    ] = None,
    batches_per_step: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1_000_000,
            help="Batches per optimiser step. [default: as observed]",
        ),
    ] = None,
    detail: Annotated[
        str,
        typer.Option(
            help=("Spans per sample, per batch, or auto: as detailed as costs under 1 %.")
        ),
    ] = "auto",
    spool: Annotated[
        Path | None, typer.Option(help="Node-local folder for spans until they are gathered.")
    ] = None,
    digests: Annotated[
        bool,
        typer.Option(
            "--digests", help="Keep a digest of every sample, for iobench compare (needs xxhash)."
        ),
    ] = False,
    darshan: Darshan = None,
    energy: Energy = AUTO,
    monitor: Monitor = AUTO,
    limits: Annotated[
        str,
        typer.Option(
            metavar="off|auto|SECONDS",
            help="After the run, probe the files in the way that it read them; auto: for 2 s.",
        ),
    ] = "off",
    json: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=("Also write the result as JSON; -: to stdout, after the script's output."),
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Print the report to stderr at the end.")
    ] = True,
    full: Annotated[bool, declared("--full")] = False,
    keep_command: Annotated[
        bool,
        typer.Option(
            "--keep-command", help="Keep the values of options, too, not their names alone."
        ),
    ] = False,
) -> None:
    """Profile any training script, not edited: every loader, in all its processes and ranks.

    Exit code, signals and output are the script's own; the report goes to stderr. Of several
    launchers (srun iobench run -- ...) all record into one run, and the first one prints.
    """
    from iobench.launch.running import ScriptRun, run_script
    from iobench.launch.waiting import default_signals, end_like
    from iobench.storage.limit_probe import probe_seconds

    probe_s = probe_seconds(limits)
    asked = ScriptRun(
        tuple(command),
        out=out,
        name=name,
        steps=steps,
        detail=detail,
        spool=spool,
        digests=digests,
        darshan=darshan_words(darshan),
        energy=energy,
        monitor=monitor,
        batches_per_step=batches_per_step,
        keep_command=keep_command,
    )
    ended = run_script(asked, lambda line: print(f"iobench: {line}", file=sys.stderr))
    with default_signals():
        if ended.run is not None and ended.rank == 0:
            _tell(ended, json, report=report, full=full, probe_s=probe_s)
    end_like(ended.code)


def _tell(
    ended: EndedCommand, json: Path | None, *, report: bool, full: bool, probe_s: float | None
) -> None:
    """Print the report and write the JSON; what fails is said, and changes no exit code."""
    from iobench.cli.report_command import print_report, write_json
    from iobench.errors import IobenchError

    assert ended.run is not None
    again = shlex.join(["iobench", "report", str(ended.run)])
    kept = [f"kept in {ended.run}; show this report again with: {again}"]
    lines = []
    if ended.nothing:
        lines.append(f"nothing was recorded: {ended.nothing}")
    if ended.not_closed:
        ranks = ", ".join(map(str, ended.not_closed))
        lines.append(f"rank {ranks} has not yet closed its recording")
    try:
        if probe_s is not None and not ended.nothing:
            _probe(ended.run, probe_s)
        if report:
            print_report(ended.run, json=False, full=full, file=sys.stderr)
            kept *= full  # one screen names it in its last line
        if json is not None and str(json) == "-":
            print_report(ended.run, json=True, full=full)
        elif json is not None:
            write_json(ended.run, json)
    except (IobenchError, OSError) as error:
        kept.insert(0, f"no report: {' '.join(str(error).split())}")
    except Exception:  # noqa: BLE001 - days of training must not end in our mistake
        traceback.print_exc()
    with contextlib.suppress(OSError):
        for line in (*kept, *lines):
            print(f"iobench: {line}", file=sys.stderr)


def _probe(path: Path, probe_s: float) -> None:
    """Probe the storage as the first training process is seen to have read it, and keep that."""
    from iobench.analysis.run import Run
    from iobench.errors import IobenchError
    from iobench.recording.run_directory import RunDirectory
    from iobench.storage.limit_probe import probe_run
    from iobench.subjects.limits.figures import shape_seen

    run, directory = Run.open(path), RunDirectory.open(path)
    try:
        files, nbytes, readers = shape_seen(run.of_rank(run.ranks[0]))
        like = "the reads of the run, according to its spans"
        found = probe_run(files, nbytes, readers, like=like, duration_s=probe_s)
    except IobenchError as error:
        directory.update(no_storage_probe=str(error))
        return
    directory.update(
        storage_limits=[found.to_dict()],
        storage_probed="after",
        storage_probe_s=found.spent_ns / 1e9,
    )
