"""Which unnamed dimensions have to be equal: found by runs in which some are and others are not."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from compiler_worker.children.child import Events
from compiler_worker.children.requests import TrialRequest, TrialResult
from compiler_worker.master.dimensions.trial_run import TRIAL_SIZES, Inputs, TrialRun

Groups = Sequence[Sequence[str]]
# A decoder may have some hundred inputs of past keys.
_MAX_SPLITS = 32


def try_one(request: TrialRequest, _: Events | None = None) -> TrialResult:
    """The inside of the child: the dimensions that are equal, then those of the outputs."""
    trial = TrialRun(request)
    groups = found_ties(request.inputs, request.axes, trial) if request.axes else ()
    tied = _tied(request.inputs, groups or ())
    return TrialResult(
        groups=None if groups is None else tuple(map(tuple, groups)),
        outputs=trial.output_dims(tied) if request.has_outputs else {},
    )


def found_ties(inputs: Inputs, axes: Groups, trial: TrialRun) -> Groups | None:
    """The dimensions of each axis, in groups that are equal; None where nothing is computed.

    Args:
        inputs: with a name for each dimension.
        axes: of each axis, the dimensions that may have to be equal.
        trial: the file.
    """
    apart = [[dim] for dims in axes for dim in dims]
    for size in TRIAL_SIZES:
        if trial.computes(_tied(inputs, apart), size):
            return apart
        if trial.computes(_tied(inputs, axes), size):
            return _split(inputs, axes, partial(trial.computes, at=size))
    return None


def names_of(groups: Groups) -> dict[str, str]:
    """What dimensions are called that have the name of the first one of their group."""
    return {dim: first for first, *others in groups for dim in others}


def renamed(inputs: Inputs, names: Mapping[str, str]) -> Inputs:
    """The inputs with other names for some dimensions."""
    return tuple(
        spec.model_copy(update={"shape": tuple(names.get(str(d), d) for d in spec.shape)})
        for spec in inputs
    )


def _tied(inputs: Inputs, groups: Groups) -> Inputs:
    return renamed(inputs, names_of(groups))


def _split(inputs: Inputs, groups: Groups, computes: Callable[[Inputs], bool]) -> Groups:
    """Groups cut in two wherever the parts may be of different sizes."""
    num_left = _MAX_SPLITS
    for places in _orders(inputs):
        todo = [sorted(group, key=places.__getitem__) for group in groups]
        done = list[list[str]]()
        while todo:
            head = todo.pop()
            tail = list[str]()
            for place in range(1, min(len(head), num_left + 1)):
                num_left -= 1
                if computes(_tied(inputs, [*todo, *done, head[:place], head[place:]])):
                    tail = head[place:]
                    head = head[:place]
                    break
            done.append(head)
            todo += [tail] if tail else []
        groups = done
    return groups


def _orders(inputs: Inputs) -> list[dict[str, int]]:
    """The place of each dimension, in orders that have those of one sequence side by side.

    As the inputs are mostly, or else their names: `query_ids`, `ids_query`.
    """
    by_name = sorted(inputs, key=lambda spec: spec.name)
    backwards = sorted(inputs, key=lambda spec: spec.name[::-1])
    return [
        {str(d): place for place, spec in reversed([*enumerate(order)]) for d in spec.shape}
        for order in (inputs, by_name, backwards)
    ]
