"""The tables that only scripts and jobs have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.report import units
from iobench.report.tables import NOT_APPLICABLE, TextTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.figures import Exposure
    from iobench.analysis.processes import ProcessWork
    from iobench.analysis.rank_figures import JobExposure, RankExposure

__all__ = ["heat_lines", "loader_table", "process_tables", "rank_table"]

MOST_RANKS: Final = 16
MOST_LOADERS: Final = 16
SHADES: Final = " .:-=+*#%@"


def loader_table(exposure: Exposure) -> TextTable:
    """Return one row for each loader: what it is, and what of the wait was for it."""
    longest = sorted(exposure.loaders, key=lambda each: -each.wait_ns)[:MOST_LOADERS]
    rows = [each for each in exposure.loaders if each in longest]
    waits, more = [each.wait_ns for each in rows], len(exposure.loaders) - len(rows)
    rest = f", the {len(rows)} waited for longest of {len(exposure.loaders)}" if more else ""
    unit, texts = units.durations([*waits, exposure.whole.wait_ns])
    return TextTable(
        title=f"Loaders{rest}",
        columns=(
            "loader",
            "class\n",
            "workers\n",
            "batch\nsize",
            "rounds\n",
            "batches\n",
            f"wait\n{unit}",
            "of the\nwait",
        ),
        rows=tuple(
            (
                f"{units.UNKNOWN if each.number is None else each.number}: "
                f"{each.name or units.UNKNOWN}{f' ({each.role})' if each.role else ''}",
                each.kind.rpartition(".")[2] or units.UNKNOWN,
                units.count(each.workers) if each.workers or not each.threads else "threads",
                units.count(each.batch_size),
                units.count(each.n_rounds),
                units.count(each.n_batches),
                texts[place],
                _share(each.wait_ns, exposure.whole.wait_ns),
            )
            for place, each in enumerate(rows)
        ),
        total=("all", "", "", "", "", units.count(exposure.whole.n_batches), texts[-1], ""),
    )


def process_tables(processes: Sequence[ProcessWork]) -> list[TextTable]:
    """Return a table of stages for each process."""
    return [_process_table(each) for each in processes if each.stages]


def _process_table(process: ProcessWork) -> TextTable:
    unit, texts = units.durations([row.busy_ns for row in process.stages])
    return TextTable(
        title=f"{process.process} (process {process.pid}), {units.duration(process.wall_ns)}",
        columns=("stage", f"busy\n{unit}", "handed\non", "on a\nCPU", "spans\n"),
        rows=tuple(
            (
                row.stage,
                texts[place],
                units.nbytes(row.nbytes),
                units.duration(row.cpu_ns),
                units.count(row.n_spans),
            )
            for place, row in enumerate(process.stages)
        ),
    )


def rank_table(job: JobExposure) -> TextTable:
    """Return the ranks that wait longest, and how many more there are."""
    shown = _slowest(job)
    some = any(each.comm_ns is not None for each in job.ranks)
    times: list[int | None] = [each.wait_ns for each in shown]
    times += [each.exposed_ns for each in shown]
    if some:
        times += [each.comm_ns for each in shown] + [each.peer_input_wait_ns for each in shown]
    unit, texts = units.durations(times)
    n_shown = len(shown)
    more = len(job.ranks) - n_shown
    rest = f", the {n_shown} that wait longest of {len(job.ranks)}" if more else ""
    columns = ("rank", "host\n", "batches\n", f"wait\n{unit}", "exposed\n", "last\nin steps")
    return TextTable(
        title=f"Ranks{rest}",
        columns=(
            *columns,
            f"alone\n{unit}",
            *((f"comm\n{unit}", f"peer input\nwait {unit}") if some else ()),
        ),
        rows=tuple(
            (
                str(each.rank),
                each.host or units.UNKNOWN,
                units.count(each.n_batches),
                texts[place],
                _share(each.wait_ns, each.wall_ns),
                units.count(each.n_last),
                *(texts[place + n_shown * column] for column in range(1, len(texts) // n_shown)),
            )
            for place, each in enumerate(shown)
        ),
    )


def heat_lines(job: JobExposure) -> list[str]:
    """Return rank by time: how much of each bin was waited, from blank to ``@``."""
    place = {each.rank: index for index, each in enumerate(job.ranks)}
    shown = sorted(each.rank for each in _slowest(job))
    width = max((len(str(rank)) for rank in shown), default=1)
    return [
        f"{rank:>{width}} |{_shades(job.matrix_ns[place[rank]], job.bin_ns)}|" for rank in shown
    ]


def _shades(row: Sequence[int], bin_ns: int) -> str:
    # Rounded up, so that blank is no wait at all.
    return "".join(SHADES[-(-value * (len(SHADES) - 1) // bin_ns)] for value in row)


def _slowest(job: JobExposure) -> list[RankExposure]:
    return sorted(job.ranks, key=lambda each: (-each.wait_ns, each.rank))[:MOST_RANKS]


def _share(part_ns: int, whole_ns: int) -> str:
    return units.fraction(part_ns / whole_ns) if whole_ns else NOT_APPLICABLE
