"""The watch over streams that end, break, go stale or are forbidden."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from services.contracts.errors import NotReadyError
from services.controller.platform.kubernetes.watch import WatchTiming
from tests.integration.kubernetes.conftest import EAGER, LIMIT_S, WatchedNodes
from tests.integration.kubernetes.emulated_cluster import Asked, EmulatedCluster, gpu_node
from tests.integration.kubernetes.scripted_api import (
    ScriptedApi,
    Step,
    event,
    gone,
    listing,
    refusal,
    silence,
    stream,
)

WatchNodes = Callable[..., WatchedNodes]
NODES = "/api/v1/nodes"
A, B = gpu_node("a", 9, 0), gpu_node("b", 12, 0)


async def _followed(
    watch_nodes: WatchNodes, *steps: Step, timing: WatchTiming = EAGER
) -> tuple[list[str], WatchedNodes]:
    """What was asked until the script was over."""
    async with ScriptedApi(*steps) as api:
        nodes = watch_nodes(api, timing)
        async with asyncio.timeout(LIMIT_S):
            await api.is_over.wait()
        return api.asked, nodes


async def test_after_a_broken_stream_everything_is_listed_anew(watch_nodes: WatchNodes) -> None:
    """What was deleted during an outage is gone, though no event ever said so."""
    asked, nodes = await _followed(
        watch_nodes,
        listing("10"),
        stream(event("ADDED", A, "11"), is_broken=True),
        listing("20", B),
    )
    assert asked == ["list", "watch 10", "list", "watch 20"]
    await nodes.until_counts(sm120=1)


async def test_between_a_failure_and_the_next_list_what_is_known_is_stale(
    cluster: EmulatedCluster, watch_nodes: WatchNodes
) -> None:
    await cluster.create(NODES, A)
    nodes = watch_nodes(cluster)
    await nodes.until_counts(sm90=1)
    assert [pool.is_stale for pool in nodes.source.pools()] == [False]
    await cluster.stop()
    async with asyncio.timeout(LIMIT_S):
        while not all(pool.is_stale for pool in nodes.source.pools()):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
    await cluster.start()
    await cluster.create(NODES, B)
    await nodes.until_counts(sm90=1, sm120=1)
    async with asyncio.timeout(LIMIT_S):
        while any(pool.is_stale for pool in nodes.source.pools()):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)


async def test_a_node_that_was_deleted_during_an_outage_gets_no_task_though_that_has_not_settled(
    watch_nodes: WatchNodes,
) -> None:
    other = gpu_node("c", 9, 0)
    for left, is_stale in [((), True), ((other,), False)]:
        found, nodes = await _followed(
            watch_nodes,
            listing("10", A, *left),
            stream(is_broken=True),
            listing("20", *left),
            timing=replace(EAGER, settle_s=3600.0),
        )
        assert found[2:] == ["list", "watch 20"]
        (pool,) = nodes.source.pools()
        assert (pool.num_nodes, pool.is_stale) == (1 + len(left), is_stale)


async def test_a_stream_that_held_for_long_is_no_failure_in_a_row(
    watch_nodes: WatchNodes, caplog: pytest.LogCaptureFixture
) -> None:
    """However many there were before it: the next try comes soon."""
    timing = replace(EAGER, retry_s=0.0002, retry_max_s=0.0005)
    await _followed(
        watch_nodes,
        *(refusal(500) for _ in range(3)),
        listing("10"),
        stream(is_broken=True),  # an answer over HTTP takes longer than those pauses
        timing=timing,
    )
    waits = [r.args[1] for r in caplog.records if isinstance(r.args, tuple) and len(r.args) == 2]
    assert [w for w in waits if isinstance(w, float)][:4] == [0.0002, 0.0004, 0.0005, 0.0002]


async def test_a_node_that_flaps_changes_nothing(watch_nodes: WatchNodes) -> None:
    away = A | {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    asked, nodes = await _followed(
        watch_nodes,
        listing("10", A),
        stream(event("MODIFIED", away, "11")),
        stream(event("MODIFIED", A, "12")),
        timing=replace(EAGER, settle_s=3600),
    )
    assert asked[-1] == "watch 12", "both changes were read"
    assert nodes.said == [{"sm90": 1}]


async def test_a_stream_that_the_server_ends_is_taken_up(watch_nodes: WatchNodes) -> None:
    asked, nodes = await _followed(
        watch_nodes, listing("10"), stream(event("ADDED", A, "11")), stream()
    )
    assert asked == ["list", "watch 10", "watch 11", "watch 11"]
    await nodes.until_counts(sm90=1)


@pytest.mark.parametrize("forgotten", [stream(gone()), refusal(410)])
async def test_a_version_that_is_forgotten_means_listing(
    watch_nodes: WatchNodes, forgotten: Step
) -> None:
    """And what was deleted meanwhile is gone, though no event ever said so."""
    asked, nodes = await _followed(watch_nodes, listing("10", A), forgotten, listing("20", B))
    assert asked == ["list", "watch 10", "list", "watch 20"]
    await nodes.until_counts(sm120=1)


async def test_a_watch_that_is_refused_means_listing(watch_nodes: WatchNodes) -> None:
    asked, _ = await _followed(watch_nodes, listing("10"), refusal(500), listing("20"))
    assert asked == ["list", "watch 10", "list", "watch 20"]


async def test_a_list_that_fails_is_tried_again(
    watch_nodes: WatchNodes, caplog: pytest.LogCaptureFixture
) -> None:
    asked, _ = await _followed(watch_nodes, refusal(500), refusal(503), listing("10"))
    assert asked == ["list", "list", "list", "watch 10"]
    waits = [r.args[1] for r in caplog.records if isinstance(r.args, tuple) and len(r.args) == 2]
    assert [wait for wait in waits if isinstance(wait, float)][:2] == [0.01, 0.02]


async def test_what_is_no_answer_at_all_is_tried_again(watch_nodes: WatchNodes) -> None:
    broken = stream({"type": "ADDED", "object": "no object"})
    asked, _ = await _followed(watch_nodes, listing("10"), broken, listing("20"))
    assert asked[:2] == ["list", "watch 10"]


async def test_a_silent_stream_is_given_up_at_the_resync(watch_nodes: WatchNodes) -> None:
    """A connection whose other end is gone says nothing for ever."""
    script = (listing("10", A), silence, listing("20", B))
    async with ScriptedApi(*script) as api:
        nodes = watch_nodes(api, replace(EAGER, resync_s=0.1))
        await nodes.until_counts(sm120=1)
    assert api.asked[:3] == ["list", "watch 10", "list"]


async def test_cut_connections_are_made_again(
    cluster: EmulatedCluster, watch_nodes: WatchNodes, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = watch_nodes(cluster)
    for number in range(3):
        # A change that is made earlier comes with a list, and there may be no stream to cut.
        await cluster.until_streams("nodes", 1, LIMIT_S)
        await cluster.create(NODES, gpu_node(f"n{number}", 9, 0))
        await nodes.until_counts(sm90=number + 1)
        cluster.break_connections()
        await cluster.until_streams("nodes", 0, LIMIT_S)
    await cluster.until_streams("nodes", 1, LIMIT_S)
    await cluster.create(NODES, gpu_node("b", 12, 0))
    await nodes.until_counts(sm90=3, sm120=1)
    assert caplog.text.count("Kubernetes: cannot watch nodes in the cluster") >= 3


async def test_a_server_that_goes_and_comes_back_is_followed_again(
    cluster: EmulatedCluster, watch_nodes: WatchNodes
) -> None:
    await cluster.create(NODES, gpu_node("a", 9, 0))
    nodes = watch_nodes(cluster)
    await nodes.until_counts(sm90=1)
    await cluster.stop()
    # What is known stays known while the server is away.
    assert [pool.num_nodes for pool in nodes.source.pools()] == [1]
    await cluster.start()
    await cluster.create(NODES, gpu_node("b", 9, 0))
    await nodes.until_counts(sm90=2)


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_a_missing_permission_is_named_until_it_is_granted(
    cluster: EmulatedCluster,
    watch_nodes: WatchNodes,
    caplog: pytest.LogCaptureFixture,
    verb: str,
) -> None:
    everything = frozenset(
        Asked(verb, group, plural)
        for verb in ("list", "watch")
        for group, plural in (("", "nodes"), ("ray.io", "rayservices"))
    )
    refused = asyncio.Event()
    loop = asyncio.get_running_loop()
    message = f'nodes is forbidden: User "controller" cannot {verb}'
    named = f"grant the controller's ServiceAccount the verb '{verb}' on nodes"

    class _Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if named in record.getMessage() and message in record.getMessage():
                loop.call_soon_threadsafe(refused.set)

    cluster.emulator.granted = everything - {Asked(verb, "", "nodes")}
    listener = _Listener()
    logging.getLogger("services.controller.platform.kubernetes").addHandler(listener)
    try:
        nodes = watch_nodes(cluster)
        async with asyncio.timeout(LIMIT_S):
            await refused.wait()
    finally:
        logging.getLogger("services.controller.platform.kubernetes").removeHandler(listener)
    if verb == "list":
        with pytest.raises(NotReadyError, match=named):
            nodes.source.pools()
    cluster.emulator.granted = everything
    await cluster.create(NODES, gpu_node("a", 9, 0))
    await nodes.until_counts(sm90=1)
