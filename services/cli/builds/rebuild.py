"""`smelt rebuild`: try again what failed, prove again what is published."""

from services.cli.fleet.control_client import notify_fleet
from services.cli.output.show import show
from services.cli.registry import open_registry_to_publish, who_asks
from services.cli.settings import CliSettings
from services.contracts.builds.build_plan import RebuildRequest
from services.contracts.hardware.facts import Generation
from services.contracts.model.manifest import ModelVersion, ProofOutcome
from services.contracts.registry.registry import Registry
from services.contracts.text.moments import timestamp
from services.contracts.text.words import counted


def run_rebuild(
    settings: CliSettings, name: str, generation: str, why: str, *, version: int | None = None
) -> None:
    """Request a rebuild; it runs where the generation's nodes are.

    Args:
        settings: where store and fleet are.
        name: of the model.
        generation: "" for all.
        why: kept in the request.
        version: None for the newest.

    Raises:
        NotFoundError: no such model or version.
        InvalidRequestError: no such generation.
    """
    wanted = str(Generation.parse(generation)) if generation else ""
    registry = open_registry_to_publish(settings, must_exist=True)
    request = rebuild_request(registry, registry.model_version(name, version), wanted, why)
    number = registry.request_rebuild(request)
    is_received = notify_fleet(settings)
    text = (
        f"{counted(len(request.reprove), 'published engine')} to be proven again, "
        f"{counted(len(request.disregarded), 'failed one')} to be tried again. "
        "See: smelt events --follow"
        if is_received
        else "written to the store; no fleet of this store runs here: its next controller does it"
    )
    document = {"number": number, "is_received": is_received} | request.model_dump(mode="json")
    show(document, [f"{name} version {request.version}: {text}"])


def rebuild_request(
    registry: Registry, version: ModelVersion, generation: str, why: str
) -> RebuildRequest:
    """A request that names what the store has now of each planned engine.

    A published engine is never overwritten, as its key has everything that changes its bytes. So
    published engines are proven again, and only failed ones are built again.

    Args:
        registry: on the store.
        version: of the model.
        generation: "" for all.
        why: kept in the request.
    """
    engines = {e.digest: e for e in registry.engines(version.master.digest)}
    # Pinned by what is there now: the request asks for nothing more once a newer attempt or proof
    # is.
    digests = _planned(registry, version, generation)
    proofs = {digest: engines[digest].proof for digest in digests if digest in engines}
    records = {digest: registry.build_records(digest) for digest in digests}
    return RebuildRequest(
        model=version.name,
        version=version.version,
        generation=generation,
        disregarded={
            digest: len(found)
            for digest, found in records.items()
            if not all(record.outcome.is_good for record in found)
        },
        reprove={
            digest: proof.created_at
            for digest, proof in proofs.items()
            if proof.outcome is not ProofOutcome.NOT_RUN
        },
        who=who_asks(),
        why=why,
        created_at=timestamp(),
    )


def _planned(registry: Registry, version: ModelVersion, generation: str) -> list[str]:
    """Digests of planned keys, each once."""
    plans = registry.build_plans(version.name, version.version)
    here = [plan for plan in plans if generation in ("", plan.node_class.generation)]
    return list(dict.fromkeys(planned.digest for plan in here for planned in plan.planned))
