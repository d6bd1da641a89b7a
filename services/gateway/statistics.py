"""ModelStatistics of a fleet: what the replicas counted, added up."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from services.contracts.errors import SmeltError
from services.gateway.endpoint import Endpoint
from services.gateway.routing import RoutingTable
from services.pb import open_inference_v2_pb2 as pb

logger = logging.getLogger(__name__)

# A replica answers from memory; one that does not is left out, not waited for.
ANSWER_TIMEOUT_S: Final = 2.0
_DURATIONS: Final = tuple(field.name for field in pb.InferStatistics.DESCRIPTOR.fields)
_BATCH_DURATIONS: Final = ("compute_input", "compute_infer", "compute_output")


# What this gateway itself counted for a version.
OwnStatistics = Callable[[str, int], pb.ModelStatistics]


async def fleet_statistics(
    table: RoutingTable, model: str, version: str, own: OwnStatistics
) -> pb.ModelStatisticsResponse:
    """The sums for one version, one model, or for model "" all; zeros where nothing ran.

    Raises:
        NotFoundError, InvalidRequestError: as RoutingTable.version_number.
    """
    wanted = _wanted(table, model, version)
    sums = await asyncio.gather(*(_of_version(table, name, n, own) for name, n in wanted))
    return pb.ModelStatisticsResponse(model_stats=sums)


def _wanted(table: RoutingTable, model: str, version: str) -> list[tuple[str, int]]:
    """Names and versions asked for, sorted."""
    if not model:
        return sorted((name, v) for name, versions in table.view.models.items() for v in versions)
    number = table.version_number(model, version)
    numbers = table.view.models[model] if number is None else (number,)
    return [(model, n) for n in sorted(numbers)]


async def _of_version(
    table: RoutingTable, model: str, number: int, own: OwnStatistics
) -> pb.ModelStatistics:
    pool = table.pools.get((model, str(number)))
    answers = await asyncio.gather(*map(_ask, pool.endpoints)) if pool else []
    parts = [own(model, number), *(answer for answer in answers if answer is not None)]
    return summed_statistics(model, number, parts)


async def _ask(endpoint: Endpoint) -> pb.ModelStatistics | None:
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await endpoint.connection.statistics()
    except (SmeltError, TimeoutError) as error:
        logger.warning("replica %s gave no statistics: %r", endpoint.replica.replica_id, error)
        return None


def summed_statistics(
    model: str, version: int, parts: Iterable[pb.ModelStatistics]
) -> pb.ModelStatistics:
    """Add up what replicas of one version counted."""
    total = pb.ModelStatistics(name=model, version=str(version))
    # Present even with zero requests: perf_analyzer reads each of them.
    for name in _DURATIONS:
        getattr(total.inference_stats, name).SetInParent()
    by_size: dict[int, pb.InferBatchStatistics] = {}
    for part in parts:
        total.inference_count += part.inference_count
        total.execution_count += part.execution_count
        total.last_inference = max(total.last_inference, part.last_inference)
        for name in _DURATIONS:
            _add(getattr(total.inference_stats, name), getattr(part.inference_stats, name))
        for batch in part.batch_stats:
            size = batch.batch_size
            into = by_size.setdefault(size, pb.InferBatchStatistics(batch_size=size))
            for name in _BATCH_DURATIONS:
                _add(getattr(into, name), getattr(batch, name))
    total.batch_stats.extend(by_size[size] for size in sorted(by_size))
    return total


def _add(total: pb.StatisticDuration, part: pb.StatisticDuration) -> None:
    total.count += part.count
    total.ns += part.ns
