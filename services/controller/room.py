"""What the nodes of a generation have, who holds it, and who leaves for those that wait. Pure.

What is wanted is compared with what the nodes of a generation have in all: Ray shows too late
which of those that load have their place. Sums do where a generation has one node with one GPU and
nothing else runs on it; elsewhere Ray still waits after a while, and one more leaves.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from services.contracts.hardware.labels import GENERATION_LABEL
from services.controller.interfaces import DeploymentKey

Amounts = Mapping[str, float]
_RESOURCES = ("GPU", "CPU")
# Ray counts in steps of 0.0001.
_ROUNDING = 1e-6
# Ray cuts requests off at 0.0001.
_CUT_OFF = 2e-4


class RoomRequest(NamedTuple):
    """What is to have room, and what may leave for it.

    Attributes:
        waiting: deployments that load, first come first; some may have their place already.
        modest: others that load, which leave themselves where there is no room.
        may_leave: for one that waits, the first of them first.
        leaving: are being removed.
        is_late: whether those that wait have waited for longer than Ray takes to place a replica.
    """

    waiting: list[DeploymentKey]
    modest: list[DeploymentKey]
    may_leave: list[DeploymentKey]
    leaving: list[DeploymentKey]
    is_late: bool


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a deployment takes.

    Attributes:
        amounts: of each resource, for each of its replicas.
        nodes: of its replicas, by id; one that waits has none.
        num_least: replicas that are always wanted; those beyond it are removed when others
            wait.
    """

    amounts: Amounts
    nodes: Sequence[str]
    num_least: int = 1

    @classmethod
    def of(cls, deployment: Mapping[str, Any]) -> Self:
        """From Serve's details of a deployment."""
        config = deployment["deployment_config"]
        options = config["ray_actor_options"]
        scaled = config.get("autoscaling_config") or {}
        return cls(
            amounts={"GPU": options.get("num_gpus") or 0.0, "CPU": options.get("num_cpus") or 0.0},
            nodes=[each["node_id"] for each in deployment["replicas"] if each.get("node_id")],
            num_least=scaled.get("min_replicas") or config.get("num_replicas") or 1,
        )

    @property
    def gpu_share(self) -> float:
        """Of a GPU, that each replica holds; 0.0 without one."""
        return self.amounts.get("GPU", 0.0)

    def least(self) -> Counter[str]:
        """Of the replicas that are always wanted."""
        return Counter({name: amount * self.num_least for name, amount in self.amounts.items()})


