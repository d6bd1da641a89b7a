"""The commands that bring what a host lacks: extras of Smelt's own package, and programs."""

import os
import re
import sys
from collections.abc import Iterator
from importlib import metadata

_PACKAGE = "smelt"
_EXTRA = re.compile(r"""extra == ["']([\w-]+)["']""")
_NAME = re.compile(r"[\w.-]+")
_MISSING_PACKAGE = re.compile(r"\bpackages? ([\w-]+)")
_COMPILER = "g++"
_CUDA_PROVIDER = "CUDAExecutionProvider"


def fix_of(reason: str) -> str:
    """The command for why an engine kind is unavailable; "" where no command helps."""
    if missing := _MISSING_PACKAGE.search(reason):
        return install_command(missing[1])
    if _CUDA_PROVIDER in reason:
        return pip_command("--force-reinstall onnxruntime-gpu")
    return apt_command(_COMPILER) if _COMPILER in reason else ""


def install_command(distribution: str) -> str:
    """Installs the extra that has a distribution, else that alone."""
    wanted = distribution.replace("_", "-")
    extras = (extra for name, extra in _optional() if _is_of(name, wanted))
    extra = next(extras, "")
    return pip_command(f"'{_PACKAGE}[{extra}]'" if extra else wanted)


def pip_command(what: str) -> str:
    """Installs into the environment of this interpreter."""
    # Environments that uv made have no pip.
    if not any(metadata.distributions(name="pip")):
        return f"uv pip install --python {sys.executable} {what}"
    return f"{sys.executable} -m pip install {what}"


def apt_command(package: str) -> str:
    """Installs a package of the system."""
    sudo = "" if os.geteuid() == 0 else "sudo "
    return f"{sudo}apt-get install {package}"


def wrong_versions() -> dict[str, str]:
    """Of the packages that are installed here, those of another version than Smelt wants.

    By what pip takes: the name alone, of a package that is there, would change nothing.
    """
    from packaging.requirements import Requirement

    wrong = {}
    for requirement in map(Requirement, _requirements()):
        try:
            found = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            requirement.marker = None
            wrong[str(requirement)] = f"{requirement.name} {found}, not {requirement.specifier}"
    return wrong


def _optional() -> Iterator[tuple[str, str]]:
    """Names of requirements, with the extra that brings each."""
    for requirement in _requirements():
        name = _NAME.match(requirement)
        extra = _EXTRA.search(requirement)
        if name and extra:
            yield name[0], extra[1]


def _requirements() -> list[str]:
    try:
        return metadata.requires(_PACKAGE) or []
    except metadata.PackageNotFoundError:  # run from a folder of sources
        return []


def _is_of(distribution: str, library: str) -> bool:
    """Whether it is that library, or its build for a version of CUDA: `tensorrt-cu13`."""
    return distribution == library or distribution.startswith(f"{library}-cu")
