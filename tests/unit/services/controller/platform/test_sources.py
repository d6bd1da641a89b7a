"""Sources of nodes: a description that is wrong, and several sources as one."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.contracts.errors import NotReadyError
from services.controller.interfaces import NodePool
from services.controller.platform.cluster_platform import CombinedNodes
from services.controller.platform.fleet_file import FleetFile
from tests.unit.services.controller.deploy.reconcile_world import LIMIT_S, NEW, OLD, Nodes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fleet.yaml"


def generations(source: CombinedNodes | FleetFile) -> list[str]:
    return [pool.node_class.generation for pool in source.pools()]


def test_a_file_describes_pools_without_nodes(path: Path) -> None:
    path.write_text("pools:\n- generation: cuda-sm89\n- {generation: cuda-sm90, driver: '580'}\n")
    first, second = FleetFile(path).pools()
    assert (first.num_nodes, first.source, first.names) == (0, "file", ("fleet.yaml:pools.0",))
    assert (second.node_class.generation, second.node_class.driver) == ("cuda-sm90", "580")


@pytest.mark.parametrize("text", ["", "# none yet", "pools: []"])
def test_a_file_may_describe_none(path: Path, text: str) -> None:
    path.write_text(text)
    assert FleetFile(path).pools() == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"pools: [", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"pools: [{generation: gpu-9}]", "pools.0.generation"),
        (b"pools: [{generation: cuda-sm90, nodes: 3}]", "pools.0.nodes"),
        (b"- cuda-sm90", "document"),
        (b"words", "document"),
    ],
)
def test_a_wrong_file_says_where(path: Path, content: bytes, said: str) -> None:
    path.write_bytes(content)
    with pytest.raises(NotReadyError, match=said) as caught:
        FleetFile(path).pools()
    assert str(path) in str(caught.value)


def test_a_file_that_is_missing_is_told(path: Path) -> None:
    with pytest.raises(NotReadyError, match=r"fleet\.yaml cannot be read"):
        FleetFile(path).pools()


def test_a_wrong_description_keeps_nobody_from_knowing_the_nodes(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(b"\xff")
    nodes = CombinedNodes([Nodes(OLD)], [FleetFile(path)])
    for _ in range(3):
        assert generations(nodes) == [OLD]
    told = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 1
    path.write_text(f"pools: [{{generation: {NEW}}}]")
    assert generations(nodes) == [OLD, NEW]
    path.write_text("pools: {}")
    assert generations(nodes) == [OLD, NEW]
    assert "using the last known nodes" in caplog.text


def test_nodes_that_were_never_known_are_not_none() -> None:
    away = Nodes(OLD)
    away.fault = "Ray is away"
    with pytest.raises(NotReadyError, match="Ray is away"):
        CombinedNodes([Nodes(NEW), away]).pools()
    away.fault = ""
    both = CombinedNodes([Nodes(NEW), away])
    assert generations(both) == [NEW, OLD]
    away.fault = "Ray is away"
    assert generations(both) == [NEW, OLD]


def test_a_source_that_hangs_keeps_no_later_call_waiting() -> None:
    asked = threading.Event()
    let_go = threading.Event()

    class OnceHanging(Nodes):
        def pools(self) -> list[NodePool]:
            if not asked.is_set():
                asked.set()
                let_go.wait()
            return super().pools()

    source = CombinedNodes([OnceHanging(OLD)])
    with ThreadPoolExecutor(2) as threads:
        hung = threads.submit(generations, source)
        try:
            assert asked.wait(LIMIT_S)
            assert threads.submit(generations, source).result(LIMIT_S) == [OLD]
            assert not hung.done()
        finally:
            let_go.set()
    assert hung.result() == [OLD]


def test_a_fault_is_told_once_although_its_figures_grow(caplog: pytest.LogCaptureFixture) -> None:
    class Silent(Nodes):
        num_asked = 0

        def pools(self) -> list[NodePool]:
            self.num_asked += 1
            if self.num_asked > 1:
                raise NotReadyError(f"nothing heard for {self.num_asked} s")
            return super().pools()

    source = CombinedNodes([Silent(OLD)])
    assert [generations(source) for _ in range(4)] == [[OLD]] * 4
    assert caplog.text.count("nothing heard for") == 1
