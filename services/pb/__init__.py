"""Generated from protos/ by .ci/generate; never edited by hand.

`*_pb2.py` are messages. `fleet_v1_pb2_grpc.py` is what grpcio-tools makes of a service: a stub to
call it, and a base class whose methods answer UNIMPLEMENTED, so that a server may know fewer RPCs
than its proto. `controller/api/fleet_control.py` implements all of them. The inference service has no
such class: `gateway/api/handlers.py` takes each RPC from the descriptor, answers those of its
`offered_handlers`, and refuses the others saying what would switch them on.
"""
