"""``iobench doctor``: which extras and CliMetLab plugins are here, and what installs the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from iobench.cli.documents import Json, print_answer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iobench.cli.installation import Check
    from iobench.report.document import Section

__all__ = ["doctor"]


def doctor(
    extras: Annotated[
        list[str] | None,
        typer.Argument(metavar="[EXTRA...]", help="Check only these extras. [default: all]"),
    ] = None,
    imported: Annotated[
        bool,
        typer.Option(
            "--import",
            help="Import each in a process of its own, which tells what is installed and does not "
            "work, and ask torch for accelerators and what their links carry. Takes minutes.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Find every optional library and CliMetLab plugin, and say what installs those missing."""
    import platform
    import shlex
    from contextlib import nullcontext
    from importlib.metadata import version

    from iobench.cli.installation import (
        check_devices,
        check_extras,
        check_plugins,
        described,
        extra_names,
    )
    from iobench.cli.screen import TerminalScreen
    from iobench.registry import unknown_name
    from iobench.report.document import Command, Section

    known = extra_names()
    for extra in extras or []:
        if extra not in known:
            raise unknown_name("extra", extra, known)
    with TerminalScreen().progress("importing") if imported else nullcontext():
        checks = check_extras(extras or known, imported=imported)
        plugins = check_plugins(imported=imported) if not extras or "climetlab" in extras else []
        has_torch = any(each.name == "torch" and each.status == "ok" for each in checks)
        devices = check_devices() if has_torch else None
    sections = [_section("extras", checks)]
    if plugins:
        sections.append(_section("CliMetLab plugins of MAELSTROM", plugins))
    if devices is not None:
        sections.append(_devices(devices))
    if not imported:
        again = shlex.join(["iobench", "doctor", *(extras or []), "--import"])
        why = "none of them was imported: this tells whether they work"
        sections.append(Section("import", "", (Command(again, why),)))
    print_answer(
        f"iobench {version('iobench')}, Python {platform.python_version()}",
        *sections,
        figures=described(checks, plugins, devices),
        json=json,
    )


def _devices(told: Mapping[str, Any]) -> Section:
    """Return the accelerators, what is known of them and what their links carry."""
    from iobench.profiles.run_facts import DeviceFacts
    from iobench.report.device_lines import device_words, link_words
    from iobench.report.document import Section, properties, sentences

    title = "accelerators"
    if not told["devices"]:
        return Section(title, title, sentences([f"None: {told['why_none']}."]))
    rows: list[tuple[str, str]] = []
    for device in map(DeviceFacts.of, told["devices"]):
        rows.append((device.name, device_words(device)))
        if device.link is not None:
            rows.append(("", f"host to device: {link_words(device.link)}"))
    return Section(title, title, (properties(rows),))


def _section(title: str, checks: list[Check]) -> Section:
    from iobench.report.document import Command, Section, properties

    rows = []
    for check in checks:
        rows.append((check.name, check.status, _parts(check)))
        rows += [
            ("", "", f"{package.name}: {package.reason}")
            for package in check.packages
            if package.reason and package.version
        ]
    commands = (
        Command(check.install, f"{check.name} is {check.status}")
        for check in checks
        if check.install
    )
    return Section(title, title, (properties(rows), *commands))


def _parts(check: Check) -> str:
    there = [package for package in check.packages if package.version]
    absent = [package.name for package in check.packages if not package.version]
    versions = {package.version for package in there}
    if check.name.startswith("climetlab-") and there:
        return f"{versions.pop()}: {', '.join(package.name for package in there)}"
    told = [f"{package.name} {package.version}" for package in there]
    return ", ".join(told + [f"no {name}" for name in absent])
