"""Address choice and the sum of statistics."""

from collections.abc import Callable

import pytest

from services.gateway.api.fleet_statistics import summed_statistics
from services.gateway.routing.fleet_view import ReplicaInfo
from services.gateway.upstream.holder import preferred_addresses
from services.pb import open_inference_v2_pb2 as pb


@pytest.mark.parametrize(
    ("host_id", "addresses"),
    [("here", ("unix:/run/r1", "127.0.0.1:7")), ("elsewhere", ("127.0.0.1:7",))],
)
def test_a_unix_socket_comes_first_and_on_its_own_host_alone(
    new_replica: Callable[..., ReplicaInfo], host_id: str, addresses: tuple[str, ...]
) -> None:
    replica = new_replica(addresses=("127.0.0.1:7", "unix:/run/r1"), host_id="here")
    assert preferred_addresses(replica, host_id) == addresses


def _counted(rows: int, count: int, at_ms: int) -> pb.ModelStatistics:
    duration = pb.StatisticDuration(count=count, ns=10 * count)
    return pb.ModelStatistics(
        name="whatever the replica calls it",
        last_inference=at_ms,
        inference_count=rows * count,
        execution_count=count,
        inference_stats=pb.InferStatistics(
            success=duration, compute_input=duration, compute_infer=duration, queue=duration
        ),
        batch_stats=[
            pb.InferBatchStatistics(batch_size=rows, compute_infer=duration),
            pb.InferBatchStatistics(batch_size=1, compute_infer=duration),
        ],
    )


def test_statistics_add_up() -> None:
    total = summed_statistics("m", 3, [_counted(8, 2, 500), _counted(4, 5, 400)])
    assert (total.name, total.version, total.last_inference) == ("m", "3", 500)
    assert (total.inference_count, total.execution_count) == (36, 7)
    assert (total.inference_stats.queue.count, total.inference_stats.queue.ns) == (7, 70)
    found = [(batch.batch_size, batch.compute_infer.count) for batch in total.batch_stats]
    assert found == [(1, 7), (4, 5), (8, 2)]


def test_statistics_of_nobody_are_zeros_that_are_present() -> None:
    total = summed_statistics("m", 1, [])
    assert total.inference_count == 0
    assert not total.batch_stats
    fields = pb.InferStatistics.DESCRIPTOR.fields
    assert all(total.inference_stats.HasField(field.name) for field in fields)
