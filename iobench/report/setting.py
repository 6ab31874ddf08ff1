"""What ran, on what, and what was done before: titles, banners and the configuration's section."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.report import units
from iobench.report.document import Command, Quantity, Section, Table, columns, sentences
from iobench.runs.run_facts import OWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from iobench.analysis.exposure_figures import LoaderExposure, PartExposure
    from iobench.recording.script_run import ScriptCommit
    from iobench.report.document import Cell, Sentence, Unit
    from iobench.report.run_report import RunReport
    from iobench.runs.run_facts import DeviceFacts, LinkFacts, RunFacts

SOURCE: Final = "source"
SHORT_HASH: Final = 12
DEVICE_KEYS: Final = ("memory_nbytes", "title")
MUCH_DECODED: Final = 2.0
"""Bytes decoded for each one used, above which a report says what chunks would fit."""
STAND_IN: Final = "STAND-IN: generated files, not the real dataset"
TINY: Final = "and TINY: fewer, for most datasets also smaller samples"


def title(reports: Sequence[RunReport]) -> str:
    """Return dataset, formats and loader of profiles, or the command of a script."""
    return _script_title(reports) if reports[0].facts.is_script else _profile_title(reports)


def _profile_title(reports: Sequence[RunReport]) -> str:
    facts = [each.facts for each in reports]
    what = f"{facts[0].dataset or 'unnamed dataset'} as "
    what += _distinct((each.label or units.UNKNOWN for each in facts), ", ")
    frameworks = (each.framework or units.UNKNOWN for each in facts)
    loaders = (_workers(each.exposure.workers, each.facts.threads) for each in reports)
    sizes = (units.count(each.batch_size) for each in facts)
    batches = (units.count(each.exposure.whole.n_batches) for each in reports)
    return (
        f"{facts[0].called(what)}: "
        f"loader {_distinct(frameworks)}, {_distinct(loaders)}, batch size {_distinct(sizes)}, "
        f"{_distinct(batches)} batches{' each' if len(reports) > 1 else ''}"
    )


def _script_title(reports: Sequence[RunReport]) -> str:
    first = max(reports, key=lambda report: report.exposure.whole.n_batches)
    called = first.facts.called(first.facts.command or "unnamed script")
    if not any(each.exposure.has_consumer for each in reports):
        return f"{called}: no loader"
    loaders = first.exposure.loaders
    ranks = f"{units.count(first.job_size)} training processes, " if first.job_size > 1 else ""
    what = _loader(loaders[0]) if len(loaders) == 1 else f"{units.count(len(loaders))} loaders"
    batches = sum(each.exposure.whole.n_batches + each.exposure.n_summed for each in reports)
    return f"{called}: {ranks}{what}, {units.count(batches)} batches"


def _loader(each: LoaderExposure) -> str:
    kind = each.kind.rpartition(".")[2] or "an unknown loader"
    of = f" over {each.name}" if each.name else ""
    size = units.count(each.batch_size)
    return (
        f"{kind}{of} ({each.framework}), {_workers(each.workers, each.threads)}, batch size {size}"
    )


def _workers(workers: int, threads: int) -> str:
    """Return who makes a loader's batches."""
    if not workers and not threads:
        return "no worker processes"
    n, word = (workers, "worker") if workers else (threads, "thread")
    return f"{n} {word}{'s' if n > 1 else ''}"


def _distinct(texts: Iterable[str], between: str = "/") -> str:
    return between.join(dict.fromkeys(texts))


def stand_in_sentences(reports: Iterable[RunReport]) -> tuple[Sentence, ...]:
    """Return the banner of runs on generated files, once."""
    known = (each.facts for each in reports if each.facts.stand_in and not each.facts.is_script)
    texts = (f"{STAND_IN}, {TINY}." if each.tiny else f"{STAND_IN}." for each in known)
    return sentences(dict.fromkeys(texts), "caution")


def setting_sentences(reports: Iterable[RunReport]) -> tuple[Sentence, ...]:
    """Return what took the place of the training step and whose reader was used, each once."""
    known = (text for each in reports if not each.facts.is_script for text in _setting(each.facts))
    return sentences(dict.fromkeys(known))


