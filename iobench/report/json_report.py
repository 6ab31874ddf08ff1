"""Reports for machines: plain values for strict JSON, unrounded; unknown is null, never 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from iobench.analysis.diagnosis import diagnose
from iobench.report.energy_json import energy_to_json
from iobench.report.energy_lines import job_energy
from iobench.report.exposure_json import long_waits_to_json, phases_to_json, window_to_json
from iobench.report.job_report import job_to_json, make_job
from iobench.report.limit_lines import limit_to_json
from iobench.report.next_steps import next_steps
from iobench.report.replay_lines import replay_to_json
from iobench.report.run_report import make_reports
from iobench.report.script_json import loader_to_json, other_loop_to_json, script_to_json
from iobench.report.sentences import verdict_sentence
from iobench.report.storage_json import storage_to_json
from iobench.report.units import seconds
from iobench.report.utilisation_lines import digests_to_json, utilisation_to_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from iobench.analysis.conversion import FullConversion
    from iobench.analysis.diagnosis import Diagnosis
    from iobench.analysis.figures import Exposure, PartExposure
    from iobench.profiles.contents import Profile
    from iobench.report.facts import RunFacts
    from iobench.report.run_report import RunReport
    from iobench.storage.traces.contents import StorageTrace

__all__ = ["JSON_VERSION", "exposure_to_dict", "reports_to_json", "to_json"]

JSON_VERSION: Final = 1
"""Raised when a key changes its meaning or goes; new keys do not raise it."""


def to_json(
    profiles: Sequence[Profile], traces: Mapping[Path, StorageTrace] | None = None
) -> dict[str, Any]:
    """Return ``{"runs": [...], "job": ...}`` for ``json.dumps(allow_nan=False)``.

    There is one run for each profile, of a job of several training processes one for each rank.

    ``_ns`` are integers; ``_s`` are the same integers over 10**9; fractions are from 0 to 1. What
    is not known is null. Each run has

    - ``schema_version``; ``run``: its directory.
    - ``dataset``, ``format``, ``pipeline`` (``"own"``, ``"upstream"``, ``"climetlab"``; of scripts
      null), ``described_by`` (where a pipeline that is not our own is described), ``framework``,
      ``stand_in`` (generated files), ``tiny`` (the small ones), ``workers``, ``threads`` (of the
      ring), ``prefetch``,
      ``batch_size``, ``n_samples`` (it could draw from), ``sample_nbytes``.
    - ``verdict``: the sentence; ``diagnosis``: the same as data, ``verdict`` one of ``"no batch"``,
      ``"no compute"``, ``"hidden"``, ``"partly hidden"``, ``"I/O-bound"``; ``window``: what it
      is about, ``"recurring"`` (epochs after the first of a script), else ``"steady"``, else
      ``"whole"``; ``steady`` whether it is about the steady state; ``top_stage``;
      ``wait_fraction``, ``top_fraction``, ``unknown_fraction``, ``hidden_fraction``,
      ``start_fraction`` (waits outside the steady state, of the whole run), ``again_fraction`` (the
      same of the epochs after the first).
    - ``replay`` (null for jobs of more than 16 ranks): ``error_fraction`` of the unmodified run
      (null with a ``reason``), ``withheld`` (above 10 %: no savings follow), ``batches`` replayed,
      ``is_part``; ``window`` that savings are of, as the verdict's, and
      its ``wall_s``; ``factor`` of a stage's time, ``joint_fraction`` of ``wall_s`` saved
      if all stages took it, ``no_single_stage_helps`` (each under 1 %),
      ``stages``: ``[{stage, saved_fraction, low_fraction, high_fraction}]``, the last two what
      another run may save (null of too few batches); ``together``: the same of the fewest
      ``stages`` that save nearly as much as all, null where one does.
    - ``next_steps``: ``[{reason, command}]``.
    - of the whole run, again of its steady state under ``steady``, and of a script's whole epochs
      after the first, with what each starts and ends with, under ``recurring`` (null if there is
      none):

      - ``batches``, ``samples``, ``nbytes``: delivered. ``wall_s`` = ``wait_s`` + ``compute_s``;
        ``wait_s``, ``wait_ns``: the training loop blocked for its next batch; ``compute_s``:
        everything else. ``samples_per_s`` and ``bytes_per_s``: delivered over wall.
      - ``wait_fraction``: exposed share; ``accelerator_utilisation``: compute over wall.
      - ``exposed_ns``: wait by stage (``kind`` or ``kind:label``), sums to ``wait_ns`` exactly.
      - ``stages``: a row for every stage: ``stage``, ``busy_s`` = ``hidden_s`` + ``exposed_s``,
        ``nbytes`` handed on, ``n_spans``, ``cpu_s`` on a CPU, ``off_cpu_s`` the rest of busy,
        ``busy_bytes_per_s``, ``wait_fraction``: its part of the wait.
      - ``compute_stages``: ``[{stage, busy_s, n_spans}]`` of the training loop itself.
      - ``wait_per_step``: ``n_steps``, ``min_s``, ``mean_s``, ``median_s``, ``max_s``, ``stdev_s``.
      - ``read_nbytes``: bytes the loading processes read by the system's count, cached or not;
        ``read_per_byte``: the same for each byte delivered.
      - ``decoded``: of chunks that samples share, ``nbytes`` decoded and ``used_nbytes`` of them,
        ``per_used`` their quotient, ``chunks_needed`` and ``chunks_decoded`` (the others were
        kept); null where it was not counted.
      - ``cold_fraction``: bytes fetched from the device over bytes read.
      - ``overhead_fraction``: time spent recording over the time of the loop or of its workers,
        the larger; where none measured it, by what a span costs, over the time of all processes.
      - ``estimated_fraction``: batches whose samples are too short to time each, and whose time
        is split among stages as in the others, over all batches.
      - ``dataset`` to ``batch_size``, ``lost_spans``, ``missing_workers`` and ``verdict`` stand
        in both, so that both are read by the same code.

    - ``waits_ns``: the wait of each delivered batch, in order.
    - ``folded``: null but for runs too long to be kept whole (then all else is of the batches
      that are kept): of those before, ``batches``, ``wait_s``, ``wall_s``, exactly, and ``busy_s``
      by stage; ``all_wait_fraction``: exposed share of these and the kept ones together.
    - ``phases``: ``{startup, fill, steady, drain: {wall_s, wait_s, wait_fraction,
      n_deliveries}}``.
    - ``long_waits``: few waits that hold much of the run, null if there are none: ``n_waits``,
      ``n_steps``, ``wait_s``, ``typical_s``, ``excess_fraction``, ``period_steps``,
      ``in_step`` (the workers finish together, one step waits for all),
      ``coincidences``: ``[{what, n_long, n_steps}]``.
    - ``compute``: the emulated step: ``step_s`` = ``forward_s`` + ``backward_s``, ``source``.
    - ``published``: the published wait of a step: ``source``, ``exposed_io_s``: ``{min, mean,
      median, max, stdev}``.
    - ``cache``: ``asked``, ``resident_fraction_before``, ``cold_known`` (the file system tells).
    - ``setup_s``: seconds before the run by what for, in no other figure. ``store``: what was
      read: ``path``, ``probe``, ``reused``, ``convert_s``, ``nbytes``, ``n_samples``,
      ``n_samples_all``. ``full_conversion``: of all samples, in proportion: ``n_samples``,
      ``nbytes``, ``convert_s``, ``saved_s`` (by an epoch, against the original files of the same
      run), ``payback_epochs``; null for a run on the original files.
    - ``lost_spans``: not written or not readable; ``missing_workers``: names of those that left
      no spans; ``unclosed_processes``, ``damaged_processes``: names of those that were killed or
      whose spans are partly unreadable; ``rounds``, ``unfinished_rounds``.
    - ``overhead_once_s``: the most that recording took of a process once, besides
      ``overhead_fraction``; null where none measured it.
    - ``machine``, ``iobench_version``, ``command``, ``files_hint``: as in ``run.json``.
    - of scripts: ``kind`` (``"script"``, else ``"profile"``); ``rank``; ``steps`` ([first, end] of
      the recording window); ``loaders``: ``[{number, framework, kind, name, workers, prefetch,
      threads, batch_size, rounds, batches, wait_s, wait_ns, role}]``, whose waits add up to
      ``wait_ns``, with ``role`` ``"training"``, ``"evaluation"`` or null where nobody tells;
      ``job_s``: from the start of the process to the end of the recording, ``loop_fraction``: the
      training loop's share of it, both null where that is not known;
      ``dataset``, ``framework``, ``batch_size`` are what the loaders have in common, ``workers``
      and ``prefetch`` those of the one that trains, else with most batches; ``other_loops``:
      ``[{process, pid, thread, waits, wait_s}]``, threads that waited as well and are in no figure;
      ``failed_waits``; ``unseen``: what could not be observed, in words; ``children``: commands of
      processes that do not record; ``ended``: ``"closed"``, an exception, or null; ``device``:
      what the devices waited for, null where none were timed; ``operators``: the wait for
      ``opaque`` stages by operations of the loaders that tell sums of these, always an estimate:
      ``[{loader, operation, kind, busy_s, occupied_s, exposed_s, exposed_ns, estimated}]``.
      ``waits_ns`` is null for jobs of more than 16 ranks.
    - ``storage``: what storage did (null for jobs of more than 16 ranks): ``traced`` (null without
      logs of a tracer): how much of the run they cover, and by how much each clock was moved;
      ``bytes``: ``[{scope, name, asked_nbytes, posix_nbytes, stdio_nbytes, segments_nbytes,
      rchar_nbytes, device_nbytes, gaps: [{name, nbytes, between}], settled}]``, the run first;
      ``stages``: ``[{stage, busy_s, storage_s, rest_s, rest_is_bound, off_cpu_s, nbytes,
      verdict}]``; ``costliest_reads``; ``access``: sizes, order and factors of the reads.
    - ``storage_limit``: what was used of what ``iobench limits`` had found when the run was made;
      null without: ``used_bytes_per_s`` (bytes read over wall time), ``limit_bytes_per_s`` (of
      reads served alike), ``served_by``, ``threads``, ``request_nbytes``, ``mount``,
      ``probed_wall_ns`` (since the epoch).
    - ``mlperf_utilisation``: accelerator utilisation by the formula of MLPerf Storage, which leaves
      the first step of each round out; null without a batch: ``formula``, ``fraction``
      (null where no step is left), ``stdev_fraction`` of the epochs, ``missing``: what it lacks to
      1 by stage; ``epochs``: ``[{epoch, fraction}]``; ``stretches``: ``[{epoch, n_steps, total_ns,
      compute_ns, missing_ns}]``, where ``missing_ns`` adds up to the rest exactly; ``n_counted``
      steps, ``n_ranks``, ``mlperf_storage_thresholds``.
    - ``digests``: of the samples delivered, null without ``--digests``: ``hash``, ``n_samples``,
      ``n_unknown_batches``, ``n_damaged``, ``epochs``: ``[{loader, epoch, n_samples, is_complete,
      digest}]``, the same digest for the same samples in any order.
    - ``energy``: null where nobody looked; what could not be read is in ``not_readable``, with the
      ``reason``, and never 0. ``readable``; ``kinds``: of ``gpu``, ``cpu``, ``memory`` and
      ``machine`` (which has the others in it) those that could be read: ``total_uj`` =
      ``wait_uj`` + ``compute_uj``, whole microjoules of the rounds' time and of the training
      loop's waits in it; the same as ``_j`` and ``_wh``; ``wait_fraction``; ``j_per_epoch`` (mean
      of the complete ones), ``j_per_sample``; ``total_between_j``, ``wait_between_j``: what it may
      be, whatever happened between two readings; ``exposed_uj``: the waits' by stage, in
      proportion to time, adds up to ``wait_uj``; ``covered_fraction``: of the run, by readings;
      ``estimated``: from readings of power; ``resolution_s``: shorter waits are told by their
      share of the time between readings. ``epochs``: ``[{epoch, complete, batches, kinds:
      {kind: {total_j, wait_j}}}]``; ``sources``: ``[{name, kind, title, by, host, estimated,
      total_j, wait_j, covered_s, readings, resets, failed_readings, resolution_s}]``, one for each
      counter; ``sharing_ranks``: training processes that have equal parts of a machine's;
      ``period_s`` between readings, ``reading_cpu_s`` for one of them; ``damaged_readings``.
    - where nothing asked a loader for batches, the figures of the wait and ``phases`` are null,
      and ``processes`` (else null) tells what each process did: ``[{process, pid, host, rank,
      wall_s, stages: [{stage, busy_s, n_spans, nbytes, cpu_s}]}]``.

    ``job`` is null unless there were several training processes. Step by step, it compares them:
    ``world_size``; ``steps``; ``single_rank_steps`` (in no other figure); ``wall_s``; ``wait_s``,
    ``wait_fraction``: the wait of each step's last rank; ``exposed_s``, ``exposed_fraction``: the
    part in which all others had their batch; ``imbalance``: largest over mean wait of a rank;
    ``hosts``; ``clock_uncertainty_s`` (null on one machine), ``uncertain_steps``; ``ranks``:
    ``[{rank, host, batches, wall_s, wait_s, wait_fraction, steps_last, exposed_s, comm_s,
    peer_input_wait_s}]``; ``missing_ranks``: ``[{rank, host, what}]``; ``wait_matrix_s``: by rank
    and time, in bins of ``bin_s``; ``energy``: as of a run, each machine's counters once.

    Raises
    ------
    ProfileError
        If a profile cannot be analysed.
    """
    return reports_to_json(make_reports(profiles, traces))


def reports_to_json(reports: Sequence[RunReport]) -> dict[str, Any]:
    """Return what `to_json` does, for runs analysed already."""
    job = job_to_json(make_job(reports))
    if job is not None:
        job["energy"] = energy_to_json(job_energy(reports))
    return {"runs": [_run(report) for report in reports], "job": job}


def exposure_to_dict(exposure: Exposure) -> dict[str, Any]:
    """Return what `to_json` says of a run, as far as it follows from the exposure alone."""
    diagnosis = diagnose(exposure)
    shared = {
        "workers": exposure.workers,
        "lost_spans": exposure.lost_spans,
        "missing_workers": list(exposure.missing_workers),
        "verdict": verdict_sentence(diagnosis),
    }
    return {
        "schema_version": JSON_VERSION,
        **shared,
        "prefetch": exposure.prefetch,
        "diagnosis": _diagnosis(diagnosis),
        **_measured(exposure, shared),
    }


def _measured(exposure: Exposure, shared: Mapping[str, Any]) -> dict[str, Any]:
    whole, waits_ns = exposure.whole, exposure.whole.waits_ns
    figures = window_to_json(whole)
    if not exposure.has_consumer:
        figures = dict.fromkeys(figures) | {"batches": 0, "stages": [], "compute_stages": []}
    return {
        **figures,
        "steady": _part(exposure.steady, shared),
        "recurring": _part(exposure.recurring, shared),
        "waits_ns": list(waits_ns) if len(waits_ns) == whole.n_batches else None,
        "phases": phases_to_json(exposure) if exposure.has_consumer else None,
        "long_waits": long_waits_to_json(exposure.long_waits),
        "folded": _folded(exposure),
        "rounds": exposure.n_rounds,
        "job_s": None if exposure.job_ns is None else seconds(exposure.job_ns),
        "loop_fraction": exposure.loop_fraction,
        "unfinished_rounds": exposure.n_unfinished_rounds,
        "overhead_once_s": _seconds(exposure.overhead_once_ns),
        "rank": exposure.rank,
        "loaders": [loader_to_json(each) for each in exposure.loaders],
        "other_loops": [other_loop_to_json(each) for each in exposure.other_loops],
        "failed_waits": exposure.n_failed_waits,
    }


def _folded(exposure: Exposure) -> dict[str, Any] | None:
    folded, wall_ns = exposure.folded, exposure.all_wall_ns
    if folded is None:
        return None
    return {
        "batches": folded.n_batches,
        "wait_s": seconds(folded.wait_ns),
        "wall_s": seconds(folded.wall_ns),
        "busy_s": {stage: seconds(spent_ns) for stage, spent_ns in folded.busy_ns.items()},
        "all_wait_fraction": exposure.all_wait_ns / wall_ns if wall_ns else None,
    }


def _part(part: PartExposure | None, shared: Mapping[str, Any]) -> dict[str, Any] | None:
    return None if part is None else {**shared, **window_to_json(part)}


def _run(report: RunReport) -> dict[str, Any]:
    facts, exposure = report.facts, report.exposure
    shared = _shared(report)
    return {
        "schema_version": JSON_VERSION,
        "run": report.run,
        **shared,
        "tiny": facts.tiny,
        "described_by": facts.described_by,
        "prefetch": exposure.prefetch,
        "n_samples": facts.n_samples,
        "sample_nbytes": facts.sample_nbytes,
        "diagnosis": _diagnosis(report.diagnosis),
        "replay": replay_to_json(report.diagnosis.replay),
        "next_steps": [
            {"reason": step.reason, "command": step.command} for step in next_steps([report])
        ],
        **_measured(exposure, shared),
        **_circumstances(facts),
        "full_conversion": _full_conversion(report.conversion),
        "unclosed_processes": list(report.unclosed),
        "damaged_processes": list(report.damaged),
        "storage": storage_to_json(
            report.storage, tuple(process.name for process in report.who), report.trace
        ),
        "storage_limit": limit_to_json(report),
        "mlperf_utilisation": utilisation_to_json(report.utilisation),
        "digests": digests_to_json(report.samples),
        "energy": energy_to_json(report.energy),
        **script_to_json(report),
    }


def _shared(report: RunReport) -> dict[str, Any]:
    facts, exposure = report.facts, report.exposure
    return {
        "dataset": facts.dataset,
        "format": facts.format,
        "pipeline": None if facts.is_script else facts.pipeline,
        "framework": facts.framework,
        "threads": facts.threads,
        "stand_in": facts.stand_in,
        "workers": exposure.workers,
        "batch_size": facts.batch_size,
        "lost_spans": exposure.lost_spans,
        "missing_workers": list(exposure.missing_workers),
        "verdict": verdict_sentence(report.diagnosis),
    }


def _diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "verdict": diagnosis.verdict.value,
        "steady": diagnosis.window == "steady",
        "window": diagnosis.window,
        "top_stage": diagnosis.top_stage,
        **{
            f"{name}_fraction": getattr(diagnosis, f"{name}_fraction")
            for name in ("wait", "top", "unknown", "hidden", "start", "again")
        },
    }


def _circumstances(facts: RunFacts) -> dict[str, Any]:
    return {
        "compute": {
            "step_s": _seconds(facts.step_ns),
            "forward_s": _seconds(facts.forward_ns),
            "backward_s": _seconds(facts.backward_ns),
            "source": facts.compute_source,
        },
        "published": None
        if facts.published_s is None
        else {"source": facts.published_source, "exposed_io_s": dict(facts.published_s)},
        "cache": {
            "asked": facts.cache_asked,
            "resident_fraction_before": facts.resident_fraction_before,
            "cold_known": facts.cold_known,
        },
        "setup_s": dict(facts.setup_s),
        "store": _plain(facts.store),
        "machine": _plain(facts.machine),
        "iobench_version": facts.iobench_version,
        "command": facts.command,
        "files_hint": facts.files_hint,
    }


def _full_conversion(full: FullConversion | None) -> dict[str, Any] | None:
    if full is None:
        return None
    return {
        "n_samples": full.n_samples,
        "nbytes": full.nbytes,
        "convert_s": full.convert_s,
        "saved_s": full.saved_s,
        "payback_epochs": full.payback_epochs,
    }


def _plain(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if values is None else dict(values)


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else seconds(ns)
