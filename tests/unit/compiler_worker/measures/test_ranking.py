"""Rank agreement: real losses are seen, ties are not."""

from collections.abc import Mapping

import numpy as np
import pytest

from compiler_worker.measures.ranking import check_ranking, rank_agreement
from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import Bucket, DimRange, RankingTask, Recipe
from tests.conformance.tiny_model import draw_inputs, master_record

RNG = np.random.default_rng(3)
WANTED = RNG.standard_normal((60, 12))
TASK = RankingTask(output="pooled", num_queries=10, top_k=5)


def bucket(batch_min: int, batch_max: int, sequence_max: int) -> Bucket:
    return Bucket(
        dims={
            "batch": DimRange(min=batch_min, opt=batch_max, max=batch_max),
            "sequence": DimRange(min=1, opt=sequence_max, max=sequence_max),
        }
    )


class Counting:
    """Embeds each row by its ids alone, and notes the shapes it was given."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        ids = inputs["ids"]
        self.shapes.append(ids.shape)
        return {"pooled": np.stack([np.sin(ids.sum(axis=1) * k) for k in (1, 2, 3)], axis=1)}


def test_equal_embeddings_agree() -> None:
    check = rank_agreement(WANTED.astype(np.float32), WANTED, TASK)
    assert (check.value, check.is_passed, check.bound) == (1.0, True, 1.0)


def test_lengths_do_not_matter() -> None:
    lengths = RNG.uniform(0.1, 9.0, (60, 1))
    assert rank_agreement(WANTED * lengths, WANTED, TASK).value == 1.0


def test_another_ranking_does_not_agree() -> None:
    check = rank_agreement(WANTED[::-1], WANTED, TASK)
    assert check.value < 0.5
    assert not check.is_passed


def test_a_broken_engine_is_not_excused_by_its_own_errors() -> None:
    """Its score errors are so large that without a cap every candidate would be a tie."""
    turned = WANTED.copy()
    turned[TASK.num_queries :] *= -1
    assert rank_agreement(turned, WANTED, TASK).value == 0.0


def test_a_tie_within_the_error_counts_as_kept() -> None:
    query = np.array([[1.0, 0.0]])
    angles = np.array([0.1, 0.2, 0.2 + 1e-6, 1.0])
    candidates = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    wanted = np.concatenate([query, candidates])
    swapped = wanted[[0, 1, 3, 2, 4]]
    task = RankingTask(output="pooled", num_queries=1, top_k=2)
    assert rank_agreement(swapped, wanted, task).value == 1.0
    lost = wanted[[0, 1, 4, 3, 2]]
    assert rank_agreement(lost, wanted, task).value == 0.5


def test_a_bound_below_one_allows_some_loss() -> None:
    noisy = WANTED + 0.05 * RNG.standard_normal(WANTED.shape)
    strict = rank_agreement(noisy, WANTED, TASK)
    lenient = rank_agreement(noisy, WANTED, TASK.model_copy(update={"min_overlap": 0.5}))
    assert not strict.is_passed
    assert lenient.is_passed
    assert strict.value == lenient.value


@pytest.mark.parametrize("broken", ["noise", "a constant"])
def test_what_says_nothing_of_its_inputs_does_not_pass(broken: str) -> None:
    """However large its errors are: in the coarsest precision, too, only near scores are ties."""
    noise = np.random.default_rng(8).standard_normal(WANTED.shape)
    found = noise if broken == "noise" else np.ones_like(WANTED)
    check = rank_agreement(found, WANTED, TASK.model_copy(update={"min_overlap": 0.6}))
    assert check.value < 0.3
    assert not check.is_passed


class Empty(Counting):
    """Answers no row, as a library may whose kernel failed."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {name: array[:0] for name, array in super().run(inputs).items()}


class TestSamples:
    def test_embeddings_of_another_shape_fail_the_task(self) -> None:
        samples, buckets = draw_inputs(21, 6), (bucket(1, 8, 16),)
        recipe = Recipe(ranking=TASK)
        check = check_ranking(Empty(), Counting(), samples, master_record(), recipe, buckets)
        assert not check.is_passed
        assert "[0, 3] found, [21, 3] wanted" in check.detail

    def check(
        self, samples: Mapping[str, Array], *buckets: Bucket, task: RankingTask = TASK
    ) -> list[tuple[int, ...]]:
        engine = Counting()
        recipe = Recipe(ranking=task)
        master = master_record()
        result = check_ranking(engine, Counting(), samples, master, recipe, buckets)
        assert result.is_passed
        assert f"{len(samples['ids']) - task.num_queries} candidates" in result.detail
        return engine.shapes

    def test_run_in_chunks_that_fit(self) -> None:
        shapes = self.check(draw_inputs(21, 6), bucket(1, 8, 16))
        assert shapes == [(8, 6), (8, 6), (5, 6)]

    def test_the_last_chunk_is_filled_up_to_the_least_batch(self) -> None:
        shapes = self.check(draw_inputs(21, 6), bucket(6, 8, 16))
        assert shapes == [(8, 6), (8, 6), (6, 6)]

    def test_the_largest_batch_is_taken_of_the_buckets_that_hold_them(self) -> None:
        """A bucket of batch 1 that comes first would leave all but a few samples unseen."""
        smaller = bucket(1, 40, 4), bucket(1, 1, 6)
        shapes = self.check(draw_inputs(20, 6), *smaller, bucket(1, 10, 6), bucket(1, 2, 16))
        assert shapes == [(10, 6), (10, 6)]

    def test_too_long_for_every_bucket(self) -> None:
        with pytest.raises(InvalidRequestError, match="'sequence': 20.*fit none of the buckets"):
            self.check(draw_inputs(20, 20), bucket(1, 8, 16))

    @pytest.mark.parametrize("num_samples", [10, 15])
    def test_too_few(self, num_samples: int) -> None:
        """Of five candidates any engine at all names the best five."""
        told = f"{num_samples} samples are too few for 10 queries and more than 5 candidates"
        with pytest.raises(InvalidRequestError, match=told):
            self.check(draw_inputs(num_samples, 6), bucket(1, 8, 16))

    def test_an_input_is_missing(self) -> None:
        samples = draw_inputs(20, 6)
        del samples["mask"]
        with pytest.raises(InvalidRequestError, match="samples lack input 'mask'"):
            self.check(samples, bucket(1, 8, 16))

    def test_arrays_of_unequal_length(self) -> None:
        samples = draw_inputs(20, 6) | {"mask": np.ones((19, 6), np.int64)}
        with pytest.raises(InvalidRequestError, match="equal leading dimensions"):
            self.check(samples, bucket(1, 8, 16))

    def test_a_wrong_datatype(self) -> None:
        samples = draw_inputs(20, 6) | {"mask": np.ones((20, 6), np.float32)}
        with pytest.raises(InvalidRequestError, match="expected datatype INT64, got FP32"):
            self.check(samples, bucket(1, 8, 16))

    @pytest.mark.parametrize("output", ["hidden", "nothing"])
    def test_an_output_that_is_no_embedding(self, output: str) -> None:
        with pytest.raises(InvalidRequestError, match=f"'{output}': expected an output"):
            self.check(
                draw_inputs(20, 6), bucket(1, 8, 16), task=RankingTask(output=output, num_queries=4)
            )
