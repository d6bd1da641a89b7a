"""Triton with the no-op models in Python, in an environment that has nvidia-pytriton.

    INTERPRETER -m tests.benchmarks.dataplane.peer_pytriton ORDER

ORDER is the JSON object that `peers` writes. Runs until its input ends. The batches are as large
as Smelt's may be; Triton's dynamic batcher forms them without waiting, as it does by default.
"""

import json
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
from pytriton.decorators import batch  # type: ignore[import-not-found]
from pytriton.model_config import ModelConfig, Tensor  # type: ignore[import-not-found]
from pytriton.triton import Triton, TritonConfig  # type: ignore[import-not-found]

NUM_ANSWERED = 10
_HOST = "127.0.0.1"


def noop(x: Any) -> dict[str, Any]:
    """The first values of each row of a batch."""
    return {"y": x[:, :NUM_ANSWERED]}


def serve(order: dict[str, Any]) -> None:
    """Serve until the input ends."""
    ports = {f"{name}_port": port for name, port in order["ports"].items()}
    hosts = {f"{name}_address": _HOST for name in order["ports"]}
    with Triton(
        config=TritonConfig(**ports, **hosts), workspace=Path(order["folder"]) / "triton"
    ) as triton:
        for name, model in order["models"].items():
            dtype = np.dtype(model["dtype"]).type
            triton.bind(
                model_name=name,
                infer_func=batch(noop),
                inputs=[Tensor(name="x", dtype=dtype, shape=(model["width"],))],
                outputs=[Tensor(name="y", dtype=dtype, shape=(NUM_ANSWERED,))],
                config=ModelConfig(max_batch_size=model["max_batch"]),
            )
        sys.stdin.read()


def prefer_own_libpython() -> None:
    """Triton's stub loads libpython by name: let it find this interpreter's, not the system's."""
    own, others = sysconfig.get_config_var("LIBDIR"), os.environ.get("LD_LIBRARY_PATH")
    os.environ["LD_LIBRARY_PATH"] = f"{own}:{others}" if others else own


if __name__ == "__main__":
    prefer_own_libpython()
    serve(json.loads(sys.argv[1]))
