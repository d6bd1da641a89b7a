"""A report in words."""

from compiler_worker.profiling.profile_report import OpOutcome
from compiler_worker.profiling.report_lines import (
    chain_words,
    fusion_rows,
    notes,
    report_parts,
    short_kernel,
    summary_rows,
)
from tests.unit.compiler_worker.profiling.reports import graph_op, kernel_call, small_report


def test_repeated_ops_are_counted() -> None:
    assert chain_words(["add", "add", "gelu", "add"]) == "add x2 → gelu → add"
    assert chain_words([]) == ""


def test_the_lines_hold_everything() -> None:
    parts = report_parts(small_report())
    text = "\n".join(p if isinstance(p, str) else "\n".join(p.lines(width=None)) for p in parts)
    for part in (
        "2 (and 1 views)",
        "add → gelu",
        "2.00x (n=2 c=0)",
        "m.py:7",
        "call to print",
        "p.svg",
        "e.json",
        "c.json",
        "report.json",
        "gelu 1",
        "1 graph break,",
    ):
        assert part in text, part


def test_long_kernel_names_are_shortened() -> None:
    assert short_kernel("aoti_torch_cpu_mm_out") == "mm_out"
    name = "cpp_fused_" + "add_" * 20 + "17"
    assert (short_kernel(name)[:10], short_kernel(name)[-5:]) == ("cpp_fused_", "dd_17")
    assert len(short_kernel(name)) == 30


def test_kernels_of_one_chain_stand_in_one_row() -> None:
    report = small_report()
    twice = tuple(kernel_call(f"cpp_fused_add_gelu_{i}", "add", "gelu") for i in range(2))
    other = kernel_call("cpp_fused_tanh_2", "tanh")
    first, last = fusion_rows(report.model_copy(update={"kernels": (other, *twice)}))
    assert first[:3] == ("2", "add → gelu", "cpp_fused_add_gelu_0")
    assert (first[3], first[4], first[5]) == ("16.0 kB", "8.0 kB", "2.00x")
    assert last[:2] == ("1", "tanh")


def test_what_no_kernel_computes_is_told() -> None:
    outcomes = (
        OpOutcome.FOLDED,
        OpOutcome.SHARED,
        OpOutcome.UNUSED,
        OpOutcome.SIMPLIFIED,
        OpOutcome.FREE,
    )
    ops = tuple(graph_op(outcome.value, "aten.add.Tensor", outcome=outcome) for outcome in outcomes)
    told = "\n".join(notes(small_report().model_copy(update={"ops": ops})))
    assert all(
        f"1 ops {words}" in told for words in ("computed once", "equal", "used by no output")
    )
    assert "simplified away: simplified" in told
    assert "free" not in told


def test_gpu_kernels_have_a_row_where_there_are_any() -> None:
    report = small_report()
    assert not any("GPU" in row[0] for row in summary_rows(report))
    sides = {
        name: getattr(report, name).model_copy(update={"num_gpu_kernels": num})
        for name, num in (("before", 6), ("after", 2))
    }
    rows = summary_rows(report.model_copy(update=sides))
    assert ("kernels on the GPU", "6", "2", "3.00x") in rows
