"""The command `smelt` with --json, against a fleet that is up."""

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

from services.cli.fleet.control_client import fleet_on_store, get_fleet
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError, NotReadyError
from tests.integration.fleet.local_fleet import LocalFleet
from tests.integration.fleet.onnx_files import FEATURES, OUTPUTS, TOLERANCE, answer_of

if TYPE_CHECKING:
    from tests.integration.fleet.conftest import Served


def test_up_says_where_the_fleet_listens(fleet: LocalFleet) -> None:
    assert set(fleet.running) >= {
        "supervisor_pid",
        "controller",
        "grpc_address",
        "metrics_address",
        "store_url",
    }
    assert fleet.running["store_url"] == str(fleet.home / "store")


def test_status_names_models_replicas_and_engines(fleet: LocalFleet) -> None:
    status = fleet.smelt("status")
    linear = next(model for model in status["models"] if model["name"] == "linear")
    assert (linear["state"], linear["num_ready"], linear["num_wanted"]) == ("READY", 2, 2)
    replicas = fleet.replicas("linear")
    assert len({replica["process_id"] for replica in replicas}) == 2
    (engine,) = fleet.smelt("engines", "linear")["masters"][0]["engines"][:1]
    for replica in replicas:
        assert replica["engine_kind"] in ("onnxruntime", "openvino")
        assert replica["engine_generation"] == engine["manifest"]["key"]["generation"]
        assert not replica["fallback_reason"]
        assert any(address.startswith("unix:") for address in replica["addresses"])


def test_logs_of_all_processes_are_found(fleet: LocalFleet) -> None:
    files = fleet.smelt("logs", "--files")["files"]
    assert {file["component"] for file in files} >= {"up", "ray", "controller", "gateway"}
    # Of this fleet's Ray, whatever other Ray began since.
    replicas = {replica["process_id"] for replica in fleet.replicas("linear")}
    paths = [Path(f["path"]) for f in files if f["component"] == "replica:linear:1"]
    assert replicas <= {int(path.stem.rpartition("-")[2]) for path in paths}
    (line, *_) = fleet.smelt("logs", "replica:linear", "--lines", "100000")["lines"]
    assert line["process"] == "replica"


def test_models_list(fleet: LocalFleet) -> None:
    models = {model["name"]: model for model in fleet.smelt("models", "list")["models"]}
    assert models["linear"]["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": ["batch", FEATURES]}
    ]
    assert models["noop"]["num_parameters"] == 0
    assert models["linear"]["serving"] == models["linear"]["versions"][-1:]


def test_engines_lists_a_proven_one_with_its_key(fleet: LocalFleet) -> None:
    (master,) = fleet.smelt("engines", "noop")["masters"]
    (engine,) = master["engines"]
    assert engine["proof"]["outcome"] == "passed"
    assert engine["manifest"]["key"]["master_digest"] == master["digest"]
    assert engine["manifest"]["key"]["kind"] == "onnxruntime"


def test_building_again_builds_nothing(fleet: LocalFleet) -> None:
    report = fleet.build("noop", "onnxruntime")
    assert report["records"] == []
    assert len(report["up_to_date"]) == 1


