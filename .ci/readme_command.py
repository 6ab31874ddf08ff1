"""Prints a command of README.md: the one line of the code block under ``<!-- ci: NAME -->``."""

import re
import sys
from pathlib import Path


def readme_command(text: str, name: str) -> str:
    """Return the command marked ``name``; exit with a line when it is not exactly one line."""
    blocks = re.findall(rf"<!-- ci: {re.escape(name)} -->\n+```bash\n(.*?)```", text, re.DOTALL)
    if len(blocks) != 1 or len(blocks[0].strip().splitlines()) != 1:
        sys.exit(f"README.md: expected one command of one line under <!-- ci: {name} -->")
    command: str = blocks[0].strip()
    return command


if __name__ == "__main__":
    print(readme_command(Path(sys.argv[1]).read_text(), sys.argv[2]))
