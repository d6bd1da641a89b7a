"""Top-k rank agreement: does an embedding still find the neighbours that it should?

Legend: N = samples, Q = queries, C = candidates, D = embedding, k = top_k.
The samples of an input are [N, ...], a chunk of them [rows, ...].
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from compiler_worker.measures.task_scores import failed_task, kept_share, task_check, tie_margin
from compiler_worker.references.models import Model
from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.tensors import Array, check_array
from services.contracts.model.manifest import MasterRecord, TaskCheck
from services.contracts.model.recipe import Bucket, RankingTask, Recipe

Float64 = NDArray[np.float64]


def rank_agreement(found_nd: Array, wanted_nd: Array, task: RankingTask) -> TaskCheck:
    """Mean overlap of the engine's top k with the reference's, ties counted as kept.

    Args:
        found_nd: the engine's embeddings, [N, D]; the first `num_queries` rows are queries.
        wanted_nd: the reference's, of the same shape.
        task: has number of queries, k and the least overlap.
    """
    found_qc, wanted_qc = (_scores(array, task.num_queries) for array in (found_nd, wanted_nd))
    error = float(np.abs(found_qc - wanted_qc).max())
    margin_q1 = tie_margin(wanted_qc, error)
    overlap = kept_share(found_qc, wanted_qc, task.top_k, margin_q1)
    return task_check(
        task,
        overlap,
        f"{len(wanted_qc)} queries, {wanted_qc.shape[1]} candidates, "
        f"score error {error:.1e}, tie margin {float(margin_q1.max()):.1e}",
    )


def check_ranking(
    engine: Model,
    reference: Model,
    samples: Mapping[str, Array] | None,
    master: MasterRecord,
    recipe: Recipe,
    buckets: Sequence[Bucket],
) -> TaskCheck:
    """Run the real samples through engine and reference, and compare the rankings.

    Args:
        engine: under test.
        reference: whose rankings are right.
        samples: arrays by input name, one row per sample.
        master: names inputs and outputs.
        recipe: has a ranking task.
        buckets: samples are run at the largest batch of one of them.

    Raises:
        InvalidRequestError: there are no samples, they do not fit the model or its buckets, or
            the recipe names an output that is no embedding.
    """
    task = recipe.ranking
    assert task is not None
    _require_embedding(task, master)
    require_samples(samples, master, recipe, buckets)
    assert samples is not None
    chunks = list(sample_chunks(samples, master, recipe, buckets))
    found, wanted = (
        np.concatenate([model.run(inputs)[task.output][:rows] for inputs, rows in chunks])
        for model in (engine, reference)
    )
    if found.shape != wanted.shape:
        # A fault of the engine: scores of two shapes could not be subtracted.
        words = f"{list(found.shape)} found, {list(wanted.shape)} wanted"
        return failed_task(task, f"embeddings of another shape: {words}")
    return rank_agreement(found, wanted, task)


def require_samples(
    samples: Mapping[str, Array] | None,
    master: MasterRecord,
    recipe: Recipe,
    buckets: Sequence[Bucket],
) -> None:
    """Refuse samples that the recipe's ranking task cannot be judged by.

    Args:
        samples: arrays by input name; None where the model version has none.
        master: names the inputs and their shapes.
        recipe: one without a ranking task needs no samples.
        buckets: what is served.

    Raises:
        InvalidRequestError: there are none or too few, or they fit no bucket.
    """
    task = recipe.ranking
    if task is None:
        return
    if samples is None:
        raise InvalidRequestError(
            "the recipe names a ranking task, which needs real inputs: add the model with "
            "--samples FILE.npz, or remove 'ranking' from its recipe"
        )
    num_samples = sum(rows for _, rows in sample_chunks(samples, master, recipe, buckets))
    # Of no more candidates than k, any ranking names all.
    if num_samples <= task.num_queries + task.top_k:
        raise InvalidRequestError(
            f"ranking: {num_samples} samples are too few for {task.num_queries} queries and more "
            f"than {task.top_k} candidates; bring more samples, or lower ranking.num_queries or "
            "ranking.top_k"
        )


def _scores(embedding_nd: Array, num_queries: int) -> Float64:
    """Cosine of the first samples with each of the others."""
    vectors_nd = embedding_nd.astype(np.float64)
    sizes = np.linalg.norm(vectors_nd, axis=1, keepdims=True)
    units_nd = vectors_nd / np.where(sizes > 0, sizes, 1.0)
    scores_qc: Float64 = units_nd[:num_queries] @ units_nd[num_queries:].T
    return scores_qc


def _require_embedding(task: RankingTask, master: MasterRecord) -> None:
    ranks = {spec.name: len(spec.shape) for spec in master.outputs}
    if ranks.get(task.output) != 2:
        raise InvalidRequestError(
            f"ranking.output '{task.output}': expected an output [batch, D]; the model has "
            + ", ".join(f"{spec.name} {list(spec.shape)}" for spec in master.outputs)
        )


def sample_chunks(
    samples: Mapping[str, Array], master: MasterRecord, recipe: Recipe, buckets: Sequence[Bucket]
) -> list[tuple[dict[str, Array], int]]:
    """Inputs that fit a bucket, and how many rows of each are samples and not filling.

    Args:
        samples: arrays by input name, one row per sample.
        master: names the inputs and their shapes.
        recipe: names the batch dimension.
        buckets: what is served.

    Raises:
        InvalidRequestError: they do not fit the model or its buckets.
    """
    arrays = _checked(samples, master)
    batch = recipe.batching.batch_dim
    sizes = {
        dim: size
        for spec in master.inputs
        for dim, size in zip(spec.shape, arrays[spec.name].shape, strict=True)
        if isinstance(dim, str) and dim != batch
    }
    low, high = _batch_range(sizes, batch, master, buckets)
    num_samples = len(next(iter(arrays.values())))
    chunks = []
    for start in range(0, num_samples, high):
        rows = min(high, num_samples - start)
        # The last chunk may be too short for the bucket: its last row is repeated.
        index = np.minimum(np.arange(start, start + max(rows, low)), num_samples - 1)
        chunks.append(({name: array[index] for name, array in arrays.items()}, rows))
    return chunks


def _checked(samples: Mapping[str, Array], master: MasterRecord) -> dict[str, Array]:
    missing = [spec.name for spec in master.inputs if spec.name not in samples]
    if missing:
        raise InvalidRequestError(f"samples lack input '{missing[0]}'; found {sorted(samples)}")
    arrays = {spec.name: samples[spec.name] for spec in master.inputs}
    if len({array.shape[0] for array in arrays.values()}) != 1:
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        raise InvalidRequestError(f"samples: expected equal leading dimensions, found {shapes}")
    for spec in master.inputs:
        check_array(spec, arrays[spec.name])
    return arrays


def _batch_range(
    sizes: Mapping[str, int], batch: str | None, master: MasterRecord, buckets: Sequence[Bucket]
) -> tuple[int, int]:
    """Least and most rows of one run, of the largest batch whose bucket holds the other sizes."""
    leading = {spec.shape[0] for spec in master.inputs if spec.shape}
    if leading != {batch} or batch is None:
        raise InvalidRequestError(
            f"ranking needs inputs whose first dimension is batching.batch_dim '{batch}', "
            f"found {sorted(map(str, leading))}"
        )
    holding = [
        bucket.dims[batch]
        for bucket in buckets
        if all(r.min <= sizes[name] <= r.max for name, r in bucket.dims.items() if name != batch)
    ]
    if not holding:
        known = ", ".join(bucket.label for bucket in buckets)
        raise InvalidRequestError(f"samples of {dict(sizes)} fit none of the buckets {known}")
    # Fewest runs: a ranking needs them all.
    rows = max(holding, key=lambda each: each.max)
    return rows.min, rows.max
