"""The kinds of models, and which engine stands for each precision."""

from services.contracts.hardware.kinds import EngineKind, Precision
from tests.faults.saboteurs.models_of_signals import SIGNALS
from tests.faults.saboteurs.models_of_tables import TABLES
from tests.faults.saboteurs.models_of_text import TEXT

ZOO = {**TEXT, **SIGNALS, **TABLES}
_ENGINES: dict[Precision, EngineKind | None] = {
    Precision.FP32: EngineKind.ONNXRUNTIME,
    Precision.BF16: EngineKind.OPENVINO,
    Precision.FP16: None,
    Precision.INT8: EngineKind.ONNXRUNTIME,
}
_OTHERS: dict[tuple[str, Precision], EngineKind | None] = {
    # OpenVINO computes T5's buckets of distances in bf16 too, and its engine is refused.
    ("t5", Precision.BF16): None,
}


def kind_of(name: str, precision: Precision) -> EngineKind | None:
    """What runs the sabotaged graphs of a model; None is eager PyTorch, which rounds each op."""
    return _OTHERS.get((name, precision), _ENGINES.get(precision))


# Proven although they are more than the rule calls rounding: coarser than the precision, and
# within its bounds all the same.
KNOWN = {
    # 1.2 % of a spread; the right engine errs by 0.5 %, bf16 may by 2 % of the values.
    ("recommender", Precision.BF16, "bf16 truncated twice"),
}
