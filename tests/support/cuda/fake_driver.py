"""Build a fake ``libcuda.so.1``, whose answers are read from environment variables.

    folder = build(tmp_path); environment | {"LD_LIBRARY_PATH": folder, "FAKE_GPUS": "2", ...}

``FAKE_GPUS``: how many; ``FAKE_ERROR``: what ``cuInit`` returns; ``FAKE_DEED``: ``hang`` or ``crash`` in it;
``FAKE_NOTE``: a file that ``cuInit`` makes. ``CUDA_VISIBLE_DEVICES`` hides all when it is empty or -1, and
else its entries are counted.
"""

import shutil
import subprocess

import pytest

SOURCE = r"""
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int state = 3;  /* CUDA_ERROR_NOT_INITIALIZED */

static int number(const char *name) { const char *text = getenv(name); return text ? atoi(text) : 0; }

static int count(void) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int n = number("FAKE_GPUS"), named = 1;
    if (!visible) return n;
    if (!*visible || !strcmp(visible, "-1")) return 0;
    for (const char *c = visible; *c; c++) named += *c == ',';
    return named < n ? named : n;
}

int cuInit(unsigned flags) {
    const char *deed = getenv("FAKE_DEED"), *note = getenv("FAKE_NOTE");
    if (note) fclose(fopen(note, "w"));
    if (deed && !strcmp(deed, "hang")) for (;;) pause();
    if (deed && !strcmp(deed, "crash")) { fprintf(stderr, "bad driver\n"); fflush(stderr); raise(SIGSEGV); }
    int error = number("FAKE_ERROR");
    if (!error && !count()) error = 100;
    state = error ? 3 : 0;
    return error;
}
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuGetErrorName(int error, const char **name) {
    *name = error == 100 ? "CUDA_ERROR_NO_DEVICE" : error == 999 ? "CUDA_ERROR_UNKNOWN" : 0;
    return *name ? 0 : 1;
}
int cuDeviceGetCount(int *n) { if (!state) *n = count(); return state; }
int cuDeviceGet(int *device, int n) { *device = n; return state; }
int cuDeviceGetName(char *name, int size, int device) {
    snprintf(name, size, "NVIDIA H%d", 200 + device);
    return 0;
}
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { memset(uuid, 16 + device, 16); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)141 << 30; return 0; }
"""


def build(folder, source=SOURCE):
    """Compile a library of the driver's name into ``folder`` and return that; skip without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler to make a driver library")
    (folder / "driver.c").write_text(source)
    library = ["-Wl,-soname,libcuda.so.1", "-o", str(folder / "libcuda.so.1")]
    command = [compiler, "-shared", "-fPIC", *library, str(folder / "driver.c")]
    subprocess.run(command, check=True, timeout=60)
    return folder
