"""``iobench doctor``: which extras and CliMetLab plugins work here, and what installs the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from iobench.cli.installation import Check

__all__ = ["doctor"]


def doctor(
    extras: Annotated[
        list[str] | None,
        typer.Argument(metavar="[EXTRA...]", help="Check these extras alone. [default: all]"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Import every optional library and CliMetLab plugin, and say what installs those missing."""
    import platform
    from importlib.metadata import version

    from iobench.cli.installation import check_extras, check_plugins, described, extra_names
    from iobench.cli.screen import TerminalScreen
    from iobench.registry import unknown_name

    known = extra_names()
    for extra in extras or []:
        if extra not in known:
            raise unknown_name("extra", extra, known)
    with TerminalScreen().progress("importing"):
        checks = check_extras(extras or known)
        plugins = check_plugins() if not extras or "climetlab" in extras else []
    if json:
        import json as json_text

        typer.echo(json_text.dumps(described(checks, plugins), indent=1))
        return
    typer.echo(f"iobench {version('iobench')}, Python {platform.python_version()}")
    typer.echo("extras")
    _show(checks)
    if plugins:
        typer.echo("CliMetLab plugins of MAELSTROM")
        _show(plugins)


def _show(checks: list[Check]) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        typer.echo(f"  {check.name:{width}}  {check.status:7}  {_parts(check)}".rstrip())
        for package in check.packages:
            if package.reason and package.version:
                typer.echo(f"  {'':{width}}           {package.name}: {package.reason}")
        if check.install:
            typer.echo(f"  {'':{width}}           {check.install}")


def _parts(check: Check) -> str:
    there = [package for package in check.packages if package.version]
    absent = [package.name for package in check.packages if not package.version]
    versions = {package.version for package in there}
    if check.name.startswith("climetlab-") and there:
        return f"{versions.pop()}: {', '.join(package.name for package in there)}"
    told = [f"{package.name} {package.version}" for package in there]
    return ", ".join(told + [f"no {name}" for name in absent])
