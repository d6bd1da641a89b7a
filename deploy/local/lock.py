"""Writes the locks from what uv resolved: `python lock.py FOLDER NAME=MB...`; see lock.sh.

FOLDER holds uv.lock and, of `uv export`, demo.txt, rtx.txt and dev.txt; NAME=MB says what torch
and each of these take on disk. A lock holds what the locks before it lack, with the hashes of all
wheels for Linux on x86_64 and aarch64, and the sizes, which install.sh prints beforehand.
"""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

LOCKS = {
    "demo": ("requirements.lock", "What `make run` installs"),
    "rtx": ("requirements-gpu.lock", "What `make run` adds where there is an NVIDIA GPU"),
    "dev": ("requirements-dev.lock", "What `make test` adds to the other two"),
}
TORCH_LOCK = "deploy/local/torch.lock"
TORCH_TITLE = "# torch's CUDA build, with the libraries that it pins. Written by make lock.\n"
TORCH_NOTE = """\
# torch is installed after these: its CUDA build by deploy/local/torch.lock, a CPU build, which lies
# on another index and needs none of these libraries, by its version.
# torch: {cpu} MB to download, {installed} MB installed; its CUDA build {cuda:.0f} MB to download
"""
OF_TORCH = re.compile(r"torch|triton|(cuda|nvidia)-.*")
ELSEWHERE = re.compile("== '(win32|emscripten)'")
LINUX = re.compile(r"(manylinux\w*\.)*(manylinux\w*_(x86_64|aarch64)|-any)\S*$")
CPYTHON = re.compile(r"-(cp311-(cp311|none)|cp312-(cp312|none)|cp3\d+-abi3|(py2\.)?py3-none)-")
MEASURED = re.compile(r"-(cp311|cp3\d+-abi3|(py2\.)?py3)-.*(x86_64|any)\S*$")


def main(folder: Path, mb: dict[str, str]) -> None:
    """Write the three locks, and that of torch's CUDA build, into the working directory."""
    packages = tomllib.loads((folder / "uv.lock").read_text())["package"]
    by_name = {package["name"]: package for package in packages}
    locked: set[str] = set()
    for extra, (file, title) in LOCKS.items():
        lines = dict(_exported(folder / f"{extra}.txt"))
        # Tests run triton's interpreter on CPUs; it has one build for all.
        left_out = {n for n in lines if OF_TORCH.fullmatch(n) and (extra, n) != ("dev", "triton")}
        names = sorted(lines.keys() - locked - left_out)
        locked.update(names)
        size = sum(_download(by_name[name]) for name in names) / 1e6
        head = f"# {title}: exact versions, for Python 3.11 and 3.12 on Linux.\n"
        head += "# Written by make lock.\n"
        head += f"# size: {size:.0f} MB to download, {mb[extra]} MB installed\n"
        if extra == "demo":
            cuda = sum(_download(by_name[name]) for name in left_out) / 1e6
            head += TORCH_NOTE.format(cpu=mb["torch_download"], installed=mb["torch"], cuda=cuda)
            _write(
                TORCH_LOCK, TORCH_TITLE, {name: lines[name] for name in sorted(left_out)}, by_name
            )
        _write(file, head, {name: lines[name] for name in names}, by_name)


def _write(file: str, head: str, lines: dict[str, str], by_name: dict[str, Any]) -> None:
    """A lock: its first lines, and each requirement by its name with the hashes of its files."""
    entries = (" \\\n    ".join([line, *_hashes(by_name[name])]) for name, line in lines.items())
    Path(file).write_text(head + "\n".join(entries) + "\n")


def _exported(path: Path) -> list[tuple[str, str]]:
    """Name and line of each requirement."""
    lines = [line for line in path.read_text().splitlines() if not ELSEWHERE.search(line)]
    return [(line.partition("==")[0], line) for line in lines if "==" in line]


def _files(package: dict[str, Any]) -> list[dict[str, Any]]:
    """The wheels that a machine of ours may take; else the source."""
    wheels = [wheel for wheel in package.get("wheels", []) if _is_ours(wheel["url"])]
    return wheels or [package["sdist"]]


def _is_ours(url: str) -> bool:
    name = url.rpartition("/")[2].removesuffix(".whl")
    return bool(CPYTHON.search(name) and LINUX.search(name))


def _hashes(package: dict[str, Any]) -> list[str]:
    return sorted(f"--hash={file['hash']}" for file in _files(package))


def _download(package: dict[str, Any]) -> int:
    """Bytes for CPython 3.11 on x86_64."""
    files = _files(package)
    return int(max(f["size"] for f in files if MEASURED.search(f["url"][:-4]) or len(files) == 1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), dict(word.split("=") for word in sys.argv[2:]))
