"""Digests of code: what counts, what does not, and for whom."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import compiler_worker
from services.contracts.builds.code_digest import (
    PROOF_MODULES,
    build_code,
    compiler_code,
    digest_of,
    proof_code,
)
from services.contracts.errors import SmeltError
from services.contracts.hardware.kinds import EngineKind

ROOT = Path(compiler_worker.__file__).parents[1]
KINDS = {kind.value for kind in EngineKind}
IMPORTED = {kind.value for kind in EngineKind if kind.is_imported}
BUILDERS = {kind: f"compiler_worker.builders.{kind.value}_builder" for kind in EngineKind}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Holds a copy of the sources of compiler and run halves."""
    skipped = shutil.ignore_patterns("__pycache__")
    for folder in ("compiler_worker", "services/engines"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=skipped)
    return tmp_path


def changed(copy: Path, file: str, change: Callable[[str], str]) -> set[str]:
    """For whom the digest is another one after a file was changed: kinds, and the proof."""
    path = copy / file
    before = path.read_text()
    path.write_text(change(before))
    assert path.read_text() != before
    modules = {**{kind.value: (name,) for kind, name in BUILDERS.items()}, "proof": PROOF_MODULES}
    return {
        name for name, each in modules.items() if digest_of(ROOT, *each) != digest_of(copy, *each)
    }


def add_a_statement(text: str) -> str:
    return f"{text}\n_ADDED = 1\n"


def test_a_copy_of_the_installed_code_has_its_digests(copy: Path) -> None:
    for kind, module in BUILDERS.items():
        assert digest_of(copy, module) == build_code(kind)
    assert digest_of(copy, *PROOF_MODULES) == proof_code()
    assert len({compiler_code(), proof_code(), *map(build_code, EngineKind)}) == len(EngineKind) + 2


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("compiler_worker/builders/openvino_builder.py", {"openvino"}),
        # Imported by name, with all other converters.
        ("compiler_worker/onnx_to_fx/converters/tensors/indexing.py", IMPORTED | {"proof"}),
        ("compiler_worker/fx_rewrites/attention_fusion.py", IMPORTED),
        # What a package does before its modules is run.
        ("compiler_worker/builders/__init__.py", KINDS),
        ("compiler_worker/proof/__init__.py", {"proof"}),
        ("compiler_worker/precision/policy.py", KINDS | {"proof"}),
        ("compiler_worker/inputs/calibrated_recipe.py", {"proof"}),
        ("compiler_worker/measures/columns.py", {"proof"}),
        ("compiler_worker/proof/sabotages.py", {"proof"}),
        ("compiler_worker/inputs/sampling.py", {"proof"}),
        ("compiler_worker/timing/benchmark.py", set()),
        # Nothing of these kinds is published but a graph: the run half is the engine.
        ("services/engines/onnxruntime_engine.py", {"onnxruntime", "proof"}),
        ("services/engines/openvino_engine.py", {"openvino", "proof"}),
        # Writes and reads the weights that an engine shares with its master.
        ("services/engines/artifacts/artifact_weights.py", IMPORTED | {"proof"}),
        ("services/engines/inductor/cuda_graph.py", {"proof"}),
        ("services/engines/torch_runtime/waiting_threads.py", set()),
    ],
)
def test_a_change_of_code_is_of_those_that_import_it(
    copy: Path, file: str, wanted: set[str]
) -> None:
    assert changed(copy, file, add_a_statement) == wanted


def comment(text: str) -> str:
    return f"# Why.\n{text}  # A last word."


def redocument(text: str) -> str:
    return text.replace('"""', '"""Again: ', 1)


def reformat(text: str) -> str:
    """Each blank line twice, each string of a table in the other quotes."""
    return text.replace("\n\n", "\n\n\n").replace('"Abs"', "'Abs'")


@pytest.mark.parametrize("change", [comment, redocument, reformat])
def test_comments_docstrings_and_layout_change_nothing(
    copy: Path, change: Callable[[str], str]
) -> None:
    assert (
        changed(copy, "compiler_worker/onnx_to_fx/converters/elementwise/unary.py", change) == set()
    )


def test_a_value_in_a_table_counts(copy: Path) -> None:
    def rename(text: str) -> str:
        return text.replace('"Abs"', '"Absolute"', 1)

    assert "inductor" in changed(
        copy, "compiler_worker/onnx_to_fx/converters/elementwise/unary.py", rename
    )


def test_missing_sources_are_told(tmp_path: Path) -> None:
    with pytest.raises(SmeltError, match=r"the source of compiler_worker\.proof\.judge is missing"):
        digest_of(tmp_path, *PROOF_MODULES)
