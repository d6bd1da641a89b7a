"""A small report, made by hand."""

from compiler_worker.profiling.profile_report import (
    EagerOp,
    GraphBreak,
    GraphOp,
    KernelCall,
    OpOutcome,
    Peaks,
    ProfileFiles,
    ProfileReport,
    Side,
    SourceReport,
)
from services.contracts.hardware.kinds import Precision

PEAKS = Peaks(flops_per_s=1e9, bytes_per_s=1e8, measured_by="a product, a copy")
FILES = ProfileFiles(
    report="report.json", trace_eager="e.json", trace_compiled="c.json", picture="p.svg"
)
SOURCE = SourceReport(
    source="m:f",
    num_graphs=2,
    num_ops=3,
    breaks=(GraphBreak(file="m.py", line=7, reason="call to print"),),
)


def eager_op(name: str, target: str, time_s: float) -> EagerOp:
    return EagerOp(
        name=name,
        target=target,
        dispatched=(target,),
        num_bytes=4000,
        num_flops=0,
        time_s=time_s,
    )


def graph_op(
    name: str, target: str, *kernels: int, outcome: OpOutcome = OpOutcome.KERNEL
) -> GraphOp:
    plain = eager_op(name, target, 1e-3).model_dump()
    return GraphOp(**plain, outcome=outcome, kernels=kernels)


def kernel_call(name: str, *chain: str) -> KernelCall:
    return KernelCall(
        name=name,
        is_extern=False,
        ops=chain,
        chain=chain,
        eager_bytes=8000,
        eager_time_s=2e-3,
        num_bytes=4000,
        num_flops=0,
        num_chain_ops=2,
        num_side_inputs=0,
        predicted_gain=2.0,
        measured_gain=2.0,
        time_s=1e-3,
        roofline_share=0.04,
    )


def small_report() -> ProfileReport:
    """Two ops, one kernel, one graph break."""
    ops = (graph_op("add", "aten.add.Tensor", 0), graph_op("gelu", "aten.gelu.default", 0))
    side = {"num_bytes": 8000, "num_flops": 0, "time_s": 2e-3, "roofline_share": 0.04}
    return ProfileReport(
        model="tiny",
        version=1,
        master_digest="a" * 64,
        precision=Precision.FP32,
        bucket="batch4",
        sizes={"batch": 4},
        generation="cpu-x86_64-v3",
        device_name="a <fast> processor & more",
        toolchain={"torch": "1"},
        num_threads=2,
        num_runs=5,
        compiled_as="by AOTInductor",
        peaks=PEAKS,
        before=Side(num_ops=2, num_views=1, latency_s=3e-3, **side),
        after=Side(num_ops=1, latency_s=1e-3, **side),
        rewrites={"gelu": 1},
        eager_ops=tuple(eager_op(op.name, op.target, 1e-3) for op in ops),
        ops=ops,
        kernels=(kernel_call("cpp_fused_add_gelu_0", "add", "gelu"),),
        source=SOURCE,
        files=FILES,
    )
