"""From a call that launches kernels to one that replays them all at once."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

Call = Callable[[], Sequence[torch.Tensor]]
Capture = Callable[[Call], Call]

# As often as torch's own `make_graphed_callables`; a library may still allocate in a second call.
_NUM_WARM_UPS = 3
# What another thread launches on a stream that is captured would be in the graph.
_CAPTURING = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A captured call.

    Attributes:
        call: what was captured. The graph holds addresses only: weights and buffers live as
            long as this does.
        graph: the launches.
        outputs: static memory that each replay writes.
    """

    call: Call
    graph: torch.cuda.CUDAGraph
    outputs: Sequence[torch.Tensor]

    def __call__(self) -> Sequence[torch.Tensor]:
        """Replay, and return the static outputs."""
        self.graph.replay()
        return self.outputs


def capture_cuda_graph(call: Call) -> Call:
    """Capture a call on static inputs; the result replays it and returns its static outputs.

    Warm-up runs on the stream of the capture first, so that lazy initialisation (module loading,
    workspaces) happens outside the capture.
    """
    with _CAPTURING:
        stream = _side_stream(torch.cuda.current_device())
        # Inputs are written on the current stream.
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_NUM_WARM_UPS):
                call()
        # The capture uses the same buffers: not before the last warm-up is done with them.
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # thread_local: another engine of this process may serve while this one is captured.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            outputs = call()
    return Replay(call=call, graph=graph, outputs=outputs)


def free_cached_memory() -> None:
    """Have torch free what it keeps for later, for others on the device; CPUs have none of it."""
    # A capture fails where memory is freed meanwhile.
    with _CAPTURING:
        torch.cuda.empty_cache()


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """One for all: cuBLAS keeps a workspace for each that it ran on (33 MiB on SM 9.0)."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
