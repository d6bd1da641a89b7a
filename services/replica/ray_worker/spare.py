"""An idle worker of Ray in place of each that became a replica, so that the next starts as fast."""

import logging
from typing import Final

from services.engines.device.cuda_driver import opened_nvml

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 10.0


def has_gpu() -> bool:
    """Whether NVIDIA's driver is here, by NVML.

    CUDA itself is not initialised: CUDA_VISIBLE_DEVICES, which Ray sets when a worker takes an
    actor, would come too late then.
    """
    with opened_nvml() as nvml:
        return nvml is not None


def start_spare_worker() -> None:
    """Have Ray start one more idle worker on this node.

    Ray starts some with a node, and each later one when an actor waits for it.
    """
    try:
        _prestart()
    except Exception as error:
        # The next replica starts more slowly; this one serves.
        logger.warning("Ray starts no idle worker ahead of the next replica: %r", error)


def _prestart() -> None:
    import ray
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated.common_pb2 import PYTHON
    from ray.core.generated.node_manager_pb2 import PrestartWorkersRequest
    from ray.core.generated.node_manager_pb2_grpc import NodeManagerServiceStub

    own_id = ray.get_runtime_context().get_node_id()
    [node] = (node for node in ray.nodes() if node["NodeID"] == own_id)
    address = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
    with init_grpc_channel(address) as channel:
        request = PrestartWorkersRequest(language=PYTHON, num_workers=1)
        NodeManagerServiceStub(channel).PrestartWorkers(request, timeout=_TIMEOUT_S)
