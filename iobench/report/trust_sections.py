"""The sections on how a run was made and measured: its machine, its set-up, and what to trust."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.report import lines, units
from iobench.report.device_lines import device_words, link_words
from iobench.report.document import Column, Command, Quantity, Section, Table, sentences
from iobench.report.script_lines import commit_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.report.document import Cell
    from iobench.report.run_report import RunReport
    from iobench.runs.run_facts import StoreFacts

PROPERTIES = (Column(""), Column(""))


def configuration_section(report: RunReport) -> Section:
    """Return what ran, on what, and what was done before."""
    machine = tuple(_machine(report)) or (("machine", units.UNKNOWN),)
    command = report.facts.command
    return Section(
        "configuration",
        "Machine and configuration",
        (
            Table("", PROPERTIES, (*_configuration(report), *machine)),
            *((Command(command, "made by"),) if command else ()),
            *sentences(lines.setup_lines(report)),
        ),
        is_folded=True,
    )


def _options(store: StoreFacts | None) -> str | None:
    """Return the options of the format of a store that was given, as it tells them."""
    if store is None or store.target is None:
        return None
    return ", ".join(f"{name}={value}" for name, value in store.options.items()) or None


def _configuration(report: RunReport) -> Iterator[tuple[str, Cell]]:
    """Yield the configuration, as far as it is known; no paths, as reports are shown to others."""
    facts, exposure = report.facts, report.exposure
    known: dict[str, Cell | None] = {
        "stored with": _options(facts.store),
        "reader threads": Quantity(facts.threads or None, "count"),
        "prefetch, batches": Quantity(exposure.prefetch, "count"),
        "available samples": Quantity(facts.n_samples, "count"),
        "a sample": Quantity(facts.sample_nbytes, "B"),
        "name": facts.name,
        "commit": commit_words(facts.commit),
        "versions": ", ".join(f"{name} {text}" for name, text in facts.versions.items()) or None,
        "threads": ", ".join(
            f"{name} {entry}" if name == "affinity" else f"{name}={entry}"
            for name, entry in facts.thread_settings.items()
        )
        or None,
        "iobench": facts.iobench_version,
    }
    for name, cell in known.items():
        if cell is not None and (isinstance(cell, str) or cell.value is not None):
            yield name, cell


def _machine(report: RunReport) -> Iterator[tuple[str, Cell]]:
    """Yield what is known of the machine but its name: reports are shown to others."""
    for key, value in report.facts.machine.items():
        if key == "host":
            continue
        name = str(key).removesuffix("_nbytes").replace("_", " ")
        if isinstance(value, int) and not isinstance(value, bool):
            yield name, Quantity(value, "B") if key.endswith("nbytes") else Quantity(value, "count")
        else:
            yield name, str(value)
    device = report.facts.device
    if device is not None:
        yield "accelerator", f"{device.name}: {device_words(device)}"
        if device.link is not None:
            yield "host to device", link_words(device.link)


def trust_section(report: RunReport) -> Section:
    """Return what the figures leave out, and what measuring took."""
    known = (
        *sentences(lines.warning_lines(report), "caution"),
        *sentences(lines.measurement_lines(report)),
    )
    return Section("trust", "How far to trust these figures", known, is_folded=True)
