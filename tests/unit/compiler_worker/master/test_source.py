"""Sources as users write them."""

from pathlib import Path

import pytest

from compiler_worker.master.source import HubModel, OnnxFile, TorchFactory, source_from_text
from services.contracts.errors import InvalidModelError


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("model.onnx", OnnxFile(path=Path("model.onnx"))),
        ("/a/b:c/model.onnx", OnnxFile(path=Path("/a/b:c/model.onnx"))),
        ("hf://org/m-1.0", HubModel(repository="org/m-1.0")),
        ("hf://org/m@refs/pr/1", HubModel(repository="org/m", revision="refs/pr/1")),
        (
            "hf://org/m@v1/onnx/q.onnx",
            HubModel(repository="org/m", revision="v1", file="onnx/q.onnx"),
        ),
        ("pkg.mod:make", TorchFactory(module="pkg.mod", name="make")),
        ("mod:make", TorchFactory(module="mod", name="make")),
    ],
)
def test_reads(text: str, source: OnnxFile | TorchFactory | HubModel) -> None:
    assert source_from_text(text) == source
    assert str(source_from_text(text)) == text


@pytest.mark.parametrize("text", ["", "pkg.mod", "pkg.mod:", ":make", "a-b:make", "model.pt"])
def test_refuses(text: str) -> None:
    with pytest.raises(InvalidModelError, match=r"expected a file that ends with \.onnx"):
        source_from_text(text)


@pytest.mark.parametrize("text", ["http://host/m.onnx", "s3://b/m", "http://host/v1"])
def test_other_addresses_are_refused_with_those_that_are_known(text: str) -> None:
    with pytest.raises(InvalidModelError, match=r"expected hf://.*oci://.*openai\+http://HOST"):
        source_from_text(text)


@pytest.mark.parametrize(
    "text", ["hf://", "hf://bert", "hf://a/b@", "hf://a/b/file.bin", "hf://../b/c"]
)
def test_refuses_what_is_no_repository(text: str) -> None:
    with pytest.raises(InvalidModelError, match="expected hf://ORG/MODEL, then @REVISION"):
        source_from_text(text)


def test_a_file_of_another_name_is_taken_when_it_exists(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.touch()
    assert source_from_text(str(file)) == OnnxFile(path=file)
