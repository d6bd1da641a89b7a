"""Task metrics: what passes, what fails, and in which words."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from compiler_worker.inputs.sampling import Sample, SampleVariant
from compiler_worker.measures.task_scores import box_iou, top_k_agreement
from compiler_worker.measures.tasks import TaskSamples, check_tasks
from compiler_worker.model_checks.recipe_check import check_recipe
from services.contracts.errors import InvalidRecipeError, ProofError
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord, TaskCheck
from services.contracts.model.recipe import (
    Bucket,
    DimRange,
    InputRecipe,
    InputRole,
    OutputRecipe,
    Recipe,
)
from services.contracts.model.task_recipe import BoxFormat, BoxTask, FunctionTask, Task, TopKTask
from services.contracts.terms import proof_terms

TOP1 = TopKTask(metric="top_k", output="y")
BOXES = BoxTask(metric="iou", output="y", min_iou=0.9)
SCORES = np.array([[0.1, 0.9, 0.3, 0.2], [3.0, 1.0, 2.0, 0.0], [1.0, 1.01, 0.0, 0.5]])
MASTER = MasterRecord(
    digest="a" * 64,
    files={},
    inputs=(
        TensorSpec(name="x", datatype="FP32", shape=("batch", 4)),
        TensorSpec(name="mask", datatype="INT64", shape=("batch",)),
    ),
    outputs=(TensorSpec(name="y", datatype="FP32", shape=("batch", 4)),),
    opset=20,
    num_parameters=0,
)
BUCKET = Bucket(dims={"batch": DimRange(min=2, opt=2, max=2)})


class TestTopK:
    def test_the_same_best_classes_agree(self) -> None:
        check = top_k_agreement(SCORES + 0.001, SCORES, TOP1)
        assert (check.name, check.value, check.is_passed) == ("top1_agreement:y", 1.0, True)

    def test_another_best_class_does_not(self) -> None:
        turned = SCORES.copy()
        turned[1, 2] = 9.0
        check = top_k_agreement(turned, SCORES, TOP1)
        assert check.value == pytest.approx(2 / 3)
        assert not check.is_passed
        # A class that was among the two best all along is no loss of top-2.
        two = TOP1.model_copy(update={"k": 2})
        assert top_k_agreement(turned, SCORES, two).is_passed

    def test_a_tie_within_the_error_counts(self) -> None:
        turned = SCORES.copy()
        turned[2, 0] = 1.02
        assert top_k_agreement(turned, SCORES, TOP1).is_passed
        # A large error makes no tie of what lies apart by more than a little of its row's spread.
        apart = SCORES.copy()
        apart[2, 1] = 1.1
        swapped = apart.copy()
        swapped[2, 0] = 1.2
        assert not top_k_agreement(swapped, apart, TOP1).is_passed


# the same two boxes in each format, the second without an area
WRITTEN = {
    BoxFormat.XYXY: [[1, 1, 3, 5], [2, 2, 2, 2]],
    BoxFormat.XYWH: [[1, 1, 2, 4], [2, 2, 0, 0]],
    BoxFormat.CXCYWH: [[2, 3, 2, 4], [2, 2, 0, 0]],
}


class TestBoxes:
    @pytest.mark.parametrize("box_format", list(BoxFormat))
    def test_a_moved_box_shares_what_it_shares(self, box_format: BoxFormat) -> None:
        wanted = np.array(WRITTEN[box_format], dtype=np.float32)
        task = BOXES.model_copy(update={"format": box_format})
        assert box_iou(wanted, wanted, task).value == 1.0
        moved = wanted.copy()
        moved[0, 0] += 1  # one to the right
        if box_format is BoxFormat.XYXY:
            moved[0, 2] += 1
        check = box_iou(moved, wanted, task)
        assert check.value == pytest.approx(1 / 3)
        assert (check.is_passed, check.name) == (False, "iou:y")
        assert "1 of 2 boxes have an area, the worst 0.3333" in check.detail

    def test_boxes_apart_share_nothing(self) -> None:
        wanted = np.array([[0.0, 0.0, 1.0, 1.0]])
        assert box_iou(wanted + 5, wanted, BOXES).value == 0.0

    def test_no_box_with_an_area_proves_nothing(self) -> None:
        check = box_iou(np.zeros((2, 4)), np.zeros((2, 4)), BOXES)
        assert not check.is_passed
        assert "nothing to compare" in check.detail


class Gives:
    """Scales its first input, and notes how many rows it was given."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self.rows: list[int] = []

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.rows.append(len(inputs["x"]))
        return {"y": inputs["x"] * np.float32(self._factor)}


def count_rows(
    inputs: Sequence[Mapping[str, Array]],
    wanted: Sequence[Mapping[str, Array]],
    found: Sequence[Mapping[str, Array]],
) -> float:
    """A metric as an owner may write it."""
    assert all(f["y"].shape == w["y"].shape for f, w in zip(found, wanted, strict=True))
    return float(sum(len(each["x"]) for each in inputs))


def fails(*_: object) -> float:
    """A metric with a fault."""
    raise ZeroDivisionError("no rows")


def gives_nan(*_: object) -> float:
    """A metric that gives no number."""
    return float("nan")


NO_METRIC = 7
# Of an empty recipe, as they were before there were tasks.
PLAIN = "e02ec2c4f97db6019ba7bee866ad9c4da18d9671bc34924c1345d746d7530070"


def arrays(num_rows: int) -> dict[str, Array]:
    x = np.random.default_rng(1).random((num_rows, 4), dtype=np.float32)
    return {"x": x, "mask": np.ones(num_rows, dtype=np.int64)}


