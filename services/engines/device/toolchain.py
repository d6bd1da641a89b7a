"""Versions of the libraries that build and load engines, read without importing them."""

from importlib import metadata

from services.contracts.hardware.facts import Platform

# One library is published under several distribution names, by CUDA version; the first
# that is installed counts. Local suffixes (+cpu, +cu130) are part of a version: they are
# other builds with another ABI.
_DISTRIBUTIONS: dict[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu"),
    "openvino": ("openvino",),
    "tensorrt_rtx": ("tensorrt-rtx-cu13", "tensorrt-rtx-cu12", "tensorrt-rtx"),
    "tensorrt": ("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
    "triton": ("triton",),
    "jax": ("jax",),
    "jaxlib": ("jaxlib",),
    "jax_cuda": ("jax-cuda13-plugin", "jax-cuda12-plugin"),
}
_CUDA_RUNTIMES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12")


def installed_toolchain(platform: Platform) -> dict[str, str]:
    """Version by library, installed ones only; with the CUDA runtime on that platform."""
    names = dict(_DISTRIBUTIONS)
    if platform is Platform.CUDA:
        names["cuda"] = _CUDA_RUNTIMES
    versions = {library: distribution_version(*dists) for library, dists in names.items()}
    return {library: version for library, version in versions.items() if version}


def installed_version(library: str) -> str:
    """Version of one library, "" when it is not installed."""
    return distribution_version(*_DISTRIBUTIONS[library])


def missing_reason(library: str) -> str:
    """Why a kind that needs this library is unavailable, or ""."""
    if installed_version(library):
        return ""
    return f"the Python package {_DISTRIBUTIONS[library][0]} is not installed"


def distribution_version(*distributions: str) -> str:
    """Version of the first of these that is installed, "" when none is."""
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""
