"""Ten models of the hub's layout, each by one command: right answers when, an engine when.

    python -m tests.benchmarks.hub_folders [--names NAME ...] [--write FILE.md]

The folders have seeded weights (safetensors), a tokenizer and what says how texts are pooled, and
no ONNX file. Each is given to a fleet of its own `SMELT_HOME` by `smelt models add NAME FOLDER`.
Texts and pictures go to the HTTP port; answers are compared with those of sentence-transformers
and transformers as soon as the model serves, and again once an engine is proven.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer

from services.contracts.kserve.tensors import Array
from tests.benchmarks.newcomers import COMMAND_EACH_S, PROVEN_WITHIN_S, Row, proven, smelt
from tests.hub_folders import HUB_FOLDERS, MOODS, SIDE, write_hub_folder

GRPC_PORT = 18003
HTTP_PORT = 18004
TEXTS = ["A cat sits on the mat", "what is a dog", "the dog runs", "cat " * 25]
QUERY = "what is on the mat"
_LOOK_S = 0.5


class Asked(NamedTuple):
    """What is asked of a model, and the numbers that transformers gives for it."""

    ask: Callable[[str], Array]
    wanted: Array


def post(path: str, **document: Any) -> Any:
    """The document that the gateway answers with."""
    body = json.dumps(document).encode()
    with urlopen(Request(f"http://127.0.0.1:{HTTP_PORT}{path}", body), timeout=60) as answer:
        return json.load(answer)


def embedded(folder: Path) -> Asked:
    """Vectors of texts."""

    def ask(name: str) -> Array:
        data = post("/v1/embeddings", model=name, input=TEXTS)["data"]
        return np.array([each["embedding"] for each in data])

    return Asked(ask, SentenceTransformer(str(folder), device="cpu").encode(TEXTS))


def reranked(folder: Path) -> Asked:
    """Scores of documents for a query, in the documents' order."""

    def ask(name: str) -> Array:
        found = post("/v1/rerank", model=name, query=QUERY, documents=TEXTS)["results"]
        scores = {each["index"]: each["relevance_score"] for each in found}
        return np.array([scores[index] for index in range(len(TEXTS))])

    model = transformers.AutoModelForSequenceClassification.from_pretrained(str(folder))
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    pairs = tokenizer([QUERY] * len(TEXTS), TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        return Asked(ask, torch.sigmoid(model(**pairs).logits).reshape(-1).numpy())


def classified(folder: Path) -> Asked:
    """Scores of every label."""

    def ask(name: str) -> Array:
        found = post("/v1/classify", model=name, input=TEXTS)
        assert found["labels"] == list(MOODS.values())
        for each in found["data"]:
            assert each["label"] == found["labels"][int(np.argmax(each["probs"]))]
        return np.array([each["probs"] for each in found["data"]])

    pipe = transformers.pipeline("text-classification", str(folder), device="cpu", top_k=None)
    rows = [{each["label"]: each["score"] for each in row} for row in pipe(TEXTS)]
    return Asked(ask, np.array([[row[label] for label in MOODS.values()] for row in rows]))


def seen(folder: Path) -> Asked:
    """Logits of pictures."""
    pixels = np.random.default_rng(0).standard_normal((3, 3, SIDE, SIDE)).astype(np.float32)

    def ask(name: str) -> Array:
        tensor = {"name": "pixel_values", "datatype": "FP32", "shape": pixels.shape}
        given = tensor | {"data": pixels.ravel().tolist()}
        (output,) = post(f"/v2/models/{name}/infer", inputs=[given])["outputs"]
        return np.array(output["data"]).reshape(output["shape"])

    model = transformers.AutoModelForImageClassification.from_pretrained(str(folder))
    with torch.inference_mode():
        return Asked(ask, model(torch.from_numpy(pixels)).logits.numpy())


ASKED: dict[str, Callable[[Path], Asked]] = {
    "cross-encoder": reranked,
    "DistilBERT": classified,
    "DeBERTa-v2": classified,
    "ViT": seen,
    "ResNet": seen,
    "ConvNeXt": seen,
}


def error(found: Array, wanted: Array) -> float:
    """The largest difference, of the largest value."""
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def measure(title: str, folder: Path) -> Row:
    """Add one, wait until it serves and is proven, and remove it."""
    name = title.lower()
    asked = ASKED.get(title, embedded)(write_hub_folder(title, folder / name))
    began_s = time.monotonic()
    smelt("models", "add", name, str(folder / name))
    added_s = time.monotonic() - began_s
    while True:
        try:
            first_error = error(asked.ask(name), asked.wanted)
            break
        except HTTPError as refused:
            if refused.code not in (404, 503):
                raise RuntimeError(refused.read().decode()) from refused
            time.sleep(_LOOK_S)
    served_s = time.monotonic() - began_s
    while not (engines := proven(name)) and time.monotonic() - began_s < PROVEN_WITHIN_S:
        time.sleep(COMMAND_EACH_S)
    proven_s = time.monotonic() - began_s if engines else float("nan")
    last_error = error(asked.ask(name), asked.wanted)
    smelt("models", "remove", name)
    return Row(added_s, served_s, proven_s, engines, first_error, last_error)


def main() -> None:
    """Start a fleet, measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--names", nargs="*", default=[*HUB_FOLDERS], choices=[*HUB_FOLDERS])
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    lines = [
        "| model | added s | served s | proven s | first engine | error, served | error, proven |",
        "|---|---:|---:|---:|---|---:|---:|",
    ]
    with tempfile.TemporaryDirectory() as home:
        os.environ["SMELT_HOME"] = home
        ports = (
            "--grpc-port",
            str(GRPC_PORT),
            "--http-port",
            str(HTTP_PORT),
            "--metrics-port",
            "0",
        )
        smelt("up", "--detach", *ports)
        try:
            for name in arguments.names:
                row = measure(name, Path(home) / "folders")
                times = " | ".join(f"{value:.1f}" for value in row[:3])
                errors = f"{row.first_error:.1e} | {row.last_error:.1e}"
                lines.append(f"| {name} | {times} | {row.engines} | {errors} |")
                print(lines[-1], flush=True)
        finally:
            smelt("down")
    if arguments.write:
        arguments.write.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
