"""Ensembles of trees for ONNX's reference implementation: votes are added up as given.

onnx 1.23 adds votes of classes up in float32 though inputs are doubles, which moves labels where
two classes have as many; and it reads no attribute that is given in doubles (`..._as_tensor`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.aionnxml import _common_classifier, op_tree_ensemble_regressor

from services.contracts.kserve.tensors import Array

# Untyped, and called for an op of another class.
_SUM: Any = op_tree_ensemble_regressor.TreeEnsembleRegressor
_TRANSFORMS: dict[str, Callable[[Array], Array]] = {
    "LOGISTIC": _common_classifier.logistic,
    "SOFTMAX": _common_classifier.softmax,
    "SOFTMAX_ZERO": _common_classifier.softmax_zero,
    "PROBIT": _common_classifier.probit,
}


class TreeEnsembleRegressor(OpRun):
    """Sums in the type of its inputs, of integers in float32."""

    op_domain = "ai.onnx.ml"

    def _run(self, x: Array, **attributes: Any) -> tuple[Array]:
        return (_summed(self, x, attributes),)


class TreeEnsembleClassifier(OpRun):
    """The class with most votes, and the scores that are made of them."""

    op_domain = "ai.onnx.ml"

    def _run(
        self,
        x: Array,
        *,
        classlabels_int64s: Sequence[int] | None = None,
        classlabels_strings: Sequence[str] | None = None,
        post_transform: str | None = None,
        **attributes: Any,
    ) -> tuple[Array, Array]:
        labels = classlabels_int64s or classlabels_strings or ()
        as_targets = {name.replace("class_", "target_"): each for name, each in attributes.items()}
        as_targets |= {"n_targets": len(labels), "aggregate_function": "SUM"}
        votes = _summed(self, x, as_targets)
        voted = set(as_targets["target_ids"])
        if len(voted) == 1:
            # Of two classes the second alone is voted for.
            second = votes[:, voted.pop()]
            is_share = post_transform in (None, "NONE", "PROBIT")
            votes = np.stack([1 - second if is_share else -second, second], axis=1)
            if list(labels) == [1]:
                labels = (0, 1)
        best = votes.argmax(axis=1)
        transform = _TRANSFORMS.get(post_transform or "NONE")
        scores: Array = transform(votes) if transform else votes
        return np.array(labels)[best], scores.astype(np.float32)


def _summed(op: OpRun, x: Array, attributes: Mapping[str, Any]) -> Array:
    """What all trees answer, [rows, targets]: a missing value takes the false branch by default."""
    given = {
        name.removesuffix("_as_tensor"): value
        for name, value in attributes.items()
        if value is not None
    }
    given.setdefault("nodes_missing_value_tracks_true", [0] * len(given["nodes_nodeids"]))
    floats = x if x.dtype.kind == "f" else x.astype(np.float32)
    summed: Array
    (summed,) = _SUM._run(op, floats, **given)  # noqa: SLF001 (what every op overrides)
    return summed
