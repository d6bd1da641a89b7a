"""Files that people bring and that are no ONNX: what was found, what is wanted, the way there."""

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from compiler_worker.master.fingerprint import fingerprint
from compiler_worker.master.source import source_from_text
from services.contracts.errors import InvalidModelError

Write = Callable[[Path], None]
LINEAR = torch.nn.Linear(2, 2)
# Its module is written once; the second name refers to it by number.
REPEATED = pickle.dumps([torch.Size, torch.device, torch.dtype], protocol=4)


def of_bytes(data: bytes) -> Write:
    return lambda path: path.write_bytes(data) and None


def of_files(*names: str) -> Write:
    def write(folder: Path) -> None:
        folder.mkdir()
        for name in names:
            (folder / name).touch()

    return write


def of_members(*names: str) -> Write:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, "")

    return write


def safetensors(path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))


def older(path: Path) -> None:
    torch.save(LINEAR.state_dict(), path, _use_new_zipfile_serialization=False)


def program(path: Path) -> None:
    torch.export.save(torch.export.export(LINEAR, (torch.ones(1, 2),)), path)


def script(path: Path) -> None:
    torch.jit.trace(LINEAR, torch.ones(1, 2)).save(path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "write", "words"),
    [
        ("w.pt", lambda p: torch.save(LINEAR.state_dict(), p), ("a state_dict", "load_state_dict")),
        ("w.pth", older, ("a state_dict", "torch.onnx.export")),
        ("pytorch_model.bin", lambda p: torch.save({"w": torch.ones(1)}, p), ("a state_dict",)),
        ("m.pt", lambda p: torch.save(LINEAR, p), ("a PyTorch module", "torch.onnx.export")),
        ("m.ts", script, ("a TorchScript archive", "torch.onnx.export")),
        ("m.pt2", program, ("a program of torch.export", "torch.export.load(", "dynamo=True")),
        ("m.safetensors", safetensors, ("a state_dict", "smelt models add NAME FOLDER")),
        (
            "model.py",
            of_bytes(b"import torch"),
            ("a Python file", "MODULE:FUNCTION, run in its folder; see"),
        ),
        ("bert", of_files("config.json", "model.safetensors"), ("Hugging Face", "optimum-cli")),
        ("t", of_files("config.pbtxt"), ("Triton repository", "models add NAME triton://")),
        ("tf", of_files("saved_model.pb"), ("SavedModel", "tf2onnx.convert --saved-model")),
        (
            "onnx",
            of_files("encoder.onnx", "decoder.onnx"),
            ("smelt models add NAME ", "/onnx/decoder.onnx, or another file in it: encoder.onnx"),
        ),
        ("empty", of_files(), ("a folder with nothing", "torch.onnx.export")),
        ("m.tflite", of_bytes(b"\x1c\0\0\0TFL3" + bytes(40)), ("Lite", "convert --tflite")),
        ("graph.pb", of_bytes(b"\x0a\x0b\x0a\x01x\x12\x06Unused"), ("(.pb)", "--graphdef")),
        ("m.h5", of_bytes(b"\x89HDF\r\n\x1a\n"), ("a Keras model", 'format="onnx"')),
        ("m.keras", of_members("config.json", "metadata.json"), ("a Keras model", "keras.models")),
        ("m.pkl", lambda p: p.write_bytes(pickle.dumps(LogisticRegression())), ("skl2onnx",)),
        ("r.pkl", lambda p: p.write_bytes(REPEATED), ("a state_dict", "load_state_dict")),
        ("empty_name.pkl", of_bytes(b"\x80\2c\n\n."), ("a pickle", "skl2onnx")),
        ("m.txt", of_bytes(b"tree\nversion=v4\n"), ("LightGBM", "convert_lightgbm")),
        ("m.gguf", of_bytes(b"GGUF\3\0\0\0"), ("llama.cpp",)),
        ("lfs.onnx", of_bytes(b"version https://git-lfs.github.com/spec/v1\n"), ("git lfs pull",)),
        (
            "junk.pt",
            of_bytes(b"no model"),
            ("nor weights", "begin with b'no model'", "save or copy"),
        ),
        ("none.pth", of_bytes(b""), ("nor a pickled module, but an empty file", "onnx.export")),
        ("m.zip", of_members("readme"), ("a zip archive",)),
    ],
)
def test_each_is_named_with_the_way_to_onnx(
    name: str, write: Write, words: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / name
    write(path)
    with pytest.raises(InvalidModelError) as refused:
        fingerprint(source_from_text(str(path)))
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    for each in (*words, "found, an ONNX file wanted: "):
        assert each in message


def test_of_a_pickle_larger_than_memory_the_beginning_is_read(tmp_path: Path) -> None:
    with (tmp_path / "m.pkl").open("wb") as file:
        file.write(REPEATED)
        file.truncate(2**42)
    with pytest.raises(InvalidModelError, match="a state_dict"):
        fingerprint(source_from_text(str(tmp_path / "m.pkl")))


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
            return (tmp_path / "sprung").touch, ()

    (tmp_path / "m.pkl").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(InvalidModelError, match="a pickle found"):
        fingerprint(source_from_text(str(tmp_path / "m.pkl")))
    assert not (tmp_path / "sprung").exists()


def test_onnx_by_another_name_is_taken(tmp_path: Path) -> None:
    graph = "g (float[n] x) => (float[n] y) { y = Relu (x) }"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {graph}')
    onnx.save(model, tmp_path / "m.pb")
    assert fingerprint(source_from_text(str(tmp_path / "m.pb")))


def test_onnx_whose_weights_look_like_the_end_of_an_archive_is_taken(tmp_path: Path) -> None:
    graph = "g (float[n] x) => (float[n] y) { y = Relu (x) }"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {graph}')
    model.doc_string = "PK\5\6" + "\0" * 18
    onnx.save(model, tmp_path / "m.onnx")
    assert zipfile.is_zipfile(tmp_path / "m.onnx")
    assert fingerprint(source_from_text(str(tmp_path / "m.onnx")))


def test_a_broken_archive_is_broken(tmp_path: Path) -> None:
    (tmp_path / "m.pt").write_bytes(b"PK\3\4" + bytes(60))
    with pytest.raises(InvalidModelError, match="as it is broken or no file of torch"):
        fingerprint(source_from_text(str(tmp_path / "m.pt")))
    (tmp_path / "m.zip").write_bytes(b"PK\3\4" + bytes(60))
    with pytest.raises(InvalidModelError, match="broken or truncated"):
        fingerprint(source_from_text(str(tmp_path / "m.zip")))
