"""A driver of GPUs on hosts that have none: CUDA and NVML in a few lines of C."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc: apt install gcc")

# A driver in a few lines of C: the real entry points, by their real names and signatures.
_DRIVER = """
#include <string.h>
#include <stddef.h>
int cuInit(unsigned flags) { return INIT_STATUS; }
int cuDeviceGet(int *device, int ordinal) { *device = 4; return ordinal == 0 ? 0 : 101; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = device == 4 ? (attribute == 75 ? 10 : attribute == 76 ? 3 : -1) : -1;
  return 0;
}
int cuDeviceGetName(char *name, int len, int device) {
  strncpy(name, "NVIDIA B300", len);
  return 0;
}
int cuDeviceGetPCIBusId(char *id, int len, int device) {
  strncpy(id, device == 4 ? "0000:18:00.0" : "", len);
  return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 288ull << 30; return 0; }
"""
_NVML = """
#include <stdio.h>
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *version, unsigned len) {
  strncpy(version, "580.95.05", len);
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) {
  *device = (void *)7;
  return strcmp(id, "0000:18:00.0");
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned *utilization) {
  utilization[0] = 37;
  utilization[1] = 5;
  return device == (void *)7 ? UTILIZATION_STATUS : 2;
}
// GPU 100 is split where IS_SPLIT: slices 1 and 3, and nothing at the index between. 200 is whole.
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  *device = (void *)(100l * (index + 1));
  return 0;
}
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *later) {
  *now = *later = device == (void *)100;
  return IS_SPLIT ? 0 : 3;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) {
  *count = IS_SPLIT && device == (void *)100 ? 3 : 0;
  return 0;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **slice) {
  *slice = (void *)(1l + index);
  return index == 1 ? 6 : 0;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned len) {
  snprintf(uuid, len, "%s-%ld", (long)device < 100 ? "MIG" : "GPU", (long)device);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *bytes) {
  bytes[0] = (device == (void *)1 ? 20ull : device == (void *)3 ? 10ull : 80ull) << 30;
  return 0;
}
"""


def run_with_driver(
    folder: Path,
    code: str,
    init_status: int = 0,
    utilization_status: int = 0,
    *,
    is_split: bool = False,
) -> str:
    """What a program prints on a host with a GPU.

    Args:
        folder: for the driver.
        code: of the program.
        init_status: of CUDA's start.
        utilization_status: of the question how busy the GPU is.
        is_split: whether MIG is in use.
    """
    for name, source in (("libcuda.so.1", _DRIVER), ("libnvidia-ml.so.1", _NVML)):
        file = folder / f"{name}.c"
        file.write_text(source)
        defines = [f"-DINIT_STATUS={init_status}", f"-DUTILIZATION_STATUS={utilization_status}"]
        defines.append(f"-DIS_SPLIT={int(is_split)}")
        command = ["gcc", "-shared", "-fPIC", *defines, "-o", str(folder / name), str(file)]
        subprocess.run(command, check=True)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
