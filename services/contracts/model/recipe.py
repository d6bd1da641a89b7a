"""What the owner of a model requires, apart from the code that builds.

A recipe is a small YAML file. Every field has a default, so `smelt models add` works
without one; `Recipe.from_yaml` raises with key, value and what was expected.
"""

import math
from enum import StrEnum
from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from services.contracts.errors import InvalidRecipeError
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.batching import Batching
from services.contracts.model.calibration_recipe import CalibrationChoice
from services.contracts.model.document import Document
from services.contracts.model.kind_options import InductorOptions, TensorrtOptions
from services.contracts.model.label_scores import LabelScores
from services.contracts.model.precision_choice import AUTO, Accuracy, PrecisionChoice
from services.contracts.model.replica_number import ReplicaNumber
from services.contracts.model.sampling_recipe import Sampling
from services.contracts.model.task_recipe import Task
from services.contracts.model.text_recipe import TextRecipe

CALIBRATION_FIX = (
    "its scales come from real inputs; add to the recipe: calibration: {path: FILE}, where FILE "
    "is an .npz or .parquet file with one array or column for each input, a row being a sample"
)
# Nothing, one and more words, and text of more bytes than letters.
_DEFAULT_STRINGS = ("", "a", "word", "two words", "Grüße", "東京", "something longer than these")


class DimRange(Document):
    """The range of one dynamic dimension within a bucket: min <= opt <= max.

    A min of 0 lets tensors be empty along it; every engine is then proven with such ones too.

    Attributes:
        min, max: the sizes that requests may have.
        opt: the size that kernels are tuned for.
    """

    min: int = Field(ge=0)
    opt: int = Field(ge=1)
    max: int = Field(ge=1)

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        if not self.min <= self.opt <= self.max:
            raise ValueError(f"expected min <= opt <= max, got {self.min}, {self.opt}, {self.max}")
        return self


class Bucket(Document):
    """A box of shapes that an engine is built, proven and timed for.

    Attributes:
        dims: range by name of the master's dynamic dimension, for example
            {"batch": 1..8, "sequence": 1..128}.
    """

    dims: dict[str, DimRange]

    @property
    def label(self) -> str:
        """A short name, the largest sizes: `batch8-sequence128`; `static` without dims."""
        return "-".join(f"{n}{r.max}" for n, r in sorted(self.dims.items())) or "static"

    def holds(self, sizes: dict[str, int]) -> bool:
        """Whether these sizes fit: every dimension of the bucket given and inside its range."""
        return all(n in sizes and r.min <= sizes[n] <= r.max for n, r in self.dims.items())


class InputRole(StrEnum):
    """How proof inputs are drawn and how a batch is padded."""

    VALUES = "values"
    MASK = "mask"


class Residency(StrEnum):
    """Whether replicas stay while others need their room."""

    PINNED = "pinned"
    ON_DEMAND = "on-demand"


class InputRecipe(Document):
    """How to draw, pad and check one input.

    An input of strings (BYTES) is drawn from `values` and takes none of the others: strings are
    not padded, so requests of different lengths never share a batch.

    Attributes:
        role: `mask` marks valid positions with 1 (ragged in proofs), or padding where `pad` is 1,
            as PyTorch's `key_padding_mask`; `values` is drawn.
        low, high: bounds of drawn values, high exclusive for integers. Without them floats are
            drawn over the thresholds of trees and the usual sizes of scalers that they lead to;
            others around zero with spread 1, once of eight times and once of a 64th of that size.
            Once, where 0 lies within, they are all 0; a low other than 0 alone has a high one
            above it. Integers are drawn by default over all that the graph takes (see
            `input_values`) and min and max allow; where none of them say, low and its successor.
        pad: value for padded positions.
        padding_side: of a mask: with `right`, proofs draw its valid positions first, with no pads
            before or between them; with `either` both. By default `right` for engines in int8 and
            fp8 whose calibration set has them so, else both.
        min, max: the values that a request may hold, both allowed, for integers; by default
            those that the graph takes, the rows of the tables that it looks them up in. A recipe
            may only narrow these. Engines differ in what they do with others: most fail,
            OpenVINO answers as if the row were zeros.
        values: the strings that proofs draw, of BYTES alone: put in those that the model knows.
    """

    role: InputRole = InputRole.VALUES
    low: float = 0.0
    high: float | None = None
    pad: float = 0.0
    min: int | None = None
    max: int | None = None
    # Left out when it is not given: proof terms of older recipes are digests without it.
    values: tuple[str, ...] | None = Field(
        default=None, min_length=1, exclude_if=lambda v: v is None
    )
    padding_side: Literal["right", "either"] | None = Field(
        default=None, exclude_if=lambda v: v is None
    )

    @property
    def marks_padding(self) -> bool:
        """Of a mask, whether its 1 marks padding and its 0 what is valid."""
        return self.pad == 1

    @property
    def has_range(self) -> bool:
        """Whether drawn values have bounds; 0 alone is what older recipes hold for none."""
        return self.high is not None or self.low != 0.0

    @property
    def strings(self) -> tuple[str, ...]:
        """What an input of strings is drawn from."""
        return self.values or _DEFAULT_STRINGS

    @model_validator(mode="after")
    def _is_within_limits(self) -> Self:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"expected min <= max, got {self.min} and {self.max}")
        is_mask = self.role is InputRole.MASK
        if self.padding_side and not is_mask and (self.has_range or self.values):
            raise ValueError("padding_side is of masks, and this input has values to draw")
        drawn = {"a mask's 0": 0.0, "a mask's 1": 1.0} if is_mask else {}
        if self.has_range and not is_mask:
            drawn["low"] = self.low
        if self.high is not None and not is_mask:
            drawn["the largest value below high"] = max(self.low, math.ceil(self.high) - 1)
        for name, value in (drawn | {"pad": self.pad}).items():
            if not (self.min is None or value >= self.min) or (
                self.max is not None and value > self.max
            ):
                raise ValueError(
                    f"{name} is {value:g}, outside of min {self.min} and max {self.max}: it "
                    "would be refused in a request"
                )
        return self