@dataclass(frozen=True, kw_only=True)
class Room:
    """One generation.

    Attributes:
        total, free: of each node, by id.
        held: by deployments there.
        pending: what requests want for which Ray seeks a node there.
    """

    generation: str
    total: Mapping[str, Amounts]
    free: Mapping[str, Amounts]
    held: Mapping[DeploymentKey, Held]
    pending: Sequence[Amounts] = ()

    @classmethod
    def of(
        cls,
        generation: str,
        nodes: Iterable[Mapping[str, Any]],
        free: Mapping[str, Amounts],
        held: Mapping[DeploymentKey, Held],
        pending: Sequence[Amounts] = (),
    ) -> Self:
        """From what Ray has.

        Args:
            generation: of this room.
            nodes: as `ray.nodes()` gives them, those that are up.
            free: unused resources of each node, by its id.
            held: by all deployments.
            pending: what requests want for which Ray seeks a node of the generation.
        """
        here = [n for n in nodes if (n.get("Labels") or {}).get(GENERATION_LABEL) == generation]
        return cls(
            generation=generation,
            total={node["NodeID"]: node.get("Resources") or {} for node in here},
            free={node["NodeID"]: free.get(node["NodeID"], {}) for node in here},
            held={key: each for key, each in held.items() if key.generation == generation},
            pending=pending,
        )

    @property
    def free_gpu(self) -> float:
        """The most that one GPU of a node has free for certain."""
        nodes = ((free.get("GPU", 0.0), self.total[node]) for node, free in self.free.items())
        return max((sure_gpu(free, has.get("GPU", 0.0)) for free, has in nodes), default=0.0)

    def is_pending(self, wanted: Amounts) -> bool:
        """Whether Ray seeks a node for such a request.

        Serve calls those waiting too that have theirs, and whose process is slow to start.
        """
        amounts = {name: amount for name, amount in wanted.items() if amount}
        return any(
            found.keys() == amounts.keys()
            and all(abs(amounts[name] - amount) < _CUT_OFF for name, amount in found.items())
            for found in self.pending
        )

    def waits(self, key: DeploymentKey) -> bool:
        """Whether Serve has it, and not all of its replicas are seen on a node."""
        held = self.held.get(key)
        return held is not None and len(held.nodes) < held.num_least

    def must_leave(self, request: RoomRequest) -> list[DeploymentKey]:
        """Which of those that may leave have to, and which modest ones.

        None for one that would have no room even so.
        """
        waiting = list(filter(self.waits, request.waiting))
        modest = list(filter(self.waits, request.modest))
        staying = self.held.keys() - {*request.leaving, *waiting, *modest}
        chosen: list[DeploymentKey] = []
        for key in waiting:
            may = [each for each in request.may_leave if each in staying]
            found = self._fewest(self._over(staying | {key}), may)
            if found is not None:  # else none leaves, as it would still not fit
                chosen += found
                staying = (staying | {key}) - {*found}
        for key in modest:
            if _is_over(self._over(staying | {key})):
                chosen.append(key)
            else:
                staying.add(key)
        is_leaving = any(key.generation == self.generation for key in request.leaving)
        if chosen or is_leaving or not request.is_late:
            return chosen
        # What Ray does not place, although there would be room in all.
        for key in (*waiting, *modest):
            if self.is_pending(self.held[key].amounts):
                return [key] if key in modest else self.next_to_leave(key, request.may_leave)
        return []

    def next_to_leave(
        self, key: DeploymentKey, may_leave: Iterable[DeploymentKey]
    ) -> list[DeploymentKey]:
        """Of one node, so that a replica for which Ray finds no place may have it there.

        What a node with several GPUs has free may be no GPU's: then one leaves, and Ray is seen.

        Args:
            key: of the deployment that waits.
            may_leave: the first of them first.
        """
        wanted = self.held[key].amounts
        split = [node for node, total in self.total.items() if total.get("GPU", 0.0) > 1]
        if any(_fits(wanted, free) for node, free in self.free.items() if node not in split):
            return []  # Ray is about to place it
        room = {node: Counter(free) for node, free in self.free.items()}
        seen: list[DeploymentKey] = []
        for each in filter(self.held.__contains__, may_leave):
            seen.append(each)
            for node in filter(room.__contains__, self.held[each].nodes):
                room[node].update(self.held[each].amounts)
                if _fits(wanted, room[node]):
                    return [other for other in seen if node in self.held[other].nodes]
        return []

    def _over(self, keys: Iterable[DeploymentKey]) -> Counter[str]:
        """What these take together, without replicas that are removed, beyond what there is."""
        over = _sum(self.held[key].least() for key in keys)
        over.subtract(_sum(map(Counter, self.total.values())))
        return over

    def _fewest(
        self, over: Amounts, candidates: Sequence[DeploymentKey]
    ) -> list[DeploymentKey] | None:
        """The first of them that hold so much together; None where all of them do not."""
        taken: list[DeploymentKey] = []

        def would_do(keys: Iterable[DeploymentKey]) -> bool:
            return _fits(over, _sum(self.held[key].least() for key in keys))

        for key in candidates:
            if would_do(taken):
                break
            taken.append(key)
        if not would_do(taken):
            return None
        # Those that turn out to be too small to matter stay, the last one first.
        for key in reversed(taken[:]):
            rest = [each for each in taken if each != key]
            taken = rest if would_do(rest) else taken
        return taken


def sure_gpu(free: float, num_gpus: float) -> float:
    """What one GPU of a node has free for certain, as Ray shows only the sum over all of them.

    One has at least what each would have if all had the same.
    """
    return free / max(num_gpus, 1.0)


def _sum(amounts: "Iterable[Counter[str]]") -> Counter[str]:
    total: Counter[str] = Counter()
    for each in amounts:
        total.update(each)
    return total


def _fits(wanted: Amounts, room: Amounts) -> bool:
    return all(wanted.get(name, 0.0) <= room.get(name, 0.0) + _ROUNDING for name in _RESOURCES)


def _is_over(over: Amounts) -> bool:
    return not _fits(over, {})
