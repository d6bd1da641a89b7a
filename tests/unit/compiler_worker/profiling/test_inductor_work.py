"""What a piece of Inductor's work computes."""

import torch
import torch._inductor.inductor_prims  # registers what puts a result in order
from torch.fx import Graph

from compiler_worker.profiling.inductor_work import Piece


def test_a_library_s_call_whose_result_is_put_in_order_computes_the_product() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    product = graph.call_function(torch.ops.aten.mm.default, (x, x))
    order = torch.ops.prims.inductor_force_stride_order.default
    ordered = graph.call_function(order, (product, (8, 1)))
    for origin in (product, ordered):
        piece = Piece(node=None, name="buf0", is_extern=True, origins=frozenset([origin]))
        assert piece.computed(frozenset()) == {product}
