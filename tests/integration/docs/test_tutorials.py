"""The commands of README and of the tutorials, in a real shell and against a real fleet."""

import shutil
import socket
from pathlib import Path

import onnx
import onnx.parser
import pytest

from services.cli.demo.run import MODEL, SOURCE
from tests.integration.docs.shell import changed, commands, page, run, smelt_home, write_files
from tests.unit.docs.markdown import ROOT, blocks

FIRST, GPU, KUBERNETES = page("first-model.md"), page("new-gpu.md"), page("kubernetes.md")
README = ROOT / "README.md"
QUADRANTS = "[3 1 2 0]"
RANKER = """
    <ir_version: 10, opset_import: ["": 20]>
    ranker (float[batch, 4] features) => (float[batch, 4] scores) { scores = Sigmoid (features) }
"""


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return str(listening.getsockname()[1])


def test_a_first_model_is_trained_and_published(tmp_path: Path) -> None:
    write_files(FIRST, tmp_path, {})
    # Up to the first thing that takes long.
    script, _, _ = commands(FIRST, {}).partition("smelt build")
    with smelt_home() as home:
        printed = run(f"{script}\nsmelt models list", tmp_path, home)
    assert "accuracy 0.9" in printed
    assert "quadrants version 1" in printed


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_readmes_client_gets_an_answer_and_its_commands_add_a_model(tmp_path: Path) -> None:
    port = free_port()
    (client,) = [block.text for block in blocks(README) if block.words == "python"]
    (tmp_path / "client.py").write_text(changed(client, {":8001": f":{port}"}))
    onnx.save(onnx.parser.parse_model(RANKER), tmp_path / "ranker.onnx")
    lines = [line for block in blocks(README) for line in block.text.splitlines()]
    up, *own = (line.removeprefix("$ ") for line in lines if line.startswith("$ "))
    assert up == "smelt up --detach"
    # What `make run` serves as well.
    demo = f"smelt models add {MODEL} {SOURCE}"
    started = f"{up} --grpc-port {port} --metrics-port 0"
    with smelt_home() as home:
        printed = run("\n".join([demo, started, "python client.py", *own]), tmp_path, home)
    assert "(1, 384)" in printed
    assert "ranker version 1" in printed


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_first_model_serves_is_replaced_and_comes_back(tmp_path: Path) -> None:
    port = free_port()
    write_files(FIRST, tmp_path, {":8001": f":{port}"})
    ports = f"smelt up --grpc-port {port} --metrics-port 0"
    with smelt_home() as home:
        printed = run(commands(FIRST, {"smelt up": ports}), tmp_path, home)
    assert printed.count(f"version 1 {QUADRANTS}") == 2
    assert printed.count(f"version 2 {QUADRANTS}") == 1
    assert "kinds of faults would be refused" in printed


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_new_generation_joins_and_gets_engines(tmp_path: Path) -> None:
    port, ray_port = free_port(), free_port()
    write_files(FIRST, tmp_path, {":8001": f":{port}"})
    first, _, _ = commands(FIRST, {}).partition("smelt build")
    ports = f"smelt up --grpc-port {port} --metrics-port 0"
    script = commands(GPU, {"smelt up": ports, "6379": ray_port})
    with smelt_home() as home:
        printed = run(f"{first}\n{script}", tmp_path, home)
    assert f"version 1 {QUADRANTS}" in printed
    assert "generation_appeared  cpu-x86_64-v3" in printed
    assert "quadrants version 1 on cpu-x86_64-v3: serves with" in printed


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_the_manifests_of_the_kubernetes_tutorial_are_rendered(tmp_path: Path) -> None:
    script = commands(KUBERNETES, {"k8s/": f"{Path(__file__).resolve().parents[3]}/k8s/"})
    with smelt_home() as home:
        assert "RayService" in run(script, tmp_path, home)
