"""Integers that name the largest of some values: ids are compared through those values.

Of two classes that score the same, whichever an engine names is right. Where the graph has the
values that an output of ids was made of, they decide; elsewhere ids are equal or they are not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compiler_worker.measures.task_scores import tie_margin
from compiler_worker.references.models import FxModel
from services.contracts.errors import SmeltError
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Tolerance

_MAKES_IDS = ("ArgMax", "ArgMin", "TopK")
_KEEPS_IDS = ("Cast", "Identity")


@dataclass(frozen=True, kw_only=True)
class IdSource:
    """What an output of ids was made of.

    Attributes:
        tensor: the values' name in the graph.
        axis: of the values, along which ids count.
        is_axis_kept: whether ids have that axis too.
    """

    tensor: str
    axis: int
    is_axis_kept: bool


class IdValues:
    """The values that a master's outputs of ids were made of, computed in float64 when asked."""

    def __init__(self, master_path: Path, master: MasterRecord) -> None:
        """Read the graph at the first question: most masters have no such output."""
        self._master_path = master_path
        self._master = master

    def ties(
        self,
        output: str,
        inputs: Mapping[str, Array],
        found: Array,
        wanted: Array,
        allowed: Tolerance,
    ) -> NDArray[np.bool_]:
        """Find ids that name values which an engine of this precision cannot distinguish.

        Args:
            output: name of the output of ids.
            inputs: of the run, of any shape.
            found: the engine's ids, integers of the output's shape.
            wanted: the reference's, of the same shape.
            allowed: its `rel_l2` times the root mean square of the values is what counts as equal.

        Returns:
            True where both ids are right, in the shape of `wanted`; all False without the values.
        """
        none: NDArray[np.bool_] = np.zeros(wanted.shape, dtype=np.bool_)
        source = self._sources.get(output)
        if source is None or self._model is None:
            return none
        values = self._model.run(inputs)[source.tensor].astype(np.float64)
        axis = source.axis % values.ndim
        pair = [
            ids if source.is_axis_kept else np.expand_dims(ids, axis) for ids in (found, wanted)
        ]
        if any(ids.ndim != values.ndim for ids in pair):
            return none
        size = values.shape[axis]
        is_legal = (pair[0] >= 0) & (pair[0] < size)
        # An engine may answer any integer, and take_along_axis raises on those outside.
        first, second = (
            np.take_along_axis(values, np.where(is_legal, ids, 0).astype(np.int64), axis)
            for ids in pair
        )
        # What a usual value may be off by: the largest one's error would excuse coarser types.
        margin = tie_margin(values, allowed.rel_l2 * float(np.sqrt((values**2).mean())), axis)
        is_tie: NDArray[np.bool_] = is_legal & (np.abs(first - second) <= margin)
        return is_tie.reshape(wanted.shape)

    @cached_property
    def _sources(self) -> dict[str, IdSource]:
        integers = [spec.name for spec in self._master.outputs if "INT" in spec.datatype]
        return id_sources(self._master_path, integers) if integers else {}

    @cached_property
    def _model(self) -> FxModel | None:
        """The master in float64 with the values as its outputs; None when it has no import."""
        names = sorted({source.tensor for source in self._sources.values()})
        try:
            return FxModel.of_values(self._master_path, self._master, names)
        except SmeltError:
            return None


def id_sources(master_path: Path, outputs: list[str]) -> dict[str, IdSource]:
    """By output, where its ids come from; outputs that are no ids are left out."""
    import onnx

    # Nodes alone: the weights may take gigabytes.
    proto = onnx.load(master_path, load_external_data=False)
    makers = {name: node for node in proto.graph.node for name in node.output}
    sources = {}
    for output in outputs:
        node = makers.get(output)
        name = output
        while node is not None and node.op_type in _KEEPS_IDS:
            name = node.input[0]
            node = makers.get(name)
        if node is None or node.op_type not in _MAKES_IDS:
            continue
        is_top_k = node.op_type == "TopK"
        # TopK's other output are the values themselves.
        if is_top_k and name != node.output[1]:
            continue
        given = {attribute.name: attribute.i for attribute in node.attribute}
        sources[output] = IdSource(
            tensor=node.input[0],
            # ONNX's defaults: the last axis of TopK, the first of ArgMax and ArgMin.
            axis=given.get("axis", -1 if is_top_k else 0),
            is_axis_kept=is_top_k or bool(given.get("keepdims", 1)),
        )
    return sources
