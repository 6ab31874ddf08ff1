"""Texts, commands and documents of JSON without the names of people, machines and places."""

from __future__ import annotations

import re
import shlex
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

from iobench.bundling.path_scrubber import LOCAL, PathScrubber, as_written, is_file_name
from iobench.bundling.vocabulary import words_of

if TYPE_CHECKING:
    from iobench.bundling.pseudonyms import Pseudonyms
    from iobench.bundling.whoami import Whoami

STOPS: Final = r"\s\"'`<>|,;(){}\[\]"
UNIQUE: Final = re.compile(
    r"(?<![0-9A-Fa-f])[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}(?![0-9A-Fa-f])"
    # Of GPUs abbreviated, as $CUDA_VISIBLE_DEVICES may have them.
    r"|(?<=GPU-|MIG-)[0-9A-Fa-f]{6,}(?:-[0-9A-Fa-f]+)*(?![0-9A-Za-z])"
)
PLACE: Final = re.compile(
    rf"(?P<address>[A-Za-z][A-Za-z0-9+.-]*(?:::[A-Za-z][A-Za-z0-9+.-]*)*://[^{STOPS}]+)"
    r"|(?P<mail>[\w.+-]+@[\w-]+(?:\.[\w-]+)+)"
    r"|(?P<login>[\w.-]+@[\w.-]+)"
    r"|(?P<server>(?<![\w./\\:-])[A-Za-z0-9][\w.-]+(?=:/(?!/)))"
    r"|(?P<ip4>(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]))"
    r"|(?P<ip6>(?<![\w:.])(?=[0-9A-Fa-f:]*\d)(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:]))"
    r"|(?P<uid>(?<=\buid=)\d+|(?<=\bgid=)\d+)"
    rf"|(?P<absolute>(?<![\w/\\.~)])(?:~[\w.-]*|[A-Za-z]:)?[/\\][^{STOPS}:=]*)"
    rf"|(?P<relative>[^{STOPS}:=/\\]+(?:[/\\][^{STOPS}:=/\\]+)+[/\\]?)"
    rf"|(?P<word>[^{STOPS}:=/\\]+)",
)
HOST_KEYS: Final = {"host", "hosts", "hostname", "node", "nodes"}
PATH_KEYS: Final = {
    "path", "paths", "files_hint", "mount", "logs", "runtime", "own", "others", "folder", "folders",
    "store", "cwd", "directory", "files", "file", "target", "sources",
}  # fmt: skip
VALUE_KEYS: Final = {
    "options", "set", "env", "environ", "environment", "cell", "fixed", "vary", "skip",
}  # fmt: skip
"""What is below was given by somebody: a value of an option, or of the environment."""
GIVEN_KEYS: Final = {"job": "job", "boot_id": "boot", "user": "user", "username": "user"}
COMMAND_KEYS: Final = {"command", "children"}
PROGRAMS: Final = {
    "accelerate", "apptainer", "bash", "cat", "cp", "deepspeed", "env", "git", "horovodrun",
    "jsrun", "mpiexec", "mpirun", "nice", "nohup", "numactl", "nvidia-smi", "python", "python3",
    "rsync", "scp", "sh", "singularity", "srun", "ssh", "tar", "taskset", "time", "timeout",
    "torchrun", "uv",
}  # fmt: skip
"""What a command may begin with, behind others too, and everybody has."""
NUMBER: Final = re.compile(r"[-+]?[\d.,:x]+(?:[eE][-+]?\d+)?\s?(?:[kKMGTPmnu]?i?[sB]?|%)")
OPTION: Final = re.compile(r"(-{1,2}[A-Za-z][\w-]*)(=?)(.*)", re.DOTALL)
VARIABLE: Final = re.compile(r"([A-Za-z_]\w*=)(.+)", re.DOTALL)


