"""What the policy of padding gains on engines of given costs: arithmetic, the same each time.

    python -m tests.benchmarks.padding.policy

The real grouping, and joining of equal lengths as it is without a mask, on the lengths of the
other benchmark. A run takes `fixed + each * elements` of computed time, the decision itself
nothing; 64 callers each send the next request when the last one is answered. Costs are
lines through times measured on engines of MiniLM; the H200's are in
`results/gpu/gpu_minilm_h200_202611.md` (0.260 ms for 1 x 128 tokens, 0.541 ms for 32 x 128), the
CPU's (2 threads) in the results of this benchmark.
"""

import sys
from collections.abc import Callable, Sequence
from itertools import islice

from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.manifest import MasterRecord, ModelVersion
from services.replica.batching.batch_policy import MAX_CANDIDATES, BatchPolicy
from services.replica.batching.collate import JoinRules
from services.replica.batching.run_shapes import RunShapes
from services.replica.request.signature import Signature
from tests.benchmarks.padding.subject import MAX_BATCH, calls, recipe

NUM_CALLS = 4000
Choose = Callable[[Sequence[int]], list[int]]
# Microseconds of a run, and of each element.
ENGINES = {
    "ONNX Runtime fp32, CPU": (700.0, 66.0),
    "OpenVINO bf16, CPU": (1000.0, 33.5),
    "Inductor with CUDA graph, H200": (251.0, 0.071),
}


def main() -> int:
    """Print a table; the exit code is 0."""
    lengths = [call.sizes["sequence"] for call in calls(NUM_CALLS, seed=1)]
    print("| engine | max_waste | times exact | rows a batch, exact | padded | waste |")
    print("|---|---|---|---|---|---|")
    for name, (fixed_us, each_us) in ENGINES.items():
        exact = _serve(lengths, fixed_us, each_us, _equals)
        for max_waste in (0.25, 0.5):
            choose = _grouped(fixed_us / each_us, max_waste)
            padded = _serve(lengths, fixed_us, each_us, choose)
            print(
                f"| {name} | {max_waste} | {exact[0] / padded[0]:.2f} | {exact[1]:.1f} "
                f"| {padded[1]:.1f} | {padded[2]:.1%} |"
            )
    return 0


def _serve(
    lengths: Sequence[int], fixed_us: float, each_us: float, choose: Choose
) -> tuple[float, float, float]:
    """Microseconds for all requests, rows in a batch, and the share of padding."""
    coming = iter(lengths)
    waiting = list(islice(coming, MAX_CANDIDATES))
    took_us, runs, ran = 0.0, 0, 0
    while waiting:
        places = choose(waiting)
        elements = len(places) * max(waiting[place] for place in places)
        took_us, runs, ran = took_us + fixed_us + each_us * elements, runs + 1, ran + elements
        taken = set(places)
        waiting = [length for place, length in enumerate(waiting) if place not in taken]
        waiting += islice(coming, len(places))
    return took_us, len(lengths) / runs, 1 - sum(lengths) / ran


def _equals(waiting: Sequence[int]) -> list[int]:
    same = [place for place, length in enumerate(waiting) if length == waiting[0]]
    return same[:MAX_BATCH]


def _grouped(fixed_elements: float, max_waste: float) -> Choose:
    rules = JoinRules.from_model(_version(), Signature.from_model(_version()))
    grouping = BatchPolicy(
        rules=rules,
        shapes=RunShapes(rules, recipe().buckets),
        fixed_elements=fixed_elements,
        max_waste=max_waste,
    )
    return lambda waiting: grouping.chosen([{"batch": 1, "sequence": length} for length in waiting])


def _version() -> ModelVersion:
    ids, mask = (
        TensorSpec(name=name, datatype="INT64", shape=("batch", "sequence"))
        for name in ("input_ids", "attention_mask")
    )
    vector = TensorSpec(name="sentence_embedding", datatype="FP32", shape=("batch", 384))
    master = MasterRecord(
        digest="0" * 64,
        files={},
        inputs=(ids, mask),
        outputs=(vector,),
        opset=20,
        num_parameters=0,
    )
    return ModelVersion(
        name="minilm",
        version=1,
        master=master,
        recipe=recipe(),
        source="",
        source_fingerprint="",
        created_at="2026-01-01T00:00:00Z",
    )


if __name__ == "__main__":
    sys.exit(main())
