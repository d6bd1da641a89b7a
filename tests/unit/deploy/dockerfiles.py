"""Reads what our own Dockerfiles say: one instruction after another, no heredocs."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy" / "docker"
DOCKERFILES = sorted(FOLDER.glob("*.Dockerfile"))


@dataclass(frozen=True)
class Instruction:
    """One instruction with its lines joined."""

    name: str
    rest: str


def instructions(path: Path) -> list[Instruction]:
    """The instructions of a file, in order; comments are left out."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    split = (line.split(maxsplit=1) for line in joined.splitlines() if line.strip())
    return [Instruction(name, " ".join(rest.split())) for name, rest in split]


def stages(path: Path) -> list[list[Instruction]]:
    """The instructions of each stage, its FROM first."""
    found: list[list[Instruction]] = []
    for instruction in instructions(path):
        if instruction.name == "FROM":
            found.append([])
        if found:
            found[-1].append(instruction)
    return found


def build_extras(path: Path) -> set[str]:
    """OptionalRpcs of pyproject.toml that an image installs by default."""
    default = next(
        (
            i.rest.removeprefix("EXTRAS=")
            for i in instructions(path)
            if i.rest.startswith("EXTRAS=")
        ),
        "",
    )
    (installed,) = re.findall(r'"\.\[(.+?)\]"', path.read_text())
    return set(installed.replace("${EXTRAS}", default).split(","))