class OutputRecipe(Document):
    """How to compare one output.

    Attributes:
        valid_where: name of a mask input with the output's leading dims; positions where it
            is 0 are not compared, because exporters define them differently.
        accept_blind: faults that the bounds of a precision may let pass on this output, by the
            names that `smelt why` gives them; an engine whose proof is blind to any other is
            refused. Of eight bits `smelt models add` writes what it accepts, where this does not.
    """

    valid_where: str | None = None
    # Left out when there are none: proof terms of older recipes are digests without it.
    accept_blind: dict[Precision, tuple[str, ...]] = Field(default={}, exclude_if=lambda v: v == {})

    @field_validator("accept_blind", mode="before")
    @classmethod
    def _of_every_precision(cls, value: object) -> object:
        """A list, as older recipes have it, is meant for each precision."""
        return dict.fromkeys(Precision, value) if isinstance(value, list | tuple) else value


class Tolerance(Document):
    """Bounds on the distance to the float64 reference, the largest over all samples.

    Attributes:
        rel_l2: ||out - ref|| / ||ref|| per sample.
        max_abs: |out - ref| relative to max |ref| per sample.
        cosine_distance: 1 - cosine per sample (the last axis is the vector).
        column: root mean square error of the worst column (feature, class, channel) over all
            samples, in spreads of that column.
        gain: how far the slope of the output over the reference is from 1, over all columns.
        agreement: least share of equal elements of an output of integers or booleans.
        relative_to_eager: where eager fp32 itself errs so much that this many times its error
            is above a bound, that counts in the bound's place, up to the default for bf16: the
            error of a deep or ill-conditioned model is its own, not the engine's.
    """

    rel_l2: float = Field(gt=0)
    max_abs: float = Field(gt=0)
    cosine_distance: float = Field(gt=0)
    # Left out when they are not given: proof terms of older recipes are digests without them.
    column: float | None = Field(default=None, gt=0, exclude_if=lambda v: v is None)
    gain: float | None = Field(default=None, gt=0, exclude_if=lambda v: v is None)
    agreement: float | None = Field(default=None, gt=0, le=1, exclude_if=lambda v: v is None)
    relative_to_eager: float | None = Field(default=None, ge=1, exclude_if=lambda v: v is None)


class RankingTask(Document):
    """Top-k rank agreement of an embedding output.

    Attributes:
        output: the embedding, [B, D].
        num_queries, top_k: the first samples query the others.
        min_overlap: least mean top-k overlap with the reference ranking. A neighbour whose
            reference score lies within twice the largest score error of the k-th is a tie
            and counts as kept.
    """

    output: str
    num_queries: int = Field(default=16, ge=1)
    top_k: int = Field(default=10, ge=1)
    min_overlap: float = Field(default=1.0, ge=0, le=1)