def test_infer(served: "Served", tmp_path: Path) -> None:
    x_BF = np.random.default_rng(3).standard_normal((5, FEATURES)).astype(np.float32)
    np.save(tmp_path / "x.npy", x_BF)
    answer = served.fleet.smelt("infer", "linear", "--input", f"x=@{tmp_path / 'x.npy'}")
    (output,) = answer["outputs"]
    assert (output["name"], output["shape"]) == ("y", [5, OUTPUTS])
    y_BO = np.array(output["data"], np.float32).reshape(output["shape"])
    assert np.allclose(y_BO, answer_of(served.linear, x_BF), atol=TOLERANCE)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("infer", "nope", "--input", "x=@{x}"), "nope"),
        (("infer", "linaer", "--input", "x=@{x}"), "models list show those that are; there are: "),
        (("infer", "linear", "--input", "z=@{x}"), "'x'"),
        (("build", "nope"), "model 'nope' not found"),
        (("up", "--grpc-port", "0"), "smelt down"),
    ],
)
def test_a_mistake_ends_with_one_line_and_status_1(
    fleet: LocalFleet, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, FEATURES), np.float32))
    filled = [argument.format(x=tmp_path / "x.npy") for argument in arguments]
    done = fleet.smelt_process(*filled)
    assert done.returncode == 1
    assert "error:" in done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def elsewhere(fleet: LocalFleet, tmp_path: Path) -> LocalFleet:
    """Another host, as far as the commands can tell: a home of its own, and two variables."""
    return LocalFleet(
        tmp_path,
        SMELT_CONTROLLER=fleet.running["controller"],
        SMELT_STORE_URL=fleet.running["store_url"],
        SMELT_FLEET_TOKEN_FILE=str(fleet.settings.fleet_token_file),
    )


def test_commands_of_another_host_speak_to_the_controller_that_is_named(
    fleet: LocalFleet, elsewhere: LocalFleet
) -> None:
    status = elsewhere.smelt("status")
    assert status["controller"] == fleet.running["controller"]
    assert status["models"] == fleet.smelt("status")["models"]
    assert "store" in elsewhere.smelt_process("status").stdout
    asked = elsewhere.smelt("rebuild", "linear", "--version", "1", "--generation", "cuda-sm90")
    assert asked["is_received"] is True
    assert asked["version"] == 1


def test_the_control_plane_has_a_token_by_itself(fleet: LocalFleet, tmp_path: Path) -> None:
    """Whoever lacks it is refused; gateway, replicas and commands of the fleet have it."""
    with pytest.raises(NotReadyError, match="wants the fleet's token.*SMELT_FLEET_TOKEN_FILE"):
        get_fleet(fleet.running["controller"], CliSettings(home=tmp_path))
    assert (fleet.home / "fleet_token").stat().st_mode & 0o777 == 0o600
    assert get_fleet(fleet.running["controller"], fleet.settings).replicas


def test_a_controller_on_another_store_is_not_believed(fleet: LocalFleet, tmp_path: Path) -> None:
    settings = CliSettings(
        home=tmp_path,
        controller=fleet.running["controller"],
        store_url="s3://other/store",
        fleet_token_file=fleet.settings.fleet_token_file,
    )
    with pytest.raises(InvalidRequestError, match="uses store .*, this command on s3://other"):
        fleet_on_store(settings)


def test_a_cluster_that_is_not_there_is_named(tmp_path: Path) -> None:
    alone = LocalFleet(tmp_path)
    done = alone.smelt_process(
        "up", "--ray-address", "127.0.0.1:1", "--grpc-port", "0", "--metrics-port", "0"
    )
    assert done.returncode == 1
    assert "Ray at 127.0.0.1:1 cannot be joined" in done.stderr
    assert "  Fleet (1 of 2, " in done.stderr
    both = ("--ray-address", "127.0.0.1:1", "--generation", "cuda-sm90")
    assert "leave one of them out" in alone.smelt_process("up", *both).stderr


def test_the_page_that_status_names_shows_what_serves(fleet: LocalFleet) -> None:
    address, _, token = fleet.smelt("status")["page_url"].partition("/#token=")
    asked = Request(f"{address}/state", headers={"Authorization": f"Bearer {token}"})
    with urlopen(asked) as answer:
        document = json.loads(gzip.decompress(answer.read()))
    (row,) = next(m for m in document["models"] if m["name"] == "linear")["rows"]
    assert (row["state"], row["engine"]) == ("ready", "onnxruntime fp32")
    assert row["num_tried"] >= row["num_seen"] > 0
    with pytest.raises(HTTPError, match="401") as refused:
        urlopen(f"{address}/state")
    refused.value.close()
