"""Twelve models that people bring, one after another: served after how long, proven after how long.

    python -m tests.benchmarks.newcomers [--names NAME ...] [--exported FOLDER] [--write FILE.md]

Each is exported in its library's default way and given to a fleet of its own `SMELT_HOME` by
`smelt models add` without a recipe. Answers are compared with ONNX Runtime's as soon as the model
serves, by whatever serves it then, and again once an engine is proven.

torchvision, and so timm, as PyPI has them need torch's CUDA build. Where that is:

    python -m tests.benchmarks.newcomers --export FOLDER --names mobilenetv3 efficientnet_b0
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from services.contracts.kserve.tensors import Array
from tests.integration.newcomers.exports import NEWCOMERS, Inputs, plain

PORT = 18001
# Where the project's packages are on PYTHONPATH alone, there is no command.
_MAIN = "from services.cli.main import main; main()"
# Beyond what a build of the largest takes on two busy cores.
PROVEN_WITHIN_S = 900.0
_LOOK_S = 0.25
# A command takes half a second of a core, which a build has not meanwhile.
COMMAND_EACH_S = 4.0


class Row(NamedTuple):
    """One model: seconds since `models add` began, and how far answers are from the reference's."""

    added_s: float
    served_s: float
    proven_s: float
    engines: str
    first_error: float
    last_error: float


def export(name: str, folder: Path) -> None:
    """Write a model with its requests."""
    for place, inputs in enumerate(NEWCOMERS[name](folder / f"{name}.onnx")):
        np.savez(folder / f"{name}.{place}.npz", **inputs)


def exported(name: str, folder: Path) -> tuple[Path, list[Inputs]]:
    """What `export` wrote."""
    return folder / f"{name}.onnx", [dict(np.load(each)) for each in folder.glob(f"{name}.*.npz")]


def smelt(*arguments: str) -> str:
    """Run a command; what it printed.

    Raises:
        RuntimeError: it failed.
    """
    command = [sys.executable, "-c", _MAIN, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"smelt {' '.join(arguments)}: {ended.stdout}{ended.stderr}")
    return ended.stdout


def answer(
    client: InferenceServerClient, name: str, inputs: Inputs, *, timeout_s: float | None = None
) -> dict[str, Array]:
    """What serves now gives, by the output's name; None waits for ever."""
    sent = []
    for key, array in inputs.items():
        sent.append(InferInput(key, list(array.shape), np_to_triton_dtype(array.dtype)))
        sent[-1].set_data_from_numpy(array)
    result = client.infer(name, sent, client_timeout=timeout_s)
    return {each.name: result.as_numpy(each.name) for each in result.get_response().outputs}


def error(found: Mapping[str, Array], wanted: Mapping[str, Array]) -> float:
    """Of the worst output: the largest difference, of that output's largest value."""
    return max(
        float(np.abs(found[name].astype(float) - array).max(initial=0))
        / max(float(np.abs(array).max(initial=0)), 1e-30)
        for name, array in wanted.items()
    )


def wanted_of(path: Path, requests: Sequence[Inputs]) -> list[dict[str, Array]]:
    """ONNX Runtime's answers, by the output's name."""
    session = onnxruntime.InferenceSession(str(path))
    names = [output.name for output in session.get_outputs()]
    answers = [map(plain, session.run(None, dict(each))) for each in requests]
    return [dict(zip(names, answer, strict=True)) for answer in answers]


def proven(name: str) -> str:
    """The engines that are, by kind and precision; "" when none is."""
    masters: list[dict[str, Any]] = json.loads(smelt("engines", name, "--json"))["masters"]
    engines = [each for master in masters for each in master["engines"]]
    passed = [each["manifest"]["key"] for each in engines if each["proof"]["outcome"] == "passed"]
    return ", ".join(f"{key['kind']} {key['precision']}" for key in passed)


def measure(client: InferenceServerClient, exported_name: str, folder: Path) -> Row:
    """Add one that was exported, wait until it serves and is proven, and remove it."""
    path, requests = exported(exported_name, folder)
    name = exported_name.replace(" ", "-").lower()
    wanted = wanted_of(path, requests)

    def worst() -> float:
        pairs = zip(requests, wanted, strict=True)
        return max(error(answer(client, name, sent), right) for sent, right in pairs)

    began_s = time.monotonic()
    smelt("models", "add", name, str(path))
    added_s = time.monotonic() - began_s
    while True:
        try:
            first_error = worst()
            break
        except InferenceServerException:
            time.sleep(_LOOK_S)
    served_s = time.monotonic() - began_s
    while not (engines := proven(name)) and time.monotonic() - began_s < PROVEN_WITHIN_S:
        time.sleep(COMMAND_EACH_S)
    proven_s = time.monotonic() - began_s if engines else float("nan")
    last_error = worst()
    smelt("models", "remove", name)
    return Row(added_s, served_s, proven_s, engines, first_error, last_error)


def main() -> None:
    """Start a fleet, measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--names", nargs="*", default=[*NEWCOMERS], choices=[*NEWCOMERS])
    parser.add_argument("--exported", type=Path, help="by --export; its models are taken")
    parser.add_argument("--export", type=Path, help="export to this folder, and no more")
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    if arguments.export:
        for name in arguments.names:
            export(name, arguments.export)
        return
    lines = [
        "| model | added s | served s | proven s | first engine | error, served | error, proven |",
        "|---|---:|---:|---:|---|---:|---:|",
    ]
    with tempfile.TemporaryDirectory() as home:
        os.environ["SMELT_HOME"] = home
        smelt("up", "--detach", "--grpc-port", str(PORT), "--metrics-port", "0")
        try:
            client = InferenceServerClient(f"127.0.0.1:{PORT}")
            for name in arguments.names:
                folder = arguments.exported
                if not (folder and (folder / f"{name}.onnx").exists()):
                    folder = Path(home)
                    export(name, folder)
                row = measure(client, name, folder)
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
