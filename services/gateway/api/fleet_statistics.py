"""ModelStatistics of a fleet: what the replicas counted, added up."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from google.protobuf.message import DecodeError

from services.contracts.errors import SmeltError
from services.gateway.routing.table import RoutingTable
from services.gateway.upstream.endpoint import Endpoint
from services.pb import open_inference_v2_pb2 as pb

logger = logging.getLogger(__name__)

# A replica answers from memory; one that does not is left out, not waited for.
ANSWER_TIMEOUT_S: Final = 2.0
_DURATIONS: Final = tuple(field.name for field in pb.InferStatistics.DESCRIPTOR.fields)
_BATCH_DURATIONS: Final = ("compute_input", "compute_infer", "compute_output")
# Replicas of one version, gone ones too; beyond that the oldest become one sum.
_MAX_REMEMBERED: Final = 1024


# What this gateway itself counted for a version.
OwnStatistics = Callable[[str, int], pb.ModelStatistics]


class FleetStatistics:
    """Polls the replicas, and keeps the counts of those that are gone: sums never fall.

    Clients subtract what they read before a measurement from what they read after it.
    """

    def __init__(self, own: OwnStatistics) -> None:
        """No replica was asked yet; `own` gives what this gateway itself counted."""
        self._own = own
        self._remembered: dict[tuple[str, int], dict[str, pb.ModelStatistics]] = {}

    async def answer(
        self, table: RoutingTable, model: str, version: str
    ) -> pb.ModelStatisticsResponse:
        """The sums for one version, one model or all models; zeros where nothing ran.

        Args:
            table: of the models that are served.
            model: "" asks for all models.
            version: "" asks for all versions of the model.

        Raises:
            NotFoundError, InvalidRequestError: as RoutingTable.version_number.
        """
        wanted = _wanted(table, model, version)
        for key in [
            key for key in self._remembered if key[1] not in table.view.models.get(key[0], ())
        ]:
            del self._remembered[key]  # a version that was withdrawn begins anew when it comes back
        sums = await asyncio.gather(*(self._of_version(table, name, n) for name, n in wanted))
        return pb.ModelStatisticsResponse(model_stats=sums)

    async def _of_version(self, table: RoutingTable, model: str, number: int) -> pb.ModelStatistics:
        pool = table.pools.get((model, str(number)))
        endpoints = pool.endpoints if pool else ()
        remembered = self._remembered.setdefault((model, number), {})
        for endpoint, answer in zip(
            endpoints, await asyncio.gather(*map(ask_statistics, endpoints)), strict=True
        ):
            if answer is not None:
                # Last among those that are remembered, as it is the freshest.
                remembered.pop(endpoint.replica.replica_id, None)
                remembered[endpoint.replica.replica_id] = answer
        if len(remembered) > _MAX_REMEMBERED:
            oldest = [remembered.pop(name) for name in list(remembered)[: -_MAX_REMEMBERED // 2]]
            remembered["the oldest"] = summed_statistics(model, number, oldest)
        return summed_statistics(model, number, [self._own(model, number), *remembered.values()])


def _wanted(table: RoutingTable, model: str, version: str) -> list[tuple[str, int]]:
    """Names and versions asked for, sorted."""
    if not model:
        return sorted((name, v) for name, versions in table.view.models.items() for v in versions)
    number = table.version_number(model, version)
    numbers = table.view.models[model] if number is None else (number,)
    return [(model, n) for n in sorted(numbers)]


async def ask_statistics(endpoint: Endpoint) -> pb.ModelStatistics | None:
    """What one replica has counted; None when it does not answer in time."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await endpoint.connection.statistics()
    except (SmeltError, TimeoutError, DecodeError) as error:
        logger.warning("replica %s gave no statistics: %r", endpoint.replica.replica_id, error)
        return None


def summed_statistics(
    model: str, version: int, parts: Iterable[pb.ModelStatistics]
) -> pb.ModelStatistics:
    """Add up what replicas of one version counted; batch statistics by batch size.

    Args:
        model: its name.
        version: its number.
        parts: one of each replica; may be empty.
    """
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
