"""What is kept of a command: programs, scripts and names of options, without the options' values.

A list of what is secret is never complete, so values go, whatever they are called. Loaded from its
file in every process of ``iobench run``, so nothing is imported before it is needed.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

MASK = "***"
KEEP_COMMAND = "IOBENCH_RUN_KEEP_COMMAND"
"""Environment: ``1`` where values of options are kept, too."""
LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "horovodrun", "composer", "torchx"})
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
SCRIPTS = (".py", ".sh")
SPACES = " \t\r\n"
TOKEN_SIGNS, KEY_SIGNS = 20, 32
"""Words of so many letters and digits, and of so many hexadecimal ones, are no names."""


def drop_values(words: Sequence[str], *, of_text: bool = False) -> list[str]:
    """Return the words of a command with the names of its options and without their values.

    Nobody knows which option takes a value, so what follows one goes, unless it is a script, a
    Python or a launcher. A word with spaces is read as a shell's text; ``of_text``: these are of
    one.
    """
    result: list[str] = []
    program = ""  # whose own options these are: python, shell or launcher
    value = ""  # what the next word is, if it is no option
    for word in words:
        text = any(sign in word for sign in SPACES)
        is_option = word.startswith("-") and len(word) > 1 and not word[1].isdigit()
        kind = "" if text else _program(word.rpartition("/")[2])
        if value == "code" or (value == "value" and (word[:1] == "-" and not is_option)):
            result.append(MASK)
            value, program = "", "" if value == "code" else program
        elif value == "module":
            result.append(word)
            value = program = ""
        elif is_option and value != "text":
            result.append(_option(word))
            value = _next(word, program)
        elif value == "value" and not kind and not (word.endswith(SCRIPTS) and not text):
            result.append(MASK)
            value = ""
        else:
            is_command = value == "text" or (len(words) == 1 and not of_text)
            result.append(
                _shell_text(word) if text and (is_command or not _is_set(word)) else _word(word)
            )
            value, program = "", kind
    return result


def _program(name: str) -> str:
    if name in SHELLS:
        return "shell"
    if name in LAUNCHERS:
        return "launcher"
    return "python" if name.startswith("python") and not name[6:].strip("0123456789.") else ""


def _option(word: str) -> str:
    """Return an option without the value that is joined to it."""
    end = min((word.index(sign) for sign in f"=:{SPACES}" if sign in word), default=len(word))
    name, joined = word[:end], word[end : end + 1]
    if not name.startswith("--") and not (name[1:].isalpha() and len(name) <= 5):
        return f"{name[:2]}{MASK}"
    return f"{name}{joined}{MASK}" if word[end + 1 :] else word


def _next(word: str, program: str) -> str:
    """Return what may follow an option: its value, code, a module, or nothing of it."""
    if word == "--" or "=" in word:
        return ""
    if program in ("python", "launcher") and word == "-m":
        return "module"
    if program == "shell":
        return "text" if word.endswith("c") else ""
    if program == "python":
        return "code" if word.endswith("c") else "value" if word in ("-W", "-X") else ""
    return "value"


def _shell_text(text: str) -> str:
    import shlex

    try:
        return " ".join(drop_values(shlex.split(text), of_text=True))
    except ValueError:  # a quote that never ends: nobody knows where a value does
        return " ".join([*drop_values(text.split()[:1], of_text=True), MASK])


def _is_set(word: str) -> bool:
    """Tell whether a word is ``NAME=value``."""
    name, _, value = word.partition("=")
    return bool(value.strip("=")) and not set(name) & set(f"/:?&{SPACES}")


def _word(word: str) -> str:
    """Return a word that follows no option: ``NAME=value`` without its value, tokens masked."""
    if _is_set(word):
        return f"{word.partition('=')[0]}={MASK}"
    signs = word.rstrip("=").replace("-", "").replace("_", "").replace("+", "")
    is_key = len(signs) >= KEY_SIGNS and not signs.lower().strip("0123456789abcdef")
    is_mixed = signs.isalnum() and not (signs.islower() or signs.isupper() or signs.isalpha())
    is_token = len(signs) >= TOKEN_SIGNS and is_mixed
    return MASK if is_key or is_token else word
