"""What `smelt bench` sends: inputs drawn as proofs draw them, or those that were given."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compiler_worker.inputs.sampling import DEFAULT_SEED, draw_sample
from services.cli.requests.infer import request_from_arrays
from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import ModelVersion

# Of each size; values may decide what a model computes, and callers take turns with them.
_NUM_DRAWN = 4


@dataclass(frozen=True, kw_only=True)
class BenchRequests:
    """Requests of one size, serialised.

    Attributes:
        size: for people, `batch=8, sequence=128`.
        rows: of one request; 1 for a model without a batch dimension.
    """

    size: str
    rows: int
    bodies: Sequence[bytes]

    @classmethod
    def of(
        cls, name: str, version: str, size: str, rows: int, arrays: Sequence[Mapping[str, Array]]
    ) -> "BenchRequests":
        """One serialised request of each set of inputs.

        Args:
            name: of the model.
            version: "" leaves it to the gateway.
            size: of the inputs, for people.
            rows: of one request; 1 for a model without a batch dimension.
            arrays: inputs by name, of any shape, for each request.

        Raises:
            InvalidRequestError: a dtype has no datatype.
        """
        requests = [request_from_arrays(name, version, dict(each)) for each in arrays]
        return cls(size=size, rows=rows, bodies=[each.SerializeToString() for each in requests])


def drawn_requests(model: ModelVersion, version: str, texts: Sequence[str]) -> list[BenchRequests]:
    """Requests with values that the model takes.

    Args:
        model: whose recipe and master say what it takes.
        version: as requests name it.
        texts: sizes such as `batch=8,sequence=128`, the usual ones where they name none; without
            any text one row, what is usual, and the most.

    Raises:
        InvalidRequestError: a text is malformed, or names a dimension that the model lacks.
    """
    ranked = sorted(model.buckets, key=lambda each: math.prod(r.max for r in each.dims.values()))
    rows = model.recipe.batching.batch_dim or ""
    dims = ranked[0].dims, ranked[len(ranked) // 2].dims, ranked[-1].dims
    small = {name: max(r.min, 1) if name == rows else r.opt for name, r in dims[0].items()}
    usual = {name: r.opt for name, r in dims[1].items()}
    asked = [usual | _sizes_from_text(text, usual) for text in texts]
    found = asked or [small, usual, {name: r.max for name, r in dims[2].items()}]
    # Two may be the same, of a model whose sizes are fixed all.
    distinct = [sizes for place, sizes in enumerate(found) if sizes not in found[:place]]
    return [_drawn(model, version, sizes, sizes.get(rows, 1)) for sizes in distinct]


def _drawn(model: ModelVersion, version: str, sizes: dict[str, int], rows: int) -> BenchRequests:
    # Sizes of no bucket are the gateway's to refuse.
    bucket = next((each for each in model.buckets if each.holds(sizes)), model.buckets[-1])
    seeds = range(DEFAULT_SEED, DEFAULT_SEED + _NUM_DRAWN)
    drawn = [draw_sample(model.master, model.recipe, bucket, sizes, seed=seed) for seed in seeds]
    size = ", ".join(f"{name}={size}" for name, size in sorted(sizes.items())) or "fixed size"
    return BenchRequests.of(model.name, version, size, rows, [each.inputs for each in drawn])


def _sizes_from_text(text: str, known: Mapping[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.strip().partition("=")
        if name not in known or not size.isdecimal():
            raise InvalidRequestError(
                f"--sizes {text}: expected DIMENSION=N, separated by commas, with dimensions of "
                f"{', '.join(known) or 'none: every size of this model is fixed'}; got '{part}'"
            )
        found[name] = int(size)
    return found