def judged(
    *tasks: Task, factor: float = 1.0, num_real: int = 0, recipe: Recipe | None = None
) -> tuple[TaskCheck, ...]:
    drawn = Sample(bucket="b", sizes={"batch": 2}, variant=SampleVariant.FULL, inputs=arrays(2))
    samples = TaskSamples(
        master=MASTER,
        recipe=(recipe or Recipe()).model_copy(update={"tasks": tasks}),
        buckets=(BUCKET,),
        real=arrays(num_real) if num_real else None,
        drawn=(drawn, drawn),
    )
    return check_tasks(Gives(factor), Gives(1.0), samples)


def function(name: str, min_value: float = 1.0) -> FunctionTask:
    return FunctionTask(metric="function", entry=f"{__name__}:{name}", min_value=min_value)


class TestTasks:
    def test_no_task_runs_nothing(self) -> None:
        assert judged() == ()

    def test_each_is_judged_on_the_drawn_samples_without_real_ones(self) -> None:
        checks = judged(TOP1, BOXES, function("count_rows", 4.0))
        assert [check.is_passed for check in checks[::2]] == [True, True]
        assert checks[2].value == 4.0
        assert all("drawn samples" in check.detail for check in checks)
        assert not judged(TOP1, factor=-1.0)[0].is_passed

    def test_rows_that_only_fill_a_bucket_do_not_count(self) -> None:
        """Three samples in runs of two: the last one is there twice."""
        (check,) = judged(function("count_rows"), num_real=3)
        assert (check.value, check.detail) == (3.0, "real samples, 2 runs")

    def test_rows_that_the_recipe_calls_invalid_do_not_count(self) -> None:
        recipe = Recipe(
            inputs={"mask": InputRecipe(role=InputRole.MASK)},
            outputs={"y": OutputRecipe(valid_where="mask")},
        )
        (check,) = judged(TOP1, num_real=3, recipe=recipe)
        assert "3 rows, 4 classes" in check.detail

    def test_the_best_of_no_more_classes_say_nothing(self) -> None:
        (check,) = judged(TOP1.model_copy(update={"k": 4}), factor=-1.0)
        assert not check.is_passed
        assert check.detail.endswith("any engine names the best 4 of 4")

    def test_a_value_below_the_bound_fails(self) -> None:
        (check,) = judged(function("count_rows", 5.0))
        assert (check.value, check.bound, check.is_passed) == (4.0, 5.0, False)

    @pytest.mark.parametrize(
        ("name", "told"),
        [("fails", "raised ZeroDivisionError: no rows"), ("gives_nan", "gave nan, a number")],
    )
    def test_a_metric_with_a_fault_fails_in_its_own_words(self, name: str, told: str) -> None:
        (check,) = judged(function(name))
        assert not check.is_passed
        assert told in check.detail

    @pytest.mark.parametrize(
        "entry", ["no.such.module:score", f"{__name__}:absent", f"{__name__}:NO_METRIC"]
    )
    def test_a_function_that_is_not_there_is_refused_by_name(self, entry: str) -> None:
        task = FunctionTask(metric="function", entry=entry, min_value=0.0)
        with pytest.raises(ProofError, match=entry):
            judged(task)

    def test_samples_that_do_not_fit_fail_in_their_own_words(self) -> None:
        recipe = Recipe.model_validate({"batching": {"batch_dim": None}})
        (check,) = judged(TOP1, num_real=3, recipe=recipe)
        assert "first dimension is batching.batch_dim" in check.detail


class TestRecipe:
    def test_yaml_names_the_metrics(self) -> None:
        recipe = Recipe.from_yaml(
            "tasks:\n"
            "- {metric: top_k, output: y, k: 3, min_agreement: 0.99}\n"
            "- {metric: iou, output: y, format: cxcywh}\n"
            "- {metric: function, entry: 'mine.metrics:score', min_value: 0.9}\n"
        )
        assert [task.metric for task in recipe.tasks] == ["top_k", "iou", "function"]
        check_recipe(MASTER, recipe)

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("tasks: [{metric: top_7, output: y}]", "top_k"),
            ("tasks: [{metric: function, entry: 'os', min_value: 1}]", "entry"),
            ("tasks: [{metric: iou}]", "output"),
        ],
    )
    def test_a_wrong_one_is_refused(self, text: str, told: str) -> None:
        with pytest.raises(InvalidRecipeError, match=told):
            Recipe.from_yaml(text)

    @pytest.mark.parametrize(
        ("task", "told"),
        [
            (TopKTask(metric="top_k", output="z"), "'z' is not in the model"),
            (TOP1.model_copy(update={"k": 4}), "the best 4 of the 4 classes .* whatever"),
            (BoxTask(metric="iou", output="five"), r"expected boxes \[\.\.\., 4\]"),
        ],
    )
    def test_a_task_must_speak_of_the_model(self, task: Task, told: str) -> None:
        five = TensorSpec(name="five", datatype="FP32", shape=("batch", 5))
        master = MASTER.model_copy(update={"outputs": (*MASTER.outputs, five)})
        with pytest.raises(InvalidRecipeError, match=told):
            check_recipe(master, Recipe(tasks=(task,)))

    def test_tasks_are_part_of_what_proven_means(self) -> None:
        plain, tasked = Recipe(), Recipe(tasks=(TOP1,))
        terms = [proof_terms(each, Precision.FP32, None) for each in (plain, tasked)]
        assert terms[0] != terms[1]
        # Engines of before are still proven for the recipes of before.
        assert terms[0] == PLAIN
