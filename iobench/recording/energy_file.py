"""What counters of energy showed during a run, one file for each machine, ``energy/<host>.jsonl``.

Lines of JSON, each appended by one write, so that what was read before a process was killed is
there, and a line that was cut off is the last one::

    {"version": 1, "host": ..., "boot_id": ..., "pid": ..., "period_ns": ...,
     "sources": [{"name": ..., "kind": ..., "title": ..., "by": ..., "period_ns": ...,
                  "wraps_uj": ..., "estimated": ...}, ...],
     "unreadable": [{"kind": ..., "reason": ...}, ...]}
    [time_ns, offset_ns, microjoules, offset_ns, microjoules, ...]
    {"time_ns": ..., "usage": [[0, percent, bytes], ...]}
    {"failed": 0, "reason": ...}
    {"readings": 256, "cpu_ns": ...}
    {"closed": true, "readings": ..., "cpu_ns": ...}

A reading has the monotonic time, and of each source, in the order of the first line, how much
later it was read and the counter's own value; null where it could not be read. The first time a
source cannot, a line says why. What reading took is told now and then. Of GPUs, by their place
among the sources: for how much of the time they were busy lately, and how much of their memory is
taken.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import ProfileError
from iobench.frozen import frozen
from iobench.json_files import LARGEST_NBYTES, read_fields, read_small_file
from iobench.recording.energy_counters import EnergyHead, EnergySource, UnreadableEnergy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

ENERGY_VERSION: Final = 1
LARGEST: Final = 1 << 60
MOST_WATTS: Final = 10_000
"""No processor or GPU takes more: a counter that would say so was set back, and did not wrap."""


@frozen(eq=False)
class EnergySeries:
    """One counter's readings.

    Parameters
    ----------
    time_ns : ndarray of int64, shape (n_readings,)
        Monotonic, rising.
    energy_uj : ndarray of int64, shape (n_readings,)
        Microjoules since the first reading; never falls.
    n_resets : int
        How often the counter was set back: what it had counted by then since the reading before
        is in nothing.
    n_failed : int
        Readings that could not be made.
    """

    source: EnergySource
    time_ns: NDArray[np.int64]
    energy_uj: NDArray[np.int64]
    n_resets: int
    n_failed: int


@frozen
class GpuReading:
    """What a driver told of the use of a GPU.

    Parameters
    ----------
    source : EnergySource
        Its counter.
    time_ns : int
        Monotonic.
    busy_percent : int or None
        For how much of the time it was busy lately, None where that is unknown.
    used_nbytes : int or None
        How much of its memory was taken.
    """

    source: EnergySource
    time_ns: int
    busy_percent: int | None
    used_nbytes: int | None


@frozen(eq=False)
class HostEnergy:
    """What one machine's counters showed.

    Parameters
    ----------
    period_ns : int
        Time between two readings.
    unreadable : tuple of UnreadableEnergy
        What could not be read, or not any more, and why.
    n_readings : int
        Of all sources together.
    cpu_ns : int or None
        CPU time that reading took; None where it was not told.
    n_timed : int
        Readings that ``cpu_ns`` is of.
    n_damaged : int
        Lines that cannot be read.
    closed : bool
        Whether its reader ended by itself.
    usage : tuple of GpuReading
        In order of time.
    """

    host: str
    boot_id: str
    period_ns: int
    series: tuple[EnergySeries, ...]
    unreadable: tuple[UnreadableEnergy, ...]
    n_readings: int
    cpu_ns: int | None
    n_timed: int
    n_damaged: int
    closed: bool
    usage: tuple[GpuReading, ...] = ()


def first_line(head: EnergyHead) -> dict[str, Any]:
    """Return what a file begins with."""
    return {"version": ENERGY_VERSION, **asdict(head)}


def read_energy(run: Path) -> tuple[HostEnergy, ...]:
    """Return what the counters of a run's machines showed, by name; nothing where nobody looked.

    Raises
    ------
    ProfileError
        If a file is of another version.
    """
    found = []
    for path in sorted((run / "energy").glob("*.jsonl")):
        try:
            # A line that has no end was cut off.
            lines = read_small_file(path, limit=LARGEST_NBYTES).split(b"\n")[:-1]
        except OSError:
            lines = []
        found.append(_host_energy(path, lines))
    return tuple(found)


def _host_energy(path: Path, lines: Sequence[bytes]) -> HostEnergy:
    head = _parsed(lines[0]) if lines else None
    version = head.get("version") if isinstance(head, dict) else ENERGY_VERSION
    if version != ENERGY_VERSION:
        raise ProfileError(
            f"{path}: readings of version {str(version)[:40]}, expected {ENERGY_VERSION}; use the "
            "iobench that wrote them"
        )
    try:
        about = _described(head)
    except (AttributeError, TypeError, ValueError):
        return _untold(path, n_lines=len(lines))
    rows: list[list[int | None]] = []
    notes: list[dict[str, Any]] = []
    n_damaged = 0
    for line in lines[1:]:
        told = _parsed(line)
        if isinstance(told, dict):
            notes.append(told)
        elif _is_reading(told, len(about.sources)) and not (rows and told[0] <= (rows[-1][0] or 0)):
            rows.append(told)
        else:
            n_damaged += 1
    cpu_ns, n_timed = _took(notes)
    return HostEnergy(
        host=about.host,
        boot_id=about.boot_id,
        period_ns=about.period_ns,
        series=tuple(_series(source, place, rows) for place, source in enumerate(about.sources)),
        unreadable=(*about.unreadable, *_failures(about.sources, notes)),
        n_readings=len(rows),
        cpu_ns=cpu_ns,
        n_timed=n_timed,
        n_damaged=n_damaged,
        closed=any(note.get("closed") is True for note in notes),
        usage=tuple(_usage(about.sources, notes)),
    )


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _described(told: Any) -> EnergyHead:
    head = read_fields(EnergyHead, told)
    periods = [head.period_ns, *(each.period_ns for each in head.sources)]
    if not all(map(_is_number, [*periods, *(each.wraps_uj or 0 for each in head.sources)])):
        raise ValueError(told)
    return head


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def _is_reading(told: Any, n_sources: int) -> bool:
    if not isinstance(told, list) or len(told) != 1 + 2 * n_sources:
        return False
    values = [value for value in told[2::2] if value is not None]
    return all(map(_is_number, [told[0], *told[1::2], *values]))


def _untold(path: Path, *, n_lines: int) -> HostEnergy:
    """Return what is left of a file whose beginning is not there."""
    reason = "nothing was read yet" if not n_lines else "the file of the readings is damaged"
    unreadable = tuple(UnreadableEnergy(kind, reason) for kind in ("gpu", "cpu", "memory"))
    return HostEnergy(path.stem, "", 0, (), unreadable, 0, None, 0, n_lines, closed=False)


def _took(notes: Sequence[Mapping[str, Any]]) -> tuple[int | None, int]:
    for note in reversed(notes):
        if _is_number(note.get("cpu_ns")) and _is_number(note.get("readings")):
            return note["cpu_ns"], note["readings"]
    return None, 0


def _usage(
    sources: Sequence[EnergySource], notes: Sequence[Mapping[str, Any]]
) -> Iterator[GpuReading]:
    """Yield what notes tell of the use of GPUs, but for what cannot be."""
    for note in notes:
        time_ns, told = note.get("time_ns"), note.get("usage")
        if not isinstance(time_ns, int) or not _is_number(time_ns) or not isinstance(told, list):
            continue
        for each in told:
            if not isinstance(each, list) or len(each) != 3:
                continue
            place, percent, nbytes = each
            if _is_number(place) and place < len(sources):
                percent = percent if _is_number(percent) and percent <= 100 else None
                nbytes = nbytes if _is_number(nbytes) else None
                yield GpuReading(sources[place], time_ns, percent, nbytes)


def _failures(
    sources: Sequence[EnergySource], notes: Sequence[Mapping[str, Any]]
) -> list[UnreadableEnergy]:
    found = []
    for note in notes:
        place = note.get("failed")
        if type(place) is int and 0 <= place < len(sources):
            source = sources[place]
            reason = f"{source.title}: {note.get('reason')}, during the run"
            found.append(UnreadableEnergy(source.kind, reason))
    return found


def _series(source: EnergySource, place: int, rows: Sequence[Sequence[int | None]]) -> EnergySeries:
    times: list[int] = []
    values: list[int] = []
    n_failed = 0
    for row in rows:
        begun, offset, value = row[0], row[1 + 2 * place], row[2 + 2 * place]
        if value is None or begun is None or offset is None:
            n_failed += 1
        elif not times or begun + offset > times[-1]:
            times.append(begun + offset)
            values.append(value)
    steps, n_resets = [0] if times else [], 0
    for number in range(1, len(times)):
        step = values[number] - values[number - 1]
        if step < 0:
            wrapped = step + (source.wraps_uj or 0)
            # A watt for a nanosecond is a thousandth of a microjoule.
            most = MOST_WATTS * (times[number] - times[number - 1]) // 1000
            if source.wraps_uj is not None and 0 <= wrapped <= most:
                step = wrapped
            else:
                step, n_resets = values[number], n_resets + 1
        steps.append(step)
    return EnergySeries(
        source,
        np.array(times, dtype=np.int64),
        np.cumsum(np.array(steps, dtype=np.int64)),
        n_resets,
        n_failed,
    )
