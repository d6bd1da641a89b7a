"""A gateway's port with some RPCs, for commands that ask one."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from services.pb import open_inference_v2_pb2 as pb


@contextmanager
def gateway_with(**rpcs: Callable[[Any, grpc.ServicerContext], Any]) -> Iterator[str]:
    """The address of a gateway that has these RPCs, by name."""
    methods = {
        name: grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=getattr(pb, f"{name}Request").FromString,
            response_serializer=getattr(pb, f"{name}Response").SerializeToString,
        )
        for name, answer in rpcs.items()
    }
    service = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
