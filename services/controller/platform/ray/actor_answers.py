"""The status of build tasks by the answers of their actors, and by missing answers.

A lost connection is no failure of the build behind it, and a lost node none of what was built
there. Only an actor that ended on a node that Ray calls alive counts as failed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from services.controller.interfaces import TaskState, TaskStatus

# An actor that does not answer within this has not been placed, or is busy starting.
_ANSWER_S = 2.0
# Ray may report an actor's death before its node's.
_NODE_DEATH_S = 5.0


class ActorAnswers:
    """Polls the actors; keeps the node of each one, and since when one has ended."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        self._clock = clock
        # One open question for each: to an actor without a node they would pile up.
        self._questions: dict[str, Any] = {}
        self._nodes: dict[str, str] = {}
        self._dead_since_s: dict[str, float] = {}

    def of(self, actors: Mapping[str, Any]) -> dict[str, TaskStatus]:
        """The status of each actor's task, by name."""
        import ray

        for name in (self._questions.keys() | self._nodes.keys()) - actors.keys():
            self.forget(name)  # of an earlier controller, and over
        for name in actors.keys() - self._questions.keys():
            self._questions[name] = actors[name].status.remote()
        questions = {self._questions[name]: name for name in actors}
        answered: Iterable[Any] = ()
        if questions:
            # Not ray.get, whose timeout would lose the answers that are there already.
            answered, _ = ray.wait(list(questions), num_returns=len(questions), timeout=_ANSWER_S)
        statuses = {name: self._unanswered(name) for name in actors}
        for answer in answered:
            name = questions[answer]
            del self._questions[name]
            statuses[name] = self._status(name, answer)
        return statuses

    def forget(self, name: str) -> None:
        """Drop what is known of an actor."""
        for known in (self._questions, self._nodes, self._dead_since_s):
            known.pop(name, None)

    def _unanswered(self, name: str) -> TaskStatus:
        if name in self._nodes:
            return TaskStatus(state=TaskState.RUNNING, detail="it does not answer now")
        return TaskStatus(state=TaskState.WAITING, detail="no node has taken it yet")

    def _status(self, name: str, answer: Any) -> TaskStatus:
        import ray

        faults = ray.exceptions
        try:
            code, detail, self._nodes[name] = ray.get(answer)
        except faults.ActorDiedError as error:
            return replace(self._dead(name, error), run=error.actor_id or "")
        except (
            faults.RayTaskError,
            faults.RuntimeEnvSetupError,
            faults.ActorUnschedulableError,
        ) as error:
            return _failed(error)
        except faults.OutOfMemoryError as error:
            # For an actor that Ray ended so there is no ActorDiedError.
            return _failed(error, "Ray ended it, as its node was out of memory")
        except faults.RayError as error:
            # Its connection is lost for a moment; once it has ended, Ray raises ActorDiedError.
            return TaskStatus(state=TaskState.RUNNING, detail=_words(error))
        if code is None:
            return TaskStatus(state=TaskState.RUNNING)
        return TaskStatus(state=TaskState.ENDED, detail=detail, is_failed=code != 0)

    def _dead(self, name: str, error: Any) -> TaskStatus:
        """Failed, unless its node was lost too, which Ray may report a little later."""
        if error.actor_init_failed:
            return _failed(error)
        node = self._nodes.get(name, "")
        if error.preempted or (node and node not in _alive_nodes()):
            return TaskStatus(
                state=TaskState.ENDED, detail="its node was lost", is_failed=True, is_lost=True
            )
        since_s = self._dead_since_s.setdefault(name, self._clock())
        if self._clock() - since_s < _NODE_DEATH_S:
            return TaskStatus(state=TaskState.RUNNING, detail="dead; its node may be too")
        return _failed(error)


def _alive_nodes() -> set[str]:
    import ray

    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def _failed(error: Exception, words: str = "") -> TaskStatus:
    return TaskStatus(state=TaskState.ENDED, detail=words or _words(error), is_failed=True)


def _words(error: Exception) -> str:
    """The last line: the first ones name the actor, which people know by its task."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].strip()
