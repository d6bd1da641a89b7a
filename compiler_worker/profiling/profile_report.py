"""The result of a profile, as one document; `report.json` is its JSON.

It imports nothing heavy: showing a report needs no torch.
"""

from enum import StrEnum

from services.contracts.hardware.kinds import Precision
from services.contracts.model.document import Document


class OpOutcome(StrEnum):
    """What became of an op of the graph when it was compiled."""

    KERNEL = "kernel"
    FREE = "free"
    FOLDED = "folded"
    SHARED = "shared"
    UNUSED = "unused"
    SIMPLIFIED = "simplified"


class Peaks(Document):
    """What this machine reached in the same run.

    Attributes:
        measured_by: how.
    """

    flops_per_s: float
    bytes_per_s: float
    measured_by: str

    def best(self, other: "Peaks") -> "Peaks":
        """The better of both measurements."""
        return Peaks(
            flops_per_s=max(self.flops_per_s, other.flops_per_s),
            bytes_per_s=max(self.bytes_per_s, other.bytes_per_s),
            measured_by=self.measured_by,
        )

    def ideal_s(self, num_flops: float, num_bytes: float) -> float:
        """The least seconds that so much work can take: the roofline."""
        return max(num_flops / self.flops_per_s, num_bytes / self.bytes_per_s)

    def share(self, num_flops: float, num_bytes: float, time_s: float) -> float | None:
        """Share of the roofline that was reached; None for work that lasted no time.

        Args:
            num_flops: of the work.
            num_bytes: that it moves.
            time_s: that it took.
        """
        return self.ideal_s(num_flops, num_bytes) / time_s if time_s > 0 else None


class Side(Document):
    """The whole model, before or after.

    Attributes:
        num_ops: before: ATen ops dispatched that are no views; after: kernel calls of the
            compiled code, generated and extern.
        num_views: ATen ops dispatched that move nothing; None after.
        num_gpu_kernels: kernels that the profiler saw on the GPU in one run; None on a CPU.
        num_bytes: before: inputs and outputs of each op; after: reads and writes of each kernel.
        num_flops: of matrix products, convolutions and attention.
        time_s: of all ops or kernels together.
        latency_s: of one run without the profiler, the fastest.
        roofline_share: of all its parts together.
    """

    num_ops: int
    num_views: int | None = None
    num_gpu_kernels: int | None = None
    num_bytes: int
    num_flops: int
    time_s: float
    latency_s: float
    roofline_share: float | None


class EagerOp(Document):
    """One op of a graph, as eager PyTorch runs it.

    Attributes:
        name, target: of the graph's node.
        dispatched: the ATen ops that it became, views too.
        num_bytes: inputs and outputs of those, each read or written once.
        time_s: of its fastest run. On a GPU the time of its kernels.
    """

    name: str
    target: str
    dispatched: tuple[str, ...]
    num_bytes: int
    num_flops: int
    time_s: float | None


class GraphOp(EagerOp):
    """One op of the graph that Inductor was given, and what became of it.

    Attributes:
        shared_with: an equal op, computed once for both.
        kernels: indices of the kernels that compute it. Its bytes and FLOPs are set against
            the first.
    """

    outcome: OpOutcome
    shared_with: str = ""
    kernels: tuple[int, ...] = ()


class KernelCall(Document):
    """One kernel call of the compiled code.

    Attributes:
        is_extern: a library's, not generated.
        ops: names of the graph's ops that it computes, in order; those that only look at
            memory are left out.
        chain: what those are.
        eager_bytes, eager_time_s: of those ops when they run one by one; one that is computed in
            several kernels counts in one of them.
        num_bytes: reads and writes of Inductor's schedule; None when unknown.
        num_chain_ops, num_side_inputs: n and c, when it is one chain on tensors of one size.
        predicted_gain: (2n + c) / (2 + c) then.
        measured_gain: eager bytes to its own.
        time_s: of its fastest run; None when the profiler did not record it.
    """

    name: str
    is_extern: bool
    ops: tuple[str, ...]
    chain: tuple[str, ...]
    eager_bytes: int
    eager_time_s: float
    num_bytes: int | None
    num_flops: int
    num_chain_ops: int | None = None
    num_side_inputs: int | None = None
    predicted_gain: float | None = None
    measured_gain: float | None = None
    time_s: float | None
    roofline_share: float | None


class GraphBreak(Document):
    """A place in a PyTorch source where tracing had to stop.

    Attributes:
        file, line: of the source.
        reason: in torch's words.
    """

    file: str
    line: int
    reason: str


class SourceReport(Document):
    """What Dynamo found in a PyTorch source.

    Attributes:
        num_graphs: pieces that it became; 1 when nothing breaks it.
        num_ops: ops in all pieces.
    """

    source: str
    num_graphs: int
    num_ops: int
    breaks: tuple[GraphBreak, ...]


class ProfileFiles(Document):
    """Where the files of a profile lie."""

    report: str
    trace_eager: str
    trace_compiled: str
    picture: str


class ProfileReport(Document):
    """A profile.

    Attributes:
        sizes: the dynamic dimensions that were run: the largest of the bucket.
        toolchain: versions by library.
        num_threads: of torch on a CPU.
        num_runs: profiled runs of each side; times are of the fastest, for each op on its own.
        compiled_as: by what route, in words.
        rewrites: how often each rewrite applied to the imported graph, before Inductor got it.
        eager_ops: of the imported graph.
        ops: of the graph that Inductor got; the same without rewrites.
        source: None when no PyTorch source was given.
    """

    model: str
    version: int
    master_digest: str
    precision: Precision
    bucket: str
    sizes: dict[str, int]
    generation: str
    device_name: str
    toolchain: dict[str, str]
    num_threads: int
    num_runs: int
    compiled_as: str
    peaks: Peaks
    before: Side
    after: Side
    rewrites: dict[str, int]
    eager_ops: tuple[EagerOp, ...]
    ops: tuple[GraphOp, ...]
    kernels: tuple[KernelCall, ...]
    source: SourceReport | None
    files: ProfileFiles


def short_name(target: str) -> str:
    """`layer_norm` of `aten.layer_norm.default`."""
    parts = target.split(".")
    return parts[1] if len(parts) > 2 else parts[-1]
