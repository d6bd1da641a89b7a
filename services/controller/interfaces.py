"""What the control plane needs of its platform: nodes, builds and replicas.

Ray, a fleet description file and Kubernetes each know nodes; a Ray task and a Kubernetes Job
each can run a build. The reconcile loop knows these few verbs only.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from services.contracts.builds.build_plan import TaskSpec
from services.contracts.external.external_model import ExternalModel, Starter
from services.contracts.hardware.node_class import NodeClass

if TYPE_CHECKING:
    from services.controller.room import Room

# To get a node, plan and build one key.
FIRST_KEY_S = 4 * 3600
# What the compiler allows a build and its proof, by default.
_FURTHER_KEY_S = 2 * 1800
# A task that plans does not know its keys yet: as many as one class of nodes may get.
_KEYS_OF_A_PLAN = 12


@dataclass(frozen=True, kw_only=True)
class NodePool:
    """Nodes of one class, as one source sees them.

    Attributes:
        source: `ray`, `kubernetes` or `file`.
        num_nodes: how many are there now; 0 for a pool that may grow.
        num_known: how many there are with those that take nothing new for now (cordoned, not
            ready); 0 where the source knows of no others.
        num_builds: how many build tasks its nodes take at a time.
        names: what a person calls them (node names, a line of the file).
        is_stale: as they were before the source was lost: nothing is launched for them.
    """

    node_class: NodeClass
    source: str
    num_nodes: int
    num_known: int = 0
    num_builds: int = 1
    names: tuple[str, ...] = ()
    is_stale: bool = False


class NodeSource(Protocol):
    """Knows which classes of nodes exist. Methods block; call them in a thread."""

    def pools(self) -> list[NodePool]:
        """All pools now, in a stable order.

        Raises:
            NotReadyError: the source cannot be read; what is known already stays wanted.
        """
        ...


class TaskState(StrEnum):
    """Where a launched build task is. What it made stands in the store, not here."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class BuildTask(TaskSpec):
    """A build task that is to be launched.

    Attributes:
        is_first: stop once one engine is proven: others have none yet.
        compiler: the launcher's.
    """

    is_first: bool = False
    compiler: str = ""


def deadline_s(task: TaskSpec, first_key_s: int = FIRST_KEY_S) -> int:
    """Seconds after which a task takes too long; so many are for its first key."""
    num_keys = len(task.key_digests) or _KEYS_OF_A_PLAN
    return first_key_s + (num_keys - 1) * _FURTHER_KEY_S


@dataclass(frozen=True, kw_only=True)
class TaskStatus:
    """What is known of a launched task.

    Attributes:
        detail: why it waits, or the last output of one that failed.
        is_failed: it ended without doing its work (exit code, crash, node lost).
        is_lost: its node was lost, which is no failure of what it was at.
        is_unstarted: it ended before it ever ran, which is no failure of what it was to do.
        run: differs for each run of a name; "" where that does not matter.
    """

    state: TaskState
    detail: str = ""
    is_failed: bool = False
    is_lost: bool = False
    is_unstarted: bool = False
    run: str = ""


class BuildLauncher(Protocol):
    """Runs build tasks somewhere. Methods block; call them in a thread.

    Attributes:
        has_deadlines: its platform ends what takes too long.
    """

    has_deadlines: bool

    @property
    def compiler(self) -> str:
        """Names what its tasks run, and changes with it.

        Where a node does not name its toolchain, a plan of another compiler is out of date.
        """
        ...

    def launch(self, task: BuildTask) -> None:
        """Start a task; one of that name that exists already is left as it is."""
        ...

    def statuses(self) -> dict[str, TaskStatus]:
        """Tasks that this launcher knows and that were not forgotten, by name.

        Those of an earlier controller are among them where the platform remembers them.
        """
        ...

    def forget(self, name: str) -> None:
        """Know a task no more, and stop one that runs; unknown names are no error.

        What is left of one that failed may stay for people to look at: its name is free.
        """
        ...


class Reconciler(Protocol):
    """What the control plane's RPCs need of the loops."""

    def note_use(self, model: str, seconds_ago: float = 0.0) -> None:
        """Take when the last request for an on-demand model was; one without replicas gets some."""
        ...

    async def reconcile_now(self) -> None:
        """Compare store and fleet once, and return when what differs was acted on."""
        ...


class DeploymentKey(NamedTuple):
    """A model version on a generation."""

    name: str
    version: int
    generation: str


class Unplaced(NamedTuple):
    """Why replicas are on no node.

    Attributes:
        words: for people; "" when all are on one, or soon will be.
        gives_way: deployments of other versions of the same model there, each of which holds so
            much of a GPU that a replica would have room in its place.
    """

    words: str = ""
    gives_way: tuple[DeploymentKey, ...] = ()


class ReplicaFleet(Protocol):
    """Places, restarts and removes replicas. Methods block; call them in `FleetThreads`.

    Attributes:
        is_placing: False when a RayService decides what is deployed; `deployed` is then what
            is there, and nothing is deployed or removed.
        absence: why a model version is not deployed anywhere, for people.
    """

    is_placing: bool
    absence: str

    def start(self) -> None:
        """Make the cluster usable."""
        ...

    def deploy(self, key: DeploymentKey, args: dict[str, Any]) -> None:
        """Have replicas of a model version started on a generation; does not wait for them."""
        ...

    def deployed(self) -> list[DeploymentKey]:
        """What is deployed, and what is being removed until it is gone."""
        ...

    def is_running(self, key: DeploymentKey) -> bool:
        """Whether what `deploy` asked for is ready.

        Raises:
            NotReadyError: it never will be; the message has Serve's reason.
        """
        ...

    def unplaced(self, key: DeploymentKey) -> Unplaced:
        """Why replicas of a deployment are on no node."""
        ...

    def rooms(self) -> "dict[str, Room]":
        """What each generation with deployments has, and what they hold of it."""
        ...

    def remove(self, key: DeploymentKey) -> None:
        """Have the replicas of a model version on a generation drained and stopped."""
        ...

    def num_wanted(self, model: str, version: int) -> int | None:
        """Replicas that a RayService asks for; None leaves it to what is deployed here."""
        ...

    def metrics_addresses(self) -> list[str]:
        """`host:port` of each node's metrics agent, sorted."""
        ...

    def stop(self) -> None:
        """Leave the cluster."""
        ...


class ServeApplications(Protocol):
    """Runs servers of external models. Methods block; call them in `FleetThreads`.

    Attributes:
        starter: which models it is for.
    """

    starter: Starter

    def apply(self, models: Sequence[ExternalModel], kept: Collection[str] = ()) -> bool:
        """Have these run, and no other but those of kept names; whether one runs, or still ends."""
        ...

    def find(self, model: ExternalModel) -> ExternalModel:
        """A model as its running server is asked.

        Raises:
            NotReadyError: it is being deployed.
            ExternalServerError: it could not be; the message has the reason.
        """
        ...
