"""Requests to a fleet: known numbers of them, and others that never end."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.integration.fleet.onnx_files import NUM_FEATURES

# The models whose figures are known; others share the fleet.
WATCHED = 'model=~"counted|bare|busy"'
QUIET = 'model=~"counted|bare"'
NUM_ASKED = 20
BATCH = 3
_PAUSE_S = 0.02


def tensor(name: str, width: int) -> triton.InferInput:
    """Ones, [BATCH, width]."""
    x_BF = np.ones((BATCH, width), np.float32)
    made = triton.InferInput(name, x_BF.shape, "FP32")
    made.set_data_from_numpy(x_BF)
    return made


def ask_known_numbers(address: str) -> None:
    """Good requests to `counted` and `bare`, a wrong one, and one for nothing."""
    good, wrong = tensor("x", NUM_FEATURES), tensor("wrong", NUM_FEATURES)
    with triton.InferenceServerClient(address) as client:
        for model in ("counted", "bare"):
            for _ in range(NUM_ASKED):
                client.infer(model, [good])
        for model, given in (("counted", wrong), ("nope", good)):
            with pytest.raises(InferenceServerException):
                client.infer(model, [given])


@contextmanager
def endless(address: str, model: str, width: int) -> Iterator[None]:
    """Good, wrong and late requests, until the block ends: rates need figures that grow."""
    is_over = threading.Event()
    caller = threading.Thread(target=_ask_until, args=(address, model, width, is_over))
    caller.start()
    try:
        yield
    finally:
        is_over.set()
        caller.join()


def _ask_until(address: str, model: str, width: int, is_over: threading.Event) -> None:
    good, wrong = tensor("x", width), tensor("wrong", width)
    with triton.InferenceServerClient(address) as client:
        while not is_over.wait(_PAUSE_S):
            with suppress(InferenceServerException):
                client.infer(model, [good])
            with suppress(InferenceServerException):
                client.infer(model, [wrong])
            with suppress(InferenceServerException):
                # Its deadline, in microseconds, has passed before any batch can take it.
                client.infer(model, [good], timeout=1)
