"""``iobench doctor``: which extras and CliMetLab plugins are here, and what installs the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from iobench.cli.documents import Json, print_answer

if TYPE_CHECKING:
    from iobench.cli.installation import Check
    from iobench.report.document import Section


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
            "work. Takes minutes.",
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
    sections = [_section("extras", checks)]
    if plugins:
        sections.append(_section("CliMetLab plugins of MAELSTROM", plugins))
    if not imported:
        again = shlex.join(["iobench", "doctor", *(extras or []), "--import"])
        why = "none of them was imported: this tells whether they work"
        sections.append(Section("import", "", (Command(again, why),)))
    print_answer(
        f"iobench {version('iobench')}, Python {platform.python_version()}",
        *sections,
        figures=described(checks, plugins),
        json=json,
    )


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
