"""Inductor's record, read: which kernel computes what, with which bytes."""

from typing import Any

from compiler_worker.profiling.inductor_record import Work, kernels_of

# y = gelu(x @ a + b) @ c, as Inductor tells it: the lists of later kernels hold what came before.
PROVENANCE: dict[str, Any] = {
    "postToPre": {
        "mm": ["matmul"],
        "view": ["matmul"],
        "add": ["add"],
        "mul": ["gelu"],
        "erf": ["gelu"],
        "mm_1": ["matmul_1"],
        "tanh": ["tanh"],
    },
    "cppCodeToPost": {
        "aoti_torch_cpu_mm_out:1": ["mm"],
        "cpp_fused_add_gelu_0:2": ["add", "mul", "erf", "view"],
        "aoti_torch_cpu_mm_out:3": ["mm_1", "mul", "erf", "add"],
        "cpp_fused_tanh_1:4": ["tanh", "mm_1", "mul", "erf", "add"],
    },
}


def work(*computed: str, origins: tuple[str, ...] = (), is_extern: bool = False) -> Work:
    return Work(
        origins=frozenset(origins or computed),
        computed=frozenset(computed),
        is_extern=is_extern,
        num_bytes=10 * len(computed),
    )


def test_every_kernel_has_what_it_computes_and_its_bytes() -> None:
    first, fused, second, last = kernels_of(
        PROVENANCE,
        [
            work("mm", is_extern=True),
            # Two neighbours that become one kernel on a CPU.
            work("add"),
            work("mul", "erf", origins=("mul", "erf", "add")),
            work("mm_1", is_extern=True),
            work("tanh", origins=("tanh", "mul")),
        ],
    )
    assert (first.name, first.is_extern, first.nodes) == (
        "aoti_torch_cpu_mm_out",
        True,
        {"matmul"},
    )
    assert (fused.name, fused.is_extern) == ("cpp_fused_add_gelu_0", False)
    assert fused.nodes == {"add", "gelu"}
    assert second.nodes == {"matmul_1"}
    assert last.nodes == {"tanh"}
    assert [k.num_bytes for k in (first, fused, second, last)] == [10, 30, 10, 10]


def test_work_without_a_kernel_is_passed_over() -> None:
    kernels = kernels_of(
        PROVENANCE,
        [work("mm", is_extern=True), work("clone", is_extern=True), work("add", "mul", "erf")],
    )
    assert [k.num_bytes for k in kernels] == [10, 30, None, None]


def test_without_any_work_the_kernels_still_name_their_ops() -> None:
    kernels = kernels_of(PROVENANCE, [])
    assert all(kernel.num_bytes is None for kernel in kernels)
    assert kernels[1].nodes >= {"add", "gelu"}


def test_an_op_that_nobody_computes_exactly_counts_where_it_appears_first() -> None:
    kernels = kernels_of(
        PROVENANCE, [work("mm", is_extern=True), work("add"), work("mm_1", is_extern=True)]
    )
    assert [("gelu" in k.nodes) for k in kernels[:2]] == [False, True]
    assert kernels[3].nodes == {"tanh", "matmul_1", "gelu", "add"}


def test_a_product_is_not_also_the_next_one() -> None:
    first, second = kernels_of(
        {
            "postToPre": {"addmm": ["linear", "matmul"], "mm": ["matmul"]},
            "cppCodeToPost": {"extern_kernels.addmm:1": ["addmm"], "extern_kernels.mm:2": ["mm"]},
        },
        [work("addmm", is_extern=True), work("mm", is_extern=True)],
    )
    assert (first.nodes, second.nodes) == ({"linear"}, {"matmul"})


def test_triton_kernels_take_one_piece_each() -> None:
    found = kernels_of(
        {
            "postToPre": {"amax": ["softmax"], "sum": ["softmax"]},
            "cppCodeToPost": {
                "triton_red_fused_softmax_0:1": ["amax", "sum"],
                "triton_red_fused_softmax_0:2": ["amax", "sum"],
            },
        },
        [work("amax", origins=("amax", "sum")), work("sum", origins=("amax", "sum"))],
    )
    assert [kernel.num_bytes for kernel in found] == [10, 10]
    assert {kernel.nodes for kernel in found} == {frozenset({"softmax"})}
