"""A recipe's task metrics for one engine: run it on samples beside its reference, and judge."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

import numpy as np

from compiler_worker.inputs.sampling import Sample
from compiler_worker.measures.ranking import sample_chunks
from compiler_worker.measures.task_scores import (
    box_iou,
    failed_task,
    function_check,
    metric_of,
    top_k_agreement,
)
from compiler_worker.references.models import Model
from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord, TaskCheck
from services.contracts.model.recipe import Bucket, Recipe
from services.contracts.model.task_recipe import BoxTask, FunctionTask, TopKTask


@dataclass(frozen=True, kw_only=True)
class TaskSamples:
    """What tasks are judged on.

    Attributes:
        real: real samples; None when the model version has none.
        drawn: the proof's own, taken in their place.
    """

    master: MasterRecord
    recipe: Recipe
    buckets: Sequence[Bucket]
    real: Mapping[str, Array] | None
    drawn: Sequence[Sample]

    def runs(self) -> Iterator[tuple[dict[str, Array], int]]:
        """Inputs of each run by name, of any shape, and how many rows of it count; -1 for all.

        Raises:
            InvalidRequestError: the real samples do not fit the model or its buckets.
        """
        if self.real is None:
            yield from ((sample.inputs, -1) for sample in self.drawn)
            return
        yield from sample_chunks(self.real, self.master, self.recipe, self.buckets)

    @property
    def words(self) -> str:
        """Which samples these are."""
        return "drawn samples" if self.real is None else "real samples"


@dataclass
class _Runs:
    """Inputs, reference and engine's outputs, a mapping for each run."""

    inputs: list[dict[str, Array]] = field(default_factory=list)
    wanted: list[dict[str, Array]] = field(default_factory=list)
    found: list[dict[str, Array]] = field(default_factory=list)


def check_tasks(
    engine: Model,
    reference: Model,
    samples: TaskSamples,
) -> tuple[TaskCheck, ...]:
    """Judge every task of the recipe.

    Args:
        engine: under test.
        reference: whose outputs are right.
        samples: what both are run on, and the recipe.

    Raises:
        EngineError: the engine failed.
        ProofError: a function that the recipe names is not there.
    """
    tasks = samples.recipe.tasks
    if not tasks:
        return ()
    # Before anything runs: a name that is wrong is no engine's fault.
    metrics = {t.entry: metric_of(t) for t in tasks if isinstance(t, FunctionTask)}
    try:
        runs = _run_all(engine, reference, samples)
    except InvalidRequestError as error:
        return tuple(failed_task(task, str(error)) for task in tasks)
    checks = []
    for task in tasks:
        if isinstance(task, FunctionTask):
            metric = metrics[task.entry]
            check = function_check(metric, task, runs.inputs, runs.wanted, runs.found)
        else:
            check = _array_check(task, runs, samples.recipe)
        checks.append(check.model_copy(update={"detail": f"{samples.words}, {check.detail}"}))
    return tuple(checks)


def _array_check(task: TopKTask | BoxTask, runs: _Runs, recipe: Recipe) -> TaskCheck:
    try:
        found, wanted = (
            _rows(task.output, runs, side, recipe) for side in (runs.found, runs.wanted)
        )
    except (ValueError, IndexError) as error:
        return failed_task(task, str(error))
    if found.shape != wanted.shape or not wanted.size:
        words = f"{list(found.shape)} found, {list(wanted.shape)} wanted"
        return failed_task(task, f"there are no equal rows to compare: {words}")
    match task:
        case TopKTask():
            if task.k >= wanted.shape[1]:
                return failed_task(task, f"any engine names the best {task.k} of {wanted.shape[1]}")
            return top_k_agreement(found, wanted, task)
        case BoxTask():
            return box_iou(found, wanted, task)
        case _:
            assert_never(task)


def _rows(
    output: str, runs: _Runs, outputs: Sequence[Mapping[str, Array]], recipe: Recipe
) -> Array:
    """All rows of an output over all runs, those left out that the recipe calls invalid."""
    asked = recipe.outputs.get(output)
    mask = asked.valid_where if asked else None
    rows = []
    for inputs, arrays in zip(runs.inputs, outputs, strict=True):
        array = arrays[output]
        kept = array[np.asarray(inputs[mask]) != 0] if mask else array
        rows.append(kept.reshape(-1, array.shape[-1]))
    return np.concatenate(rows)


def _run_all(engine: Model, reference: Model, samples: TaskSamples) -> _Runs:
    batch = samples.recipe.batching.batch_dim
    runs = _Runs()
    master = samples.master
    for inputs, num_rows in samples.runs():
        for outputs, model in ((runs.wanted, reference), (runs.found, engine)):
            outputs.append(_first_rows(model.run(inputs), master.outputs, batch, num_rows))
        runs.inputs.append(_first_rows(inputs, master.inputs, batch, num_rows))
    return runs


def _first_rows(
    arrays: Mapping[str, Array], specs: Sequence[TensorSpec], batch: str | None, num_rows: int
) -> dict[str, Array]:
    """Without the rows that only fill a bucket."""
    if num_rows < 0:
        return dict(arrays)
    return {
        spec.name: arrays[spec.name][:num_rows] if spec.shape[:1] == (batch,) else arrays[spec.name]
        for spec in specs
    }
