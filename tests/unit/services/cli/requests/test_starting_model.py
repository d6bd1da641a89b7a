"""`smelt infer` waits for a model whose replicas are starting, and for no other."""

from pathlib import Path

import grpc
import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from services.cli.main import app
from services.cli.requests import starting_model
from services.contracts.errors import NotReadyError
from services.pb import open_inference_v2_pb2 as pb
from tests.unit.services.cli.requests.gateway_stub import gateway_with

STARTING = ("LOADING", "replicas are starting")


class Gateway:
    """Answers once its index says READY; each look at the index brings the next state."""

    def __init__(self, *states: tuple[str, str]) -> None:
        self._states = list(states)
        self.num_requests = 0

    def infer(
        self, request: pb.ModelInferRequest, context: grpc.ServicerContext
    ) -> pb.ModelInferResponse:
        self.num_requests += 1
        if self._states[0][0] != "READY":
            context.abort(grpc.StatusCode.UNAVAILABLE, f"no ready replica: {self._states[0][1]}")
        return pb.ModelInferResponse(model_name=request.model_name, model_version="2")

    def index(
        self, _: pb.RepositoryIndexRequest, context: grpc.ServicerContext
    ) -> pb.RepositoryIndexResponse:
        state, reason = self._states[0]
        if state == "FORBIDDEN":
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "for admins")
        del self._states[: len(self._states) > 1]
        answer = pb.RepositoryIndexResponse()
        answer.models.add(name="m", version="1", state="UNAVAILABLE", reason="withdrawn")
        answer.models.add(name="m", version="2", state=state, reason=reason)
        answer.models.add(name="other", version="1", state="LOADING")
        return answer


def ask(gateway: Gateway, folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> Result:
    monkeypatch.setattr(starting_model, "PERIOD_S", 0.0)
    np.save(folder / "x.npy", np.ones((1, 2), np.float32))
    given = "--input", f"x=@{folder / 'x.npy'}", *words
    with gateway_with(ModelInfer=gateway.infer, RepositoryIndex=gateway.index) as address:
        return CliRunner().invoke(app, ["infer", "m", "--address", address, *given])


@pytest.mark.parametrize("words", [(), ("--version", "2")])
def test_it_waits_until_the_replicas_have_started(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = Gateway(STARTING, ("LOADING", "no room on a GPU"), ("READY", ""))
    done = ask(gateway, tmp_path, monkeypatch, *words)
    assert (done.exit_code, gateway.num_requests) == (0, 2)
    assert "m version 2" in done.stdout
    assert "replicas are starting" in done.stderr


def test_what_fails_meanwhile_is_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = Gateway(STARTING, ("UNAVAILABLE", "not enough memory"))
    done = ask(gateway, tmp_path, monkeypatch)
    assert isinstance(done.exception, NotReadyError)
    assert "not enough memory" in str(done.exception)


@pytest.mark.parametrize("state", [("UNAVAILABLE", "unloaded"), ("FORBIDDEN", "starting")])
@pytest.mark.parametrize("words", [(), ("--version", "1")])
def test_nothing_else_is_awaited(
    state: tuple[str, str],
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gateway = Gateway(state)
    done = ask(gateway, tmp_path, monkeypatch, *words)
    assert isinstance(done.exception, NotReadyError)
    assert state[1] in str(done.exception)
    assert gateway.num_requests == 1
