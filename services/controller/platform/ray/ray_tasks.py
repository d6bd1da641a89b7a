"""Build tasks on Ray: a detached, named actor per task, on a node of its class.

The actor takes no resources that serving would miss, and outlives the controller that asked
for it: a controller that is started again finds it by its name. What it runs is a process
group of its own, at a lower priority than serving, and ends with the actor.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from services.contracts.builds.code_digest import compiler_code
from services.contracts.errors import NotReadyError
from services.controller.interfaces import BuildTask, TaskStatus
from services.controller.platform.command import worker_arguments
from services.controller.platform.ray.actor_answers import ActorAnswers

NAMESPACE = "smelt-builds"


class RayBuildLauncher:
    """A BuildLauncher; Ray must be initialised before it is asked for anything."""

    has_deadlines = False

    def __init__(
        self,
        *,
        store_url: str,
        cache_dir: str,
        num_threads: int = 0,
        extra_arguments: tuple[str, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is asked of Ray yet.

        Args:
            store_url: of the fleet.
            cache_dir: of every node; absolute.
            num_threads: of CPU engines while they are proven: as many as replicas have.
            extra_arguments: for the compiler, for example its benchmark's length.
            clock: monotonic seconds.
        """
        self._options = ["--store-url", store_url, "--cache-dir", cache_dir]
        self._options += ["--num-threads", str(num_threads), *extra_arguments]
        self._answers = ActorAnswers(clock)
        # By name, those of this process: of an actor that ended, Ray forgets the name.
        self._launched: dict[str, Any] = {}

    @property
    def compiler(self) -> str:
        """A cluster has one Smelt; its nodes' labels name the libraries."""
        return f"build code {compiler_code()}"

    def launch(self, task: BuildTask) -> None:
        """Create the task's actor; one of that name is left as it is.

        Raises:
            NotReadyError: Ray cannot be reached.
        """
        import ray

        from services.controller.platform.ray.build_actor import BuildActor

        options: dict[str, Any] = {} if task.is_anywhere else {"label_selector": _selector(task)}
        actor_class = ray.remote(BuildActor).options(
            name=task.name,
            # Names are per namespace, and a driver that names none gets an anonymous one: a
            # controller that is started again would not find them.
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            # Explicit: without it an actor waits for a whole free CPU to be placed.
            num_cpus=0,
            # A restart would build again uncounted: attempts are the build loop's.
            max_restarts=0,
            max_concurrency=2,
            **options,
        )
        arguments = [*worker_arguments(task), *self._options]
        try:
            self._launched[task.name] = actor_class.remote(arguments, not task.is_anywhere)
        except (ray.exceptions.RayError, ValueError) as error:
            raise NotReadyError(f"Ray accepts no build task now: {error}") from error

    def statuses(self) -> dict[str, TaskStatus]:
        """All tasks that Ray knows, and those of this process that it lost."""
        import ray

        actors = dict(self._launched)
        for each in ray.util.list_named_actors(all_namespaces=True):
            if each["namespace"] == NAMESPACE and each["name"] not in actors:
                # It may end in between.
                with suppress(ValueError):
                    actors[each["name"]] = ray.get_actor(each["name"], namespace=NAMESPACE)
        return self._answers.of(actors)

    def forget(self, name: str) -> None:
        """End the task's actor, and what it runs with it."""
        import ray

        self._answers.forget(name)
        actor = self._launched.pop(name, None)
        try:
            actor = actor or ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            return
        ray.kill(actor)


def end_all_tasks() -> int:
    """End every build task of the cluster that was joined; returns how many there were."""
    import ray

    named = ray.util.list_named_actors(all_namespaces=True)
    names = [each["name"] for each in named if each["namespace"] == NAMESPACE]
    for name in names:
        with suppress(ValueError):  # it ended in between
            ray.kill(ray.get_actor(name, namespace=NAMESPACE))
    return len(names)


def _selector(task: BuildTask) -> dict[str, str]:
    """All that is known of the class: a node with another driver or toolchain is another one."""
    return task.node_class.labels()