def _setting(facts: RunFacts) -> Iterator[str]:
    step = facts.compute
    if step.step_ns is None:
        yield "Compute: the training loop's own."
    elif not step.step_ns:
        yield "Compute: none."
    else:
        yield (
            f"Compute: {units.duration(step.step_ns)} per batch, emulated; from "
            f"{step.source or 'an unknown source'}."
        )
    if facts.evaluated is not None:
        n_samples = units.count(facts.evaluated.n_samples)
        yield f"After each epoch {n_samples} samples of {facts.evaluated.split} are evaluated."
    if facts.source_kind is not None and facts.format == SOURCE:
        reader = "a plain xarray loop" if facts.pipeline != OWN else "iobench's own"
        yield (
            f"The reader of {facts.label} is {reader}, not your script's; iobench run -- python "
            "train.py measures your script."
        )


def decoded_sentences(window: PartExposure, facts: RunFacts) -> Iterator[str]:
    """Yield what was decoded of chunks that samples share; of much, what chunks would fit."""
    if window.decoded is None or window.decoded.per_used is None:
        return
    yield f"{units.ratio(window.decoded.per_used)} bytes are decoded for each byte used."
    if facts.chunks is not None and window.decoded.per_used > MUCH_DECODED:
        yield (
            f"{facts.chunks.variable} has chunks of {facts.chunks.spelled}; chunks of "
            f"{facts.chunks.fitting}, one sample each, would fit: {facts.chunks.command}"
        )


def configuration_section(report: RunReport) -> Section:
    """Return what ran, on what, and what was done before."""
    facts = report.facts
    rows = tuple(row for row in _configuration(report) if row[1])
    # The title of a script's run is its command.
    shown = facts.command if not facts.is_script else None
    commands = (Command(shown, "made by"),) if shown else ()
    return Section(
        "configuration",
        "Machine and configuration",
        (Table("", columns("", ""), rows), *commands),
        is_folded=True,
    )


def _configuration(report: RunReport) -> Iterator[tuple[str, Cell]]:
    """Yield the configuration; no host and no paths, as reports are shown to others."""
    facts, store, device = report.facts, report.facts.store, report.facts.device
    yield "reader threads", _known(facts.threads or None, "count")
    yield "prefetch, batches", _known(report.exposure.prefetch, "count")
    yield "available samples", _known(facts.n_samples, "count")
    yield "a sample", _known(facts.sample_nbytes, "B")
    if store is not None:
        yield "store", _known(store.nbytes, "B")
        yield "stored with", ", ".join(f"{name}={value}" for name, value in store.options.items())
        yield "conversion", _seconds(store.convert_s)
    for name, value in facts.setup_s.items():
        yield f"set-up: {name}", _seconds(value)
    yield "set-up: storage probes", _seconds(facts.storage_probe_s)
    yield "name", facts.name or ""
    yield "commit", commit_words(facts.commit)
    yield "versions", ", ".join(f"{name} {text}" for name, text in facts.versions.items())
    yield "threads", ", ".join(f"{name}={text}" for name, text in facts.thread_settings.items())
    yield "iobench", facts.iobench_version or ""
    for key, value in facts.machine.items():
        name = str(key).removesuffix("_nbytes").replace("_", " ")
        if key.endswith("_nbytes") and isinstance(value, int):
            yield name, _known(value, "B")
        elif key != "host":
            yield name, str(value)
    if device is not None:
        yield "accelerator", f"{device.name}: {device_words(device)}"
    if device is not None and device.link is not None:
        yield "host to device", link_words(device.link)


def _known(value: float | None, unit: Unit) -> Cell:
    return "" if value is None else Quantity(value, unit)


def _seconds(value: float | None) -> Cell:
    return "" if value is None else Quantity(units.nanoseconds(value), "ns")


def commit_words(commit: ScriptCommit | None) -> str:
    """Return a script's commit as a phrase; empty where it was not looked for."""
    if commit is None:
        return ""
    return units.UNKNOWN if commit.hash is None else commit.hash[:SHORT_HASH]


def device_words(device: DeviceFacts) -> str:
    """Return what is known of a device, in words."""
    memory = device.facts.get("memory_nbytes")
    rest = {key: value for key, value in device.facts.items() if key not in DEVICE_KEYS}
    known = [device.title, units.nbytes(memory) if isinstance(memory, int) else None]
    return ", ".join(filter(None, (*known, *(f"{key} {value}" for key, value in rest.items()))))


def link_words(link: LinkFacts) -> str:
    """Return what the link to a device was measured to carry, in words."""
    text = f"{units.byte_rate(link.pinned_bytes_per_s)} from pinned memory"
    if link.pageable_bytes_per_s is not None:
        text += f", {units.byte_rate(link.pageable_bytes_per_s)} from other"
    return f"{text}, in copies of {units.nbytes(link.nbytes)}"
