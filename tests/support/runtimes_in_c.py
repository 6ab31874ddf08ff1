"""Small shared libraries that behave as Darshan's runtime does where a test looks at it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

LEAVES_LOGS = r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static int begun = 0;
void darshan_core_initialize(int argc, char **argv) { begun = 1; }
void darshan_core_shutdown(int write) {
    char path[4096];
    const char *folder = getenv("DARSHAN_LOG_DIR_PATH"), *job = getenv("DARSHAN_JOBID");
    FILE *file;
    if (!begun || !folder) return;
    begun = 0;
    job = job ? getenv(job) : "0";
    snprintf(path, sizeof path, "%s/u_python_id%s-%d_1-2-3-4_1.darshan", folder, job, getpid());
    file = fopen(path, "w");
    if (file) fclose(file);
}
__attribute__((constructor)) static void first(void) {
    if (getenv("DARSHAN_ENABLE_NONMPI")) darshan_core_initialize(0, NULL);
}
__attribute__((destructor)) static void last(void) { darshan_core_shutdown(1); }
"""
LEAVES_NOTHING = "int nothing;"
NEVER_STARTS = r"""
#include <unistd.h>
__attribute__((constructor)) static void first(void) { for (;;) pause(); }
"""
WITH_HDF5 = r"""
extern void H5get_libversion(void);
void H5Fcreate(void) { H5get_libversion(); }
"""
"""As the real one: its symbol is looked for when a file is opened, and is nowhere."""
OPENS_WITH_IT = """
import ctypes
class File:
    def __init__(self, *_):
        opened = getattr(ctypes.CDLL(None), "H5Fcreate", None)
        if opened is not None:
            opened()
    def close(self):
        pass
"""


def made_runtime(folder: Path, code: str) -> Path:
    """Compile a ``libdarshan.so``; skips where there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to make a shared library with")
    folder.mkdir(parents=True, exist_ok=True)
    source, library = folder / "runtime.c", folder / "libdarshan.so"
    source.write_text(code)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wl,-z,lazy", "-o", library, source],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return library
