"""The whole page: of one run, of runs compared, or of a job of several training processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from iobench.analysis.run import Run
from iobench.errors import ProfileError
from iobench.profiles.reading import RankProfiles
from iobench.report import lines, script_lines, units
from iobench.report.job_report import make_job
from iobench.report.json_report import reports_to_json
from iobench.report.next_steps import next_steps
from iobench.report.published_tables import published_table
from iobench.report.run_report import make_reports
from iobench.report.sentences import today_sentence
from iobench.report.timeline.page_payload import SPAN_LIMIT, timeline_payload
from iobench.report.webpage import page_tables, shell
from iobench.report.webpage.epochs_part import epochs_table
from iobench.report.webpage.figures import PageFigures
from iobench.report.webpage.views import job_view, run_view
from iobench.report.written import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from iobench.profiles.contents import Profile
    from iobench.report.run_report import RunReport
    from iobench.report.timeline.page_payload import TimelinePayload
    from iobench.report.webpage.page_tables import PageTable
    from iobench.storage.traces.contents import StorageTrace

__all__ = ["render_html", "write_html"]

MOST_RUNS: Final = 8
"""Ranks of a job that have a part of their own, those that wait longest; JSON has them all."""


def write_html(
    path: Path | str,
    profiles: Sequence[Profile],
    traces: Mapping[Path, StorageTrace] | None = None,
    reports: Sequence[RunReport] | None = None,
) -> None:
    """Write the report of profiles as one page that opens offline.

    Parameters
    ----------
    path : Path or str
    profiles : sequence of Profile
        One, or one per format of the same samples, or one per rank of a job.
    traces : mapping of Path to StorageTrace, optional
        What a tracer saw of them, by run directory.
    reports : sequence of RunReport, optional
        From `make_reports` of these profiles and traces, where that was done before.

    Raises
    ------
    MissingExtraError
        If Jinja2 is not installed.
    ProfileError
        If a profile cannot be analysed, or there is none.
    StorageError
        If the file cannot be written; what was there is then untouched.
    """
    write_whole(path, render_html(profiles, traces, reports))


def render_html(
    profiles: Sequence[Profile],
    traces: Mapping[Path, StorageTrace] | None = None,
    reports: Sequence[RunReport] | None = None,
) -> str:
    """Return the page that `write_html` writes."""
    environment = shell.make_environment()
    reports = make_reports(profiles, traces) if reports is None else reports
    if not reports:
        raise ProfileError("no run to report: expected at least one profile with spans")
    document = reports_to_json(reports)
    figures = PageFigures(document)
    job = make_job(reports)
    shown = _shown(reports, is_job=job is not None)
    names = {number: _name(reports[number], is_job=job is not None) for number in shown}
    payloads, epochs = _of_profiles(profiles, reports, shown)
    styles, scripts = shell.styles(), shell.scripts()
    published = published_table(profiles) if job is None else None
    compared = job is None and len(reports) > 1
    return environment.get_template("page.html.j2").render(
        policy=shell.policy(styles, scripts),
        styles=styles,
        scripts=scripts,
        document=document,
        fig=figures,
        title=_title(reports),
        job=None if job is None else job_view(reports, job, figures),
        compared=page_tables.compared_table(figures, shown, list(names.values()))
        if compared
        else None,
        today=today_sentence(reports),
        published=None if published is None else page_tables.plain_table(published),
        steps=next_steps(
            [reports[number] for number in shown] if compared else [reports[shown[0]]]
        ),
        command=reports[0].facts.command,
        n_left_out=units.count(len(reports) - len(shown)) if len(shown) < len(reports) else "",
        payloads=payloads,
        runs=[
            run_view(
                reports[number],
                figures,
                number,
                names[number],
                _told(payloads.get(number)),
                epochs=epochs.get(number),
                in_job=job is not None,
            )
            for number in shown
        ],
    )


def _shown(reports: Sequence[RunReport], *, is_job: bool) -> list[int]:
    """Return the places of the reports that have a part of their own, in the order of the tabs."""
    places = range(len(reports))
    if not is_job:
        return list(places)
    longest = sorted(places, key=lambda place: -reports[place].exposure.whole.wait_ns)
    return longest[:MOST_RUNS]


def _of_profiles(
    profiles: Sequence[Profile], reports: Sequence[RunReport], shown: Sequence[int]
) -> tuple[dict[int, TimelinePayload], dict[int, PageTable | None]]:
    """Return the spans of the runs shown, as many in all as a page can hold, and their epochs."""
    limit = SPAN_LIMIT // len(shown)
    payloads, epochs = {}, {}
    for number in shown:
        report = reports[number]
        profile = _profile_of(profiles, report)
        if profile is None or not len(profile.spans):
            continue
        run = Run(profile)
        payloads[number] = timeline_payload(run, limit)
        if report.exposure.whole.n_batches:
            epochs[number] = epochs_table(run.of_rank(report.exposure.rank))
    return payloads, epochs


def _profile_of(profiles: Sequence[Profile], report: RunReport) -> Profile | None:
    """Return the profile a report was made of; of a job's ranks only the one that is asked for."""
    rank = report.exposure.rank
    if isinstance(profiles, RankProfiles):
        return profiles[profiles.ranks.index(rank)]
    for profile in profiles:
        if str(profile.path) == report.run and profile.rank in (None, rank):
            return profile.of_rank(rank) if len(profile.ranks) > 1 else profile
    return None


def _told(payload: TimelinePayload | None) -> dict[str, Any] | None:
    """Return what the page says of the spans it carries, and of those it does not."""
    if payload is None:
        return None
    meta, said = payload.meta, []
    if meta["n_shown"] < meta["n_spans"]:
        said.append(
            f"Not all is drawn: this page carries {units.count(meta['n_shown'])} of "
            f"{units.count(meta['n_spans'])} spans: waits first, then what was waited for longest, "
            "and a uniform sample of the rest. All other figures are of all spans."
        )
    if meta["n_names_left_out"]:
        said.append(f"{units.count(meta['n_names_left_out'])} file names are left out.")
    return {"said": said}


def _name(report: RunReport, *, is_job: bool) -> str:
    if is_job:
        return f"rank {report.exposure.rank}"
    return report.facts.label or report.run or "unnamed run"


def _title(reports: Sequence[RunReport]) -> str:
    if reports[0].facts.is_script:
        return script_lines.script_title(reports, make_job(reports))
    return lines.title_line(reports)
