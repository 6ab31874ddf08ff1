"""The commands, in the order one uses them; each is made of its tables, and imported as it runs."""

from __future__ import annotations

from typing import Final

import click

from iobench.cli.command import (
    QUIET_OPTION,
    SETTINGS,
    CommandArgument,
    CommandText,
    make_command,
)

RUN_PATH: Final = CommandArgument("run", "RUN", "A run directory.", is_path=True)

Text, Argument = CommandText, CommandArgument
COMMANDS: Final = {
    "profile": Text(
        "measure",
        """Measure every stage of loading, in the workers, and which of it the training waits for.

        IOBENCH_ENERGY=off reads no counters of energy, IOBENCH_MONITOR=off none of the machine.
        IOBENCH_RUN_NAME is the run's name in reports, trackers and its directory.
        """,
        (Argument("targets", "NAME|FILE|STORE...", "A dataset, your own files, finished stores."),),
    ),
    "run": Text(
        "measure",
        """Profile any training script, not edited: every loader, in all its processes and ranks.

        Exit code, signals and output are the script's own; the report goes to stderr. Of several
        launchers (srun iobench run -- ...) all record into one run, and the first one prints.
        IOBENCH_ENERGY=off reads no counters of energy, IOBENCH_MONITOR=off none of the machine.
        """,
        (Argument("command", "-- COMMAND...", "As you would start it: torchrun, a shell script."),),
    ),
    "report": Text(
        "measure",
        "Print what a run measured; works for runs that were killed, too.",
        (Argument("run", "RUN", "A run directory; a folder of them is listed.", is_path=True),),
    ),
    "advise": Text(
        "measure",
        """Rank what would help by the gain predicted for it, with its cost and the command.

        Of a run directory it tells from what was recorded; of anything else it profiles the
        original files and one store of their samples first, in turns, unless --format says what.
        """,
        (Argument("words", "RUN|NAME...", "A run, or what iobench profile takes."),),
    ),
    "simulate": Text(
        "measure",
        "Predict samples/s and exposed share of a run on more ranks, and where storage saturates.",
        (RUN_PATH,),
    ),
    "convert": Text(
        "data",
        "Write samples into a standard container, verified and resumable, or say what it takes.",
        (
            Argument("sources", "SOURCE...", "A dataset's name, or files of your own."),
            Argument("out", "OUT", "Its folder or s3://bucket/prefix: new, or begun likewise."),
        ),
    ),
    "verify": Text(
        "data",
        "Read every byte of a store, compare all checksums, and the samples with their source.",
        (Argument("store", "STORE", "Folder of the store, or s3://bucket/prefix."),),
    ),
    "stage": Text(
        "data",
        "Copy a store or files once to a node's own disk: verified and resumable.",
        (Argument("source", "STORE|FOLDER|FILE", "What to copy."),),
    ),
    "list": Text("data", "List the datasets and store formats by the names other commands take."),
    "info": Text(
        "data",
        "Say what a dataset's samples are, a format's options, what a file or a store is.",
        (Argument("target", "NAME|FILE|STORE", "A name, a path or a URL."),),
    ),
    "synthesize": Text(
        "data",
        "Write files with exactly the layout of a dataset that cannot be downloaded.",
        (
            Argument("name", "NAME", "A dataset's name."),
            Argument("folder", "DIR", "Folder to write to.", is_path=True),
        ),
    ),
    "check": Text(
        "benchmarks",
        """Pass or fail a change, for CI: exit 0 passed, 3 regression, 4 inconclusive, 1 error.

        By counts that no machine changes (RUN --counts: more work fails, less passes), or by
        exposed time (RUN --max-exposed, RUN --against STORED).
        """,
        (RUN_PATH,),
    ),
    "compare": Text(
        "benchmarks",
        """Set runs side by side: what each stage and the loop take, as ratios with their intervals.

        Runs that took turns in one job are compared turn by turn. Whether samples are the same is
        known of runs made with --digests.
        """,
        (
            Argument(
                "runs",
                "RUN RUN...",
                "Two to eight run directories, or a folder of runs in turns. With --quarterly: "
                "folders of suites.",
                is_path=True,
            ),
        ),
    ),
    "suite": Text(
        "benchmarks",
        """Profile all cells of a recipe in rounds, and print each with its figures and spread.

        Killed or out of time, the same command continues where it was. Of processes that are
        given one folder one measures, and the others stand by.

        Recipes that come along: formats, loaders, maelstrom, mlperf-hpc, procurement, quick. Exits
        with 1 if a cell failed, with 75 if runs are left.
        """,
        (Argument("recipe", "RECIPE", "A .toml file, or the name of one that comes along."),),
    ),
    "limits": Text(
        "benchmarks",
        "Say how fast the files of a folder can be read, and by what: device, server or cache.",
        (Argument("path", "PATH", "A folder of existing files, or one of them."),),
    ),
    "doctor": Text(
        "installation",
        "Find every optional library and CliMetLab plugin, and say what installs those missing.",
    ),
}
"""What the help of each says, by the group that it is shown in."""


class _Commands(click.Group):
    """All commands, by groups."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section for each group."""
        for group in dict.fromkeys(text.group for text in COMMANDS.values()):
            with formatter.section(group.capitalize()):
                formatter.write_dl(
                    [
                        (name, text.help.partition("\n")[0])
                        for name, text in COMMANDS.items()
                        if text.group == group
                    ]
                )


def make_app() -> click.Group:
    """Return the command line application."""
    app = _Commands(
        "iobench",
        commands={name: make_command(name, text) for name, text in COMMANDS.items()},
        params=[QUIET_OPTION],
        help="Where does training on weather and climate data wait for its data, and why?",
        context_settings=SETTINGS,
    )
    return click.version_option(package_name="iobench", message="iobench %(version)s")(app)
