"""The images: pinned, locked, without root, and small where they are to be small."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.unit.deploy.dockerfiles import (
    DOCKERFILES,
    FOLDER,
    ROOT,
    build_extras,
    instructions,
    stages,
)

HADOLINT = Path(sys.executable).with_name("hadolint")
# OptionalRpcs whose libraries load engines.
ENGINE_EXTRAS = {"compiler", "cuda", "rtx"}


def name_of(path: Path) -> str:
    return path.stem


every_file = pytest.mark.parametrize("path", DOCKERFILES, ids=name_of)


def test_there_is_an_image_for_each_process() -> None:
    assert [path.stem for path in DOCKERFILES] == ["compiler", "controller", "gateway", "replica"]


@every_file
def test_the_linter_finds_nothing(path: Path) -> None:
    done = subprocess.run([HADOLINT, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_linter_finds_a_fault(tmp_path: Path) -> None:
    faulty = tmp_path / "Dockerfile"
    faulty.write_text(DOCKERFILES[0].read_text().replace("ENTRYPOINT [", "ENTRYPOINT python ["))
    done = subprocess.run([HADOLINT, faulty], capture_output=True, text=True, check=False)
    assert done.returncode == 1


@every_file
def test_what_is_copied_exists_and_is_sent_to_the_builder(path: Path) -> None:
    allowed = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copies = [i.rest for i in instructions(path) if i.name == "COPY" and "--from" not in i.rest]
    assert copies
    for source in (word for copy in copies for word in copy.split()[:-1]):
        assert (ROOT / source).exists(), source
        assert source in allowed or re.sub(r"[^/]+\.lock$", "*.lock", source) in allowed, source


@every_file
def test_bases_are_given_with_a_digest(path: Path) -> None:
    first = instructions(path)[0]
    assert (first.name, first.rest) == ("ARG", "PYTHON_IMAGE")
    bases = [stage[0].rest.partition(" ")[0] for stage in stages(path)]
    assert bases == ["${PYTHON_IMAGE}", "${PYTHON_IMAGE}"]


def test_a_base_without_a_digest_is_refused() -> None:
    done = subprocess.run(
        [FOLDER / "build.sh", "1.0"],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHON_IMAGE": "python:3.12-slim"},
        check=False,
    )
    assert done.returncode == 2
    assert "with its digest" in done.stderr


@every_file
def test_the_build_tools_stay_behind_and_the_lock_binds(path: Path) -> None:
    build, last = stages(path)
    assert any(i.name == "RUN" and "pip install" in i.rest for i in build)
    assert any(i.name == "RUN" and "requirements*.lock" in i.rest for i in build)
    assert any(i.name == "ENV" and "PIP_CONSTRAINT=/src/constraints.txt" in i.rest for i in build)
    assert not any("pip" in i.rest for i in last)


@every_file
def test_a_process_is_nobody_special(path: Path) -> None:
    last = stages(path)[-1]
    assert [i.rest for i in last if i.name == "USER"] == ["10001:10001"]
    (entry,) = (yaml.safe_load(i.rest) for i in last if i.name == "ENTRYPOINT")
    if path.stem == "replica":
        assert entry == ["ray"]
    else:
        assert entry[:2] == ["python", "-m"]
        assert (ROOT / entry[2].replace(".", "/") / "__main__.py").is_file()
    labels = next(i.rest for i in last if i.name == "LABEL")
    assert f'title="smelt-{path.stem}"' in labels


def test_what_loads_engines_is_what_built_them() -> None:
    replica, compiler = (build_extras(FOLDER / f"{n}.Dockerfile") for n in ("replica", "compiler"))
    assert replica >= ENGINE_EXTRAS
    # Whoever serves is traced; a build is not.
    assert replica - {"replica", "tracing"} == compiler