class Scrubber:
    """Replaces names in whatever a run directory holds; twice the same is the same.

    Parameters
    ----------
    who : Whoami
        Its users, hosts and jobs are names from the start.
    """

    def __init__(self, names: Pseudonyms, who: Whoami) -> None:
        self.names = names
        self.paths = PathScrubber(names, who)
        self._known: dict[str, str] = {}
        for user in who.users:
            names.give("user", as_written(user))
        for host in who.hosts:
            self.paths.host(as_written(host))
        for job in who.jobs:
            names.give("job", as_written(job))

    def forget(self) -> None:
        """Forget what texts became: names found since are to be replaced in all of them."""
        self._known.clear()

    def text(self, text: str) -> str:
        """Return a text of any kind, scrubbed."""
        if text not in self._known:
            whole = self.names.replaced_whole(text)
            self._known[text] = PLACE.sub(self._place, whole)
        return self._known[text]

    def _place(self, found: re.Match[str]) -> str:
        text, kind = found[0], found.lastgroup or ""
        match kind:
            case "address":
                return self.paths.address(text)
            case "mail":
                return self.names.give("mail", text)
            case "login":
                user, _, host = text.partition("@")
                return f"{self.names.give('user', user)}@{self.paths.host(host)}"
            case "word" | "server" if is_file_name(text):
                return self.paths.component(text)
            case "server" if not self._is_known(text):  # of NFS and scp: fs01:/export
                return self.paths.host(text)
            case "ip4" | "ip6":
                return self._ip(text)
            case "uid":
                return self.names.give("uid", text)
            case "absolute":
                return self.paths.path(text) if len(text) > 1 else text
            case "relative" if self._is_path(text):
                return self.paths.path(text)
            case _:
                ids = UNIQUE.sub(lambda one: self.names.give("id", one[0]), text)
                return self.names.replaced(ids)

    def _ip(self, text: str) -> str:
        try:
            address = ip_address(text)
        except ValueError:
            return self.names.replaced(text)
        # No host has an address of the network 0; versions such as 0.9.15.1 look like one.
        is_of_nobody = address.version == 4 and address.packed[0] == 0
        return text if is_of_nobody or text in LOCAL else self.names.give("ip", text)

    def _is_path(self, text: str) -> bool:
        """Tell a path from words with a stroke between them, such as "I/O" and "samples/s"."""
        if is_file_name(text.rstrip("/\\")):
            return True
        return not self._is_known(text)

    def _is_known(self, text: str) -> bool:
        return all(word in self.names.known or len(word) == 1 for word in words_of(text))

    def place(self, text: str) -> str:
        """Return a text that is one path or address, spaces and all; other texts as `text`."""
        if "://" in text:
            return self.paths.address(text)
        if "/" in text or "\\" in text or is_file_name(text):
            return self.paths.path(text)
        return self.text(text)

    def value(self, text: str) -> str:
        """Return what somebody gave: figures and words of iobench stay, the rest is replaced."""
        if not text or NUMBER.fullmatch(text):
            return text
        if "," in text and "://" not in text:
            return ",".join(map(self.value, text.split(",")))
        if "@" in text and "://" not in text:
            return self.text(text)
        if "/" in text or "\\" in text or is_file_name(text):
            return self.place(text)
        if all(word in self.names.known or word.isdecimal() for word in words_of(text)):
            return self.names.replaced(text)
        return self.names.give("arg", text)

    def command(self, text: str) -> str:
        """Return a command line, its options as they are and their values scrubbed."""
        try:
            words = shlex.split(text)
        except ValueError:
            words = text.split()
        return shlex.join(self.words(words))

    def words(self, words: list[str]) -> list[str]:
        """Return the words of a command line, scrubbed."""
        return [word if word in PROGRAMS else self._word(word) for word in words]

    def _word(self, word: str) -> str:
        option = OPTION.fullmatch(word)
        if option is not None:
            return self.names.replaced(option[1]) + option[2] + self.value(option[3])
        variable = VARIABLE.fullmatch(word)
        if variable is not None and "/" not in variable[1]:
            return variable[1] + self.value(variable[2])
        return self.value(word)

    def document(self, value: Any, key: str = "", *, given: bool = False) -> Any:
        """Return a document of JSON, scrubbed; ``key`` is the one it stands under."""
        if isinstance(value, dict):
            inside = given or key in VALUE_KEYS
            return {
                self.text(as_written(name)): self.document(each, name, given=inside)
                for name, each in value.items()
            }
        if isinstance(value, list):
            if key == "command" and all(isinstance(each, str) for each in value):
                return self.words([as_written(each) for each in value])
            return [self.document(each, key, given=given) for each in value]
        if isinstance(value, str):
            return self._leaf(as_written(value), key, given=given)
        return value

    def _leaf(self, text: str, key: str, *, given: bool) -> str:
        if key in HOST_KEYS:
            return self.paths.host(text)
        if key in GIVEN_KEYS:
            return self.names.give(GIVEN_KEYS[key], text)
        if key in COMMAND_KEYS:
            return self.command(text)
        if key in PATH_KEYS:
            return self.place(text)
        return self.value(text) if given else self.text(text)
