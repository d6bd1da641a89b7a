"""The model index behind the gate: what a caller sees of it."""

from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from services.gateway.access.access_file import Grant
from services.gateway.access.caller import Caller
from services.gateway.access.guard import guarded
from services.gateway.access.verbs import Verb
from services.gateway.api.status_codes import StatusTable
from services.pb import open_inference_v2_pb2 as pb

WHY = "evicted, as secret version 1 had no capacity"
INDEX = pb.RepositoryIndexResponse(
    models=[
        pb.RepositoryIndexResponse.ModelIndex(name=name, version="1", reason=WHY)
        for name in ("mine", "secret")
    ]
)


@pytest.mark.parametrize(
    ("grants", "seen"),
    [
        ([Grant(verbs=(Verb.INFER,), models=("mine",))], [("mine", "")]),
        ([Grant(verbs=(Verb.INFER,), models=("*",))], [("mine", ""), ("secret", "")]),
        ([Grant(verbs=(Verb.ADMIN,), models=("*",))], [("mine", WHY), ("secret", WHY)]),
        ([], []),
    ],
    ids=["one model", "all models", "admin", "none"],
)
async def test_it_names_no_model_of_which_the_caller_may_not_ask(
    grants: list[Grant], seen: list[tuple[str, str]]
) -> None:
    async def index(*_: object) -> pb.RepositoryIndexResponse:
        return INDEX

    async def caller_of(_: object) -> Caller:
        return Caller(name="somebody", grants=tuple(grants))

    gate: Any = SimpleNamespace(caller_of=caller_of)
    handlers = {"RepositoryIndex": grpc.unary_unary_rpc_method_handler(index)}
    behaviour: Any = guarded(handlers, gate, StatusTable(), lambda *_: None)["RepositoryIndex"]
    context = SimpleNamespace(invocation_metadata=tuple, peer=str)
    answer = await behaviour.unary_unary(pb.RepositoryIndexRequest(), context)
    assert [(each.name, each.reason) for each in answer.models] == seen
