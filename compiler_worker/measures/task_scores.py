"""Task metrics as pure functions of arrays.

Legend: R = rows (all axes but the last), C = classes, k = top_k, N = boxes.
Inputs and outputs of a run are of any shape.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from services.contracts.errors import ProofError
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import TaskCheck
from services.contracts.model.recipe import RankingTask
from services.contracts.model.task_recipe import BoxFormat, BoxTask, FunctionTask, Task, TopKTask

Float64 = NDArray[np.float64]
Arrays = Mapping[str, Array]
# Part of a row's own standard deviation: of scores further apart one is better, whatever the
# precision that an engine errs by.
_TIE_CAP = 0.05

Metric = Callable[[Sequence[Arrays], Sequence[Arrays], Sequence[Arrays]], float]


def tie_margin(values_rc: Float64, error: float, axis: int = -1) -> Float64:
    """How far two values of a row may lie apart and still be a tie, one margin for each row.

    What an engine's error explains, and never more than a small part of the row's own spread: a
    broken engine must not be excused by the size of its own errors, nor a coarse precision by its
    bounds.

    Args:
        values_rc: the reference's values, float64 [R, C].
        error: largest absolute error of the engine.
        axis: along which the values of one row stand.
    """
    margin: Float64 = np.minimum(2 * error, _TIE_CAP * values_rc.std(axis, keepdims=True))
    return margin


def kept_share(found_rc: Float64, wanted_rc: Float64, top_k: int, margin_r1: Float64) -> float:
    """Mean share of the k best found that are among the k best wanted, or within a margin.

    Args:
        found_rc: the engine's values, float64 [R, C].
        wanted_rc: the reference's, of the same shape.
        top_k: k, at most C.
        margin_r1: how far below the k-th best value still counts, [R, 1].
    """
    kth_r1 = np.sort(wanted_rc, axis=1)[:, -top_k, np.newaxis]
    best_rk = np.argsort(-found_rc, axis=1, kind="stable")[:, :top_k]
    is_kept_rk = np.take_along_axis(wanted_rc, best_rk, axis=1) >= kth_r1 - margin_r1
    return float(is_kept_rk.mean())


def task_check(task: Task | RankingTask, value: float, detail: str) -> TaskCheck:
    """What a task found beside what its recipe wants.

    Args:
        task: has name and bound.
        value: what was found; passes from the bound on.
        detail: in words, for the record.
    """
    match task:
        case RankingTask():
            name = f"top{task.top_k}_overlap:{task.output}"
            bound = task.min_overlap
        case TopKTask():
            name = f"top{task.k}_agreement:{task.output}"
            bound = task.min_agreement
        case BoxTask():
            name = f"iou:{task.output}"
            bound = task.min_iou
        case FunctionTask():
            name = task.entry
            bound = task.min_value
        case _:
            assert_never(task)
    return TaskCheck(name=name, value=value, bound=bound, is_passed=value >= bound, detail=detail)


def failed_task(task: Task | RankingTask, words: str) -> TaskCheck:
    """A task that could not be judged."""
    # Not by its value: a recipe may want as little as 0 of its owner's function, or less.
    return task_check(task, 0.0, words).model_copy(update={"is_passed": False})


def top_k_agreement(found_rc: Array, wanted_rc: Array, task: TopKTask) -> TaskCheck:
    """Compare the best classes of each row, ties counted as kept.

    Args:
        found_rc: the engine's scores, [R, C].
        wanted_rc: the reference's, of the same shape.
        task: has k and the least agreement.
    """
    found = found_rc.astype(np.float64)
    wanted = wanted_rc.astype(np.float64)
    error = float(np.abs(found - wanted).max())
    margin_r1 = tie_margin(wanted, error)
    value = kept_share(found, wanted, task.k, margin_r1)
    return task_check(
        task,
        value,
        f"{wanted.shape[0]} rows, {wanted.shape[1]} classes, score error {error:.1e}, "
        f"tie margin {float(margin_r1.max()):.1e}",
    )


def box_iou(found_n4: Array, wanted_n4: Array, task: BoxTask) -> TaskCheck:
    """Compare boxes one by one by intersection over union.

    Boxes of the reference without an area do not count.

    Args:
        found_n4: the engine's boxes, [N, 4] in the task's format.
        wanted_n4: the reference's, in the same order.
        task: has format and the least mean.
    """
    found, wanted = (_corners(boxes, task.format) for boxes in (found_n4, wanted_n4))
    areas_n = _area(wanted)
    has_area = areas_n > 0
    low_n2 = np.maximum(found[:, :2], wanted[:, :2])
    high_n2 = np.minimum(found[:, 2:], wanted[:, 2:])
    common_n = _area(np.concatenate([low_n2, high_n2], axis=1))
    union_n = _area(found) + areas_n - common_n
    # Never over 0: a box that counts has an area of its own.
    ious_n = common_n[has_area] / union_n[has_area]
    value = float(ious_n.mean()) if ious_n.size else 0.0
    words = f", the worst {ious_n.min():.4f}" if ious_n.size else ": there is nothing to compare"
    return task_check(task, value, f"{ious_n.size} of {len(wanted)} boxes have an area{words}")


def metric_of(task: FunctionTask) -> Metric:
    """The function that a recipe names.

    Raises:
        ProofError: it is not there; no verdict on an engine.
    """
    module, _, name = task.entry.partition(":")
    try:
        found: Metric = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ProofError(
            f"recipe: tasks: function '{task.entry}' cannot be imported where engines are proven: "
            f"{error}; install its package beside the compiler, or take it out of the recipe"
        ) from error
    if not callable(found):
        raise ProofError(f"recipe: tasks: '{task.entry}' is a {type(found).__name__}, no function")
    return found


def function_check(
    metric: Metric,
    task: FunctionTask,
    inputs: Sequence[Arrays],
    wanted: Sequence[Arrays],
    found: Sequence[Arrays],
) -> TaskCheck:
    """Call the recipe's own metric; one that raises, or returns no finite number, has failed.

    Args:
        metric: as `metric_of` imports it.
        task: has the least value.
        inputs: of each run, by name.
        wanted: the reference's outputs of each run, by name.
        found: the engine's.
    """
    try:
        value = float(metric(inputs, wanted, found))
    except Exception as error:  # user code raises any type
        return failed_task(task, f"it raised {type(error).__name__}: {error}")
    if not math.isfinite(value):
        return failed_task(task, f"it gave {value}, a number is wanted")
    return task_check(task, value, f"{len(inputs)} runs")


def _corners(boxes_n4: Array, box_format: BoxFormat) -> Float64:
    boxes: Float64 = boxes_n4.astype(np.float64)
    first = boxes[:, :2]
    second = boxes[:, 2:]
    match box_format:
        case BoxFormat.XYXY:
            return boxes
        case BoxFormat.XYWH:
            return np.concatenate([first, first + second], axis=1)
        case BoxFormat.CXCYWH:
            return np.concatenate([first - second / 2, first + second / 2], axis=1)


def _area(corners_n4: Float64) -> Float64:
    sides_n2 = np.maximum(corners_n4[:, 2:] - corners_n4[:, :2], 0.0)
    area_n: Float64 = sides_n2[:, 0] * sides_n2[:, 1]
    return area_n
