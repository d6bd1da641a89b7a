"""Whether a model computes the sizes that it is to be served at: found when it is added."""

from dataclasses import dataclass

from compiler_worker.inputs.sample_sizes import edge_sizes
from compiler_worker.inputs.sampling import draw_sample
from compiler_worker.model_checks.served_master import ServedMaster, has_room
from compiler_worker.references.models import EvaluatorModel, Model, OrtModel
from services.contracts.errors import InvalidRecipeError, ProofError
from services.contracts.kserve.tensors import Array
from services.contracts.model.dim_limits import DimLimits
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Bucket, DimRange
from services.engines.request_check import Sizes
from services.engines.shapes import put_first, zeros_at

# Of ONNX Runtime's, where a host has too little.
_NO_MEMORY = ("bad_alloc", "Failed to allocate memory")


def check_empty(master: ServedMaster) -> None:
    """Run the master once at each empty size: no engine could be proven where it fails.

    Raises:
        InvalidRecipeError: it fails, and which bucket has to begin at 1.
    """
    empty = [
        (bucket, sizes)
        for bucket in master.buckets
        for sizes in edge_sizes(bucket)
        if not all(sizes.values())
    ]
    model = _opened(master) if empty else None
    for bucket, sizes in empty:
        assert model is not None
        try:
            model.run(draw_sample(master.record, master.recipe, bucket, sizes).inputs)
        except ProofError as error:
            raise InvalidRecipeError(
                f"recipe: bucket {bucket.label}: the model fails at {sizes}: {error}; begin the "
                "bucket at 1 where a size is 0"
            ) from error


def _opened(master: ServedMaster) -> Model:
    """ONNX's own implementation where ONNX Runtime does not have the master's opset."""
    try:
        return OrtModel.open(master.path, master.record)
    except ProofError:
        return EvaluatorModel.open(master.path, master.record)


def check_largest(master: ServedMaster) -> None:
    """Run the master once at the largest sizes of each bucket: no replica starts where it fails.

    At as few rows as there may be: a model seldom minds their number, and each takes time. What
    ONNX Runtime does not run at the smallest sizes either, or not in the memory of this host, is
    left to the proof.

    Raises:
        InvalidRecipeError: it fails, and at which sizes.
    """
    sized = _Sized.opened(master)
    # What fails at the smallest fails for another reason than size.
    if sized is None or sized.fault(master.buckets[0], 0):
        return
    for bucket in master.buckets:
        most = max(span.max for span in bucket.dims.values())
        if fault := sized.fault(bucket, most):
            raise InvalidRecipeError(
                f"recipe: bucket {bucket.label}: the model fails at {sized.at(bucket, most)}: "
                f"{fault}; end the bucket at sizes that it computes"
            )


def computed_sizes(master: ServedMaster) -> tuple[dict[str, DimLimits], str]:
    """Find which sizes of the first bucket the model computes, the batch dimension left out.

    Returns:
        Limits by dimension, and ONNX Runtime's message beyond them; both empty where it computes
        the whole bucket, or ONNX Runtime runs none of it.
    """
    sized = _Sized.opened(master)
    if sized is None:
        return {}, ""
    bucket = master.buckets[0]
    spans = sized.spans(bucket)
    ends = min(span.min for span in spans.values()), max(span.max for span in spans.values())
    right = (span.opt for span in spans.values())
    start = next((size for size in (*right, *ends) if not sized.fault(bucket, size)), None)
    if start is None:
        return {}, ""
    least, most = (_last_right(sized, bucket, start, end) for end in ends)
    limits = {
        name: DimLimits(min=_within(span, least), max=_within(span, most))
        for name, span in spans.items()
        if not least <= span.min <= span.max <= most
    }
    if not limits:
        return {}, ""
    return limits, sized.fault(bucket, most + 1 if most < ends[1] else least - 1)


def _last_right(sized: "_Sized", bucket: Bucket, right: int, end: int) -> int:
    """The size nearest to an end that is computed, where all from a right one on are."""
    if not sized.fault(bucket, end):
        return end
    while abs(end - right) > 1:
        middle = (right + end) // 2
        if sized.fault(bucket, middle):
            end = middle
        else:
            right = middle
    return right


def _within(span: DimRange, size: int) -> int:
    return max(span.min, min(size, span.max))


@dataclass(frozen=True)
class _Sized:
    """A model that is run at sizes, each time with as few rows as there may be."""

    model: OrtModel
    master: MasterRecord
    rows: str | None

    @classmethod
    def opened(cls, master: ServedMaster) -> "_Sized | None":
        """None where there are no sizes but rows, or ONNX Runtime does not run it here."""
        rows = master.recipe.batching.batch_dim
        has_sizes = any(name != rows for bucket in master.buckets for name in bucket.dims)
        if not has_sizes or not has_room(master.path):
            return None
        try:
            return cls(OrtModel.open(master.path, master.record), master.record, rows)
        except ProofError:
            return None

    def spans(self, bucket: Bucket) -> dict[str, DimRange]:
        """Of all dimensions but rows."""
        return {name: span for name, span in bucket.dims.items() if name != self.rows}

    def at(self, bucket: Bucket, size: int) -> Sizes:
        """Each dimension as near to a size as its bucket goes; rows, and empty ones, at least."""
        sizes = {name: max(span.min, 1) for name, span in bucket.dims.items()}
        return sizes | {n: max(_within(r, size), 1) for n, r in self.spans(bucket).items()}

    def fault(self, bucket: Bucket, size: int) -> str:
        """In words why it fails; "" where it does not, or for want of memory."""
        sizes = self.at(bucket, size)
        try:
            self.model.run(self._inputs(sizes))
        except ProofError as error:
            return "" if any(words in str(error) for words in _NO_MEMORY) else str(error)
        return ""

    def _inputs(self, sizes: Sizes) -> dict[str, Array]:
        """Zeros, which any model takes, or categories that its encoders know."""
        inputs = {spec.name: zeros_at(spec, sizes) for spec in self.master.inputs}
        for name, known in self.master.input_values.items():
            put_first(inputs[name], known.choices)
        return inputs
