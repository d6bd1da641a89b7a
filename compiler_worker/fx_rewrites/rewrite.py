"""The rewrites by name, and what applies them to an exported program."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx
from torch.export import ExportedProgram

from compiler_worker.fx_rewrites.activations import recognise_gelu
from compiler_worker.fx_rewrites.attention_fusion import recognise_attention
from compiler_worker.fx_rewrites.batch_norms import fold_batch_norms
from compiler_worker.fx_rewrites.casts import fold_casts
from compiler_worker.fx_rewrites.common_subexpressions import share_repeated
from compiler_worker.fx_rewrites.constant_masks import fold_truths
from compiler_worker.fx_rewrites.convolutions import fuse_convolutions, use_channels_last
from compiler_worker.fx_rewrites.editor import Editor, aten
from compiler_worker.fx_rewrites.fp8_products import lower_fp8_products
from compiler_worker.fx_rewrites.int8_products import lower_int8_products
from compiler_worker.fx_rewrites.names import NAMES
from compiler_worker.fx_rewrites.norms import recognise_layer_norms
from compiler_worker.fx_rewrites.products import join_activations, join_biases
from compiler_worker.fx_rewrites.projections import merge_projections
from compiler_worker.fx_rewrites.reshapes import fold_reshapes
from compiler_worker.fx_rewrites.short_attention import use_short_attention
from compiler_worker.fx_rewrites.single_rows import split_single_rows

logger = logging.getLogger(__name__)

Rewrite = Callable[[Editor], int]

REWRITES: Mapping[str, Rewrite] = {
    "activations": join_activations,
    "attention": recognise_attention,
    "batch_norms": fold_batch_norms,
    "biases": join_biases,
    "casts": fold_casts,
    "channels_last": use_channels_last,
    "fp8_products": lower_fp8_products,
    "fused_convolutions": fuse_convolutions,
    "gelu": recognise_gelu,
    "int8_products": lower_int8_products,
    "layer_norms": recognise_layer_norms,
    "projections": merge_projections,
    "repeated": share_repeated,
    "reshapes": fold_reshapes,
    "short_attention": use_short_attention,
    "single_rows": split_single_rows,
    "truths": fold_truths,
}

# Exports a rewritten graph with the sizes that the program had.
Export = Callable[[fx.GraphModule], ExportedProgram]


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """A program after its rewrites.

    Attributes:
        counts: how often each rewrite applied, by name.
        joined: by name of a weight that others of the master make up: those, in order.
    """

    program: ExportedProgram
    counts: Mapping[str, int]
    joined: Mapping[str, tuple[torch.Tensor, ...]]


def rewritten(program: ExportedProgram, names: Sequence[str], export: Export) -> Rewritten:
    """Apply rewrites to a program; the result shares its weights.

    Args:
        program: an exported program; not changed.
        names: which of `NAMES`; applied in that order, whatever theirs is.
        export: exports the rewritten graph with the sizes of `program`.
    """
    # Guards compare sizes with those of the export: a size that is allowed was settled there.
    module = program.module(check_guards=False)
    editor = rewrite_graph(module, names)
    return Rewritten(program=export(module), counts=editor.counts, joined=editor.joined)


def rewrite_graph(module: fx.GraphModule, names: Sequence[str]) -> Editor:
    """Apply rewrites to an exported graph, in place; the editor has what was done.

    Args:
        module: `ExportedProgram.module()`, whose nodes carry their fake results.
        names: which of `NAMES`; applied in that order, whatever theirs is.
    """
    editor = Editor(module)
    _drop_assertions(editor)
    for name in NAMES:
        if name in names:
            editor.counts[name] = REWRITES[name](editor)
            # What was replaced would count as a reader of its operands.
            module.graph.eliminate_dead_code()
    editor.finish()
    logger.info("rewrites of the graph: %s", editor.counts)
    return editor


def _drop_assertions(editor: Editor) -> None:
    """Assertions of element types read values only to compare what an export has settled."""
    for node in editor.calls(aten._assert_tensor_metadata.default):  # noqa: SLF001
        editor.module.graph.erase_node(node)
