"""A queue of requests that each take a run of their own, of a given time."""

from services.cli.planning.curves import Curve
from services.cli.planning.plan_profile import ModelDemand
from services.cli.planning.queue_simulation import ReplicaQueue
from services.contracts.model.recipe import Bucket, DimRange
from tests.unit.services.cli.planning.planned_model import planned_model

_ONE = Bucket(
    dims={"batch": DimRange(min=1, opt=1, max=1), "length": DimRange(min=1, opt=8, max=8)}
)


def planned_queue(
    run_s: float, *, p99_ms: float = 1e6, host_ms: float = 0.0, overhead_ms: float = 0.0
) -> ReplicaQueue:
    """Without batches: what a request takes can be counted."""
    demand = ModelDemand(requests_per_s=1, p99_ms=p99_ms, host_ms=host_ms, overhead_ms=overhead_ms)
    curve = Curve(name="engine", elements=(8,), seconds=(run_s,))
    return ReplicaQueue(planned_model(_ONE), demand, curve)
