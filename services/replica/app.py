"""Builds the Serve application of one model version: `services.replica.app:application`."""

from typing import Any

from ray import serve

from services.contracts.errors import InvalidRequestError
from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.labels import GENERATION_LABEL
from services.replica.deployment import ReplicaDeployment
from services.replica.gpu_request import num_gpus_for
from services.replica.ray_worker.environment import own_environment
from services.replica.scaling import number_arguments
from services.replica.settings import ReplicaSettings

# Serve checks each second, so a replica that cannot answer is replaced within a few.
_HEALTH_CHECK_PERIOD_S = 1.0
# A GPU may stall for seconds while another process loads an engine; that is no failure.
HEALTH_CHECK_TIMEOUT_S = 30.0
# Longer than the replica's own drain, which is longer than a request should take.
_SHUTDOWN_TIMEOUT_S = 40.0
# A share that orders placement and never blocks it: threads are the engine's business.
_NUM_CPUS = 0.1
_OWN_ARGS = ("num_replicas", "num_gpus", "gpu_share", "generation")


def application(args: dict[str, Any]) -> serve.Application:
    """The application that serves one model version.

    Args:
        args: fields of ReplicaSettings by name, and `num_replicas` (1; `auto` is as many as a
            GPU needs, and 1 on a CPU), `generation` (only on nodes labelled so; "" anywhere),
            `num_gpus` (see `gpu_request`; without a
            generation 1 where the cluster has GPUs) and `gpu_share` (1.0): of each of those
            that are not given, so that several replicas share a GPU.

    Raises:
        InvalidRequestError: a field is unknown or has a wrong value.
    """
    deployment, settings = deployment_of(args)
    return deployment.bind(settings.model_dump(mode="json"))


def deployment_of(args: dict[str, Any]) -> tuple[serve.Deployment, ReplicaSettings]:
    """The deployment of that application, and the settings that its replicas get.

    Raises InvalidRequestError for an argument that is no setting, or has a wrong value.
    """
    given = {name: value for name, value in args.items() if name not in _OWN_ARGS}
    try:
        settings = ReplicaSettings(**given)
    except ValueError as error:
        raise InvalidRequestError(f"replica settings: {error}") from error
    generation = str(args.get("generation", ""))
    variables = own_environment()
    share = float(args.get("gpu_share", 1.0))
    num_gpus = args.get("num_gpus", share * _default_num_gpus(settings, generation))
    deployment = serve.deployment(
        ReplicaDeployment,
        name="replica",
        **number_arguments(args.get("num_replicas", 1), num_gpus),
        ray_actor_options={
            "num_cpus": _NUM_CPUS,
            "num_gpus": num_gpus,
            "label_selector": {GENERATION_LABEL: generation} if generation else {},
            "runtime_env": {"env_vars": variables} if variables else {},
        },
        health_check_period_s=_HEALTH_CHECK_PERIOD_S,
        health_check_timeout_s=HEALTH_CHECK_TIMEOUT_S,
        graceful_shutdown_timeout_s=_SHUTDOWN_TIMEOUT_S,
        # No request comes through Serve, so there is nothing to wait for before the drain.
        graceful_shutdown_wait_loop_s=0.1,
        # A rollout starts the new replica before it stops the old one.
        max_surge_percent=100,
    )
    return deployment, settings


def _default_num_gpus(settings: ReplicaSettings, generation: str) -> int:
    import ray

    if generation:
        return num_gpus_for(generation, ray.nodes() if ray.is_initialized() else ())
    # Bound to nothing, so that it takes what there is, and so does a simulation.
    override = settings.generation_override
    if override and Generation.parse(override).platform is Platform.CPU:
        return 0
    return int(ray.is_initialized() and ray.cluster_resources().get("GPU", 0) >= 1)
