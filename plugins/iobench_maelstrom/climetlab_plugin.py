"""How the applications' files are fetched through their real CliMetLab plugins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from iobench.datasets import FileKey, PluginCall, PublishedFiles
from iobench.errors import OptionError


class PluginFiles(PublishedFiles):
    """Files that a CliMetLab plugin publishes; ``example`` is an option that chooses some.

    ``package`` is the plugin where it is installed without its dependencies, beside ``extras``.
    """

    extras: ClassVar[tuple[str, ...]] = ("climetlab",)
    package: ClassVar[str] = ""
    example: ClassVar[str] = ""

    def plugin_calls(self, keys: Sequence[FileKey]) -> list[PluginCall]:
        """Return the calls of the plugin for files."""
        raise NotImplementedError

    def call(
        self, arguments: Mapping[str, Any], keys: Sequence[FileKey], name: str = ""
    ) -> PluginCall:
        """Return a call of the plugin that needs the files of these keys."""
        urls = tuple(map(self.file_url, keys))
        terms = self.terms_of_use, self.citation
        return PluginCall(name or self.name, arguments, urls, self.extras, self.package, *terms)

    def downloads(self) -> list[PluginCall]:
        if not self.is_chosen:
            raise OptionError(
                f"--download of {self.name}: say what to fetch, e.g. --option {self.example}"
            )
        return self.plugin_calls(self.file_keys())