class Recipe(Document):
    """Everything the owner of a model may choose.

    Attributes:
        kinds: what to try; builders that do not apply are skipped with a reason.
        precisions: `auto`, or a list of what to try. `auto` is what each generation has
            instructions for: bf16, fp16 on GPUs, and int8 where there are calibration samples.
        buckets: shapes to build for and to serve; empty means those of `default_buckets`.
        inputs: how each input is drawn, padded and checked, by its name.
        outputs: how each output is compared, by its name.
        tolerances: overrides by precision of the defaults in
            `compiler_worker/measures/default_tolerances.py`.
        ranking: of an embedding, how well engines have to keep the order of neighbours.
        tasks: further metrics that every engine has to pass; see `task_recipe`.
        accuracy: how close answers must be, in a word: `exact` builds fp32 alone; `close`, the
            default, keeps the distances that `smelt models add` prints; `ranking` builds int8 too,
            where the order of answers stays, and needs `ranking` or `tasks`.
        calibration: needed for precisions int8 and fp8, unused by the others.
        batching: how replicas join requests.
        text: of a model of tokens, how requests of text become them.
        labels: what the classes are called, in the order of the output's last dimension.
        label_scores: how that output's numbers become the scores of labels in `/v1/classify`.
        tensorrt, inductor: options of these kinds.
        num_replicas: replicas of each version on each generation that has nodes: two versions
            that share requests, on two generations, have four. `auto`: 1, more on idle GPUs.
        gpu_share: of a GPU that each replica gets on GPUs, up to 1; null takes what the proofs
            measured that it needs, and an estimate before there are any.
        residency: `on-demand` lets replicas leave while they have no requests and others have no
            room; the next request brings them back, and waits meanwhile. `pinned` ones stay.
        must_beat_fallback: an engine that was timed as slower than the fallback is published
            but not selected; false selects the fastest engine all the same.
        response_cache: a gateway may give the answer that it gave to the same request before.
        sampling: rows of requests that replicas keep in the store; null keeps none.
    """

    kinds: tuple[EngineKind, ...] = tuple(EngineKind)
    precisions: PrecisionChoice = AUTO
    buckets: tuple[Bucket, ...] = ()
    inputs: dict[str, InputRecipe] = {}
    outputs: dict[str, OutputRecipe] = {}
    tolerances: dict[Precision, Tolerance] = {}
    ranking: RankingTask | None = None
    tasks: tuple[Task, ...] = ()
    # Behind what it is checked against; left out by default, so that an older release can read
    # the record of a recipe that lists its precisions.
    accuracy: Accuracy = Field(
        default=Accuracy.CLOSE, exclude_if=lambda word: word is Accuracy.CLOSE
    )
    calibration: CalibrationChoice | None = None
    batching: Batching = Batching()
    # Left out when they are not given: an older release refuses keys it does not know.
    text: TextRecipe | None = Field(default=None, exclude_if=lambda v: v is None)
    labels: tuple[str, ...] = Field(default=(), exclude_if=lambda v: v == ())
    label_scores: LabelScores = Field(
        default=LabelScores.SOFTMAX, exclude_if=lambda v: v is LabelScores.SOFTMAX
    )
    tensorrt: TensorrtOptions = TensorrtOptions()
    inductor: InductorOptions = InductorOptions()
    num_replicas: ReplicaNumber = Field(default=AUTO, exclude_if=lambda number: number == AUTO)
    # These are left out by default, so that an older release can read the record.
    gpu_share: float | None = Field(default=None, ge=1e-4, le=1, exclude_if=lambda v: v is None)
    residency: Residency = Field(
        default=Residency.PINNED, exclude_if=lambda word: word is Residency.PINNED
    )
    must_beat_fallback: bool = True
    response_cache: bool = False
    # Left out by default, as above.
    sampling: Sampling | None = Field(default=None, exclude_if=lambda v: v is None)

    @field_validator("accuracy")
    @classmethod
    def _can_be_kept(cls, word: Accuracy, info: ValidationInfo) -> Accuracy:
        """A word asks for nothing that the rest of the recipe rules out."""
        listed = info.data.get("precisions", AUTO)
        is_reduced = listed not in (AUTO, (Precision.FP32,))
        if word is Accuracy.EXACT and is_reduced:
            raise ValueError(
                f"only fp32 is that close, and precisions lists {', '.join(listed)}; expected "
                "close, or precisions: auto"
            )
        if word is Accuracy.RANKING and not (info.data.get("ranking") or info.data.get("tasks")):
            raise ValueError(
                "it needs an order to compare; expected `ranking: {output: NAME}` of an embedding "
                "or, of a classifier, `tasks: [{metric: top_k, output: NAME, k: 5}]`"
            )
        return word

    @property
    def is_on_demand(self) -> bool:
        """Whether replicas may leave, and come back with the next request."""
        return self.residency is Residency.ON_DEMAND

    def builder_options(self, kind: EngineKind) -> dict[str, str]:
        """Options of a kind that differ from its defaults, for the build key."""
        if kind is EngineKind.INDUCTOR:
            return {"max_autotune": "True"} if self.inductor.max_autotune else {}
        asked = self.tensorrt.model_dump() if kind is EngineKind.TENSORRT else {}
        return {name: f"{value:g}" for name, value in asked.items() if value is not None}

    @classmethod
    def from_yaml(cls, text: str, source: str = "") -> Self:
        """Read a recipe; `source` names its file in errors, which then have line numbers.

        A text without a word in it is refused: more likely it was lost than meant.

        Raises:
            InvalidRecipeError: a line for each fault, with key, value and expectation.
        """
        # Recipes of the store are JSON: most commands read no YAML, and start sooner without.
        from services.contracts.model.yaml_document import document_from_yaml

        otherwise = "leave it out to have everything as by default, or "
        return document_from_yaml(cls, text, source, InvalidRecipeError, if_empty=otherwise)
