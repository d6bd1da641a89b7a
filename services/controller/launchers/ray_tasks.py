"""Build tasks on Ray: a detached, named actor per task, on a node of its class.

The actor takes no resources that serving would miss, and outlives the controller that asked
for it: a controller that is started again finds it by its name. What it runs is a process
group of its own, at a lower priority than serving, and ends with the actor.
"""

import logging
from typing import Any

from services.contracts.errors import NotReadyError
from services.controller.launchers.command import worker_arguments
from services.controller.seams import BuildTask, TaskState, TaskStatus

logger = logging.getLogger(__name__)

NAMESPACE = "smelt-builds"
# An actor that does not answer within this has not been placed, or is busy starting.
_ANSWER_S = 2.0


class RayBuildLauncher:
    """A BuildLauncher; Ray must be initialised before it is asked for anything."""

    def __init__(
        self,
        *,
        store_url: str,
        cache_dir: str,
        num_threads: int = 0,
        extra_arguments: tuple[str, ...] = (),
    ) -> None:
        """Nothing is asked of Ray yet.

        Args:
            store_url: of the fleet.
            cache_dir: of every node; absolute.
            num_threads: of CPU engines while they are proven: as many as replicas have.
            extra_arguments: for the compiler, for example its benchmark's length.
        """
        self._options = ["--store-url", store_url, "--cache-dir", cache_dir]
        self._options += ["--num-threads", str(num_threads), *extra_arguments]
        # Tasks of this process: of an actor that died, Ray forgets the name.
        self._launched: set[str] = set()

    def launch(self, task: BuildTask) -> None:
        """Create the task's actor; one of that name is left as it is.

        Raises:
            NotReadyError: Ray cannot be reached.
        """
        import ray

        from services.controller.launchers.build_actor import BuildActor

        options: dict[str, Any] = {} if task.is_anywhere else {"label_selector": _selector(task)}
        actor_class = ray.remote(BuildActor).options(
            name=task.name,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=0,
            max_concurrency=2,
            **options,
        )
        try:
            actor_class.remote([*worker_arguments(task), *self._options], not task.is_anywhere)
        except (ray.exceptions.RayError, ValueError) as error:
            raise NotReadyError(f"Ray takes no build task now: {error}") from error
        self._launched.add(task.name)

    def statuses(self) -> dict[str, TaskStatus]:
        """All tasks that Ray knows, and those of this process that it lost."""
        import ray

        names = {
            each["name"]
            for each in ray.util.list_named_actors(all_namespaces=True)
            if each["namespace"] == NAMESPACE
        }
        lost = TaskStatus(
            state=TaskState.ENDED, detail="its node or its process was lost", is_failed=True
        )
        return dict.fromkeys(self._launched - names, lost) | _asked(sorted(names))

    def forget(self, name: str) -> None:
        """End the task's actor, and what it runs with it."""
        import ray

        self._launched.discard(name)
        try:
            actor = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            return
        ray.kill(actor)


def _selector(task: BuildTask) -> dict[str, str]:
    """All that is known of the class: a node with another driver or toolchain is another one."""
    return task.node_class.labels()


def _asked(names: list[str]) -> dict[str, TaskStatus]:
    """What the actors say of themselves."""
    import ray

    pending = {}
    for name in names:
        try:
            pending[ray.get_actor(name, namespace=NAMESPACE).status.remote()] = name
        except ValueError:
            continue  # it ended in between
    if not pending:
        return {}
    answered, _ = ray.wait(list(pending), num_returns=len(pending), timeout=_ANSWER_S)
    waiting = TaskStatus(state=TaskState.WAITING, detail="no node has taken it yet")
    return dict.fromkeys(pending.values(), waiting) | {
        pending[answer]: _status(answer) for answer in answered
    }


def _status(answer: Any) -> TaskStatus:
    import ray

    try:
        code, detail = ray.get(answer)
    except ray.exceptions.RayError as error:
        words = str(error).strip().splitlines() or [type(error).__name__]
        return TaskStatus(state=TaskState.ENDED, detail=words[0], is_failed=True)
    if code is None:
        return TaskStatus(state=TaskState.RUNNING)
    return TaskStatus(state=TaskState.ENDED, detail=detail, is_failed=code != 0)
