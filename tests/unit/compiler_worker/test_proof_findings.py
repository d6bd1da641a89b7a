"""A proof tells what the builder warned of, and what the loader did."""

from io import StringIO
from types import SimpleNamespace

from compiler_worker.child import Events
from compiler_worker.prove import Verdict
from compiler_worker.prove_child import _Proving
from compiler_worker.requests import ProofRequest
from services.contracts.manifest import DeviceFacts


def test_the_builder_s_warnings_stand_in_the_proof() -> None:
    device = DeviceFacts(generation="cpu-x86_64-v3", name="a CPU", memory_gib=1)
    warned = ("the parser casts INT64 down",)
    request = ProofRequest.model_construct(manifest=SimpleNamespace(findings=warned), device=device)
    proving = _Proving(request, Events(StringIO()))
    proving._findings.append("loaded without a cache")
    proof = proving._proof(Verdict(reason=""), "float64")
    assert proof.findings == (*warned, "loaded without a cache")
    assert request.manifest.findings == warned
