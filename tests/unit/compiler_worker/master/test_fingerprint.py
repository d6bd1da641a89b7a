"""Fingerprints: found without importing the source, changed by all it is made from."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from compiler_worker.master.fingerprint import fingerprint
from compiler_worker.master.source import OnnxFile, TorchFactory
from services.contracts.builds.code_digest import code_digest
from services.contracts.errors import InvalidModelError

Save = Callable[..., Path]
DEMO = "services.cli.demo.minilm:sentence_embedder"


def test_files(linear: onnx.ModelProto, save: Save) -> None:
    path = save(linear)
    first = fingerprint(OnnxFile(path=path))
    assert fingerprint(OnnxFile(path=save(linear, "elsewhere"))) == first
    linear.graph.node[0].name = "other"
    assert fingerprint(OnnxFile(path=save(linear))) != first


def test_bytes_of_external_data_count(linear: onnx.ModelProto, save: Save) -> None:
    path = save(linear, external=True)
    first = fingerprint(OnnxFile(path=path))
    data = bytearray((path.parent / "w.data").read_bytes())
    data[7] ^= 1
    (path.parent / "w.data").write_bytes(data)
    assert fingerprint(OnnxFile(path=path)) != first


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TorchFactory]:
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text: str, name: str = "smelt_factory") -> TorchFactory:
        # The module must never run: importing it fails the test.
        (tmp_path / f"{name}.py").write_text(f"{text}\nraise AssertionError('imported')\n")
        return TorchFactory(module=name, name="make")

    return write


def test_factory_text_counts(factory: Callable[..., TorchFactory]) -> None:
    first = fingerprint(factory("A = 1"))
    assert fingerprint(factory("A = 1")) == first
    assert fingerprint(factory("A = 2")) != first


def test_declared_sources_count(factory: Callable[..., TorchFactory]) -> None:
    factory("B = 1", "smelt_layers")
    source = factory("SOURCES = ('smelt_layers',)")
    first = fingerprint(source)
    factory("B = 2", "smelt_layers")
    assert fingerprint(source) != first


def test_declared_distributions_count(
    factory: Callable[..., TorchFactory], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = factory("DISTRIBUTIONS = ('numpy',)")
    first = fingerprint(source)
    installed = "compiler_worker.master.fingerprint.importlib.metadata.version"
    monkeypatch.setattr(installed, lambda name: "0" if name == "numpy" else "same")
    other = fingerprint(source)
    monkeypatch.setattr(installed, lambda name: "1" if name == "numpy" else "same")
    assert len({first, other, fingerprint(source)}) == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("DISTRIBUTIONS = ('no-such-distribution-here',)", "which is not installed"),
        ("DISTRIBUTIONS = tuple(x)", "DISTRIBUTIONS is computed, a literal tuple"),
        ("SOURCES = 3", "SOURCES is computed, a literal tuple"),
        ("SOURCES = ('no_such_module',)", "module no_such_module: no source found"),
    ],
)
def test_declarations_that_cannot_be_read(
    factory: Callable[..., TorchFactory], text: str, expected: str
) -> None:
    with pytest.raises(InvalidModelError, match=expected):
        fingerprint(factory(text))


@pytest.mark.parametrize("module", ["no_such_module", "no_such_package.module", "sys"])
def test_modules_without_source(module: str) -> None:
    with pytest.raises(InvalidModelError, match="no source found"):
        fingerprint(TorchFactory(module=module, name="make"))


def test_the_demo_is_identified_without_torch() -> None:
    code = (
        "import sys\n"
        "from compiler_worker.master.fingerprint import fingerprint\n"
        "from compiler_worker.master.source import source_from_text\n"
        "print(fingerprint(source_from_text(sys.argv[1])))\n"
        "heavy = {'torch', 'transformers', 'onnx', 'tokenizers'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    command = [sys.executable, "-c", code, DEMO]
    found = [
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
        for _ in range(2)
    ]
    assert found[0] == found[1]
    assert len(found[0].strip()) == 64


def test_the_code_that_makes_masters_counts(
    linear: onnx.ModelProto, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = OnnxFile(path=save(linear))
    first = fingerprint(source)
    digest = code_digest("compiler_worker.master.normalise")
    monkeypatch.setattr("compiler_worker.master.fingerprint.code_digest", lambda *_: digest)
    assert fingerprint(source) != first
