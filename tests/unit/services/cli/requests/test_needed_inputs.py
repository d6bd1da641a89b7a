"""`smelt infer` without inputs shows what the model needs, in commands that run as printed."""

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner

from services.cli.fleet.fleet_file import RunningFleet, fleet_lock, write_fleet
from services.cli.main import app
from services.cli.requests.infer import read_inputs
from services.cli.requests.needed_inputs import needed_inputs_words
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.batching import Batching
from services.contracts.model.input_values import InputValues
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, InputRole, Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.pb import open_inference_v2_pb2 as pb
from tests.unit.services.cli.requests.gateway_stub import gateway_with

MODEL = pb.ModelMetadataResponse(name="m", versions=["3"])
MODEL.inputs.add(name="in/ids", datatype="INT64", shape=(-1, 4))
MODEL.inputs.add(name="half", datatype="FP16", shape=(-1,))
MODEL.inputs.add(name="text", datatype="BYTES", shape=(-1, 2))


def _echo(request: pb.ModelInferRequest, _: grpc.ServicerContext) -> pb.ModelInferResponse:
    response = pb.ModelInferResponse(raw_output_contents=request.raw_input_contents)
    for each in request.inputs:
        response.outputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
    return response


@pytest.fixture
def gateway() -> Iterator[str]:
    """A gateway that describes one model."""
    with gateway_with(ModelMetadata=lambda *_: MODEL, ModelInfer=_echo) as address:
        yield address


def test_the_inputs_are_named_and_the_example_runs(
    gateway: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["infer", "m", "--version", "3", "--address", gateway]
    with pytest.raises(InvalidRequestError) as raised:
        CliRunner().invoke(app, words, catch_exceptions=False)
    lines = [line.strip() for line in str(raised.value).splitlines()]
    assert "in/ids  INT64  [-1, 4]" in lines
    assert "half  FP16  [-1]" in lines
    assert "text  BYTES  [-1, 2]" in lines
    saving, asking = lines[-2:]
    subprocess.run(shlex.split(saving), check=True)
    command = shlex.split(asking)
    assert command[:7] == ["smelt", *words]
    arrays = read_inputs(command[8::2])
    assert {name: (str(a.dtype), a.shape) for name, a in arrays.items()} == {
        "in/ids": ("int64", (1, 4)),
        "half": ("float16", (1,)),
        "text": ("object", (1, 2)),
    }


def test_the_example_has_sizes_that_the_model_takes_by_the_store_of_the_fleet(
    gateway: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path / "home"))
    spec = TensorSpec(name="in/ids", datatype="INT64", shape=("batch", 4, "h"))
    dims = {"batch": DimRange(min=1, opt=4, max=8), "h": DimRange(min=32, opt=64, max=256)}
    registry = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
    master = MasterRecord(
        digest="d" * 64,
        files={},
        inputs=(
            spec,
            TensorSpec(name="half", datatype="FP16", shape=("batch",)),
            TensorSpec(name="text", datatype="BYTES", shape=("batch", 2)),
        ),
        outputs=(spec,),
        opset=23,
        num_parameters=0,
        input_values={"text": InputValues(choices=((), ("Ж", "S")))},
    )
    recipe = Recipe(
        buckets=(Bucket(dims=dims),),
        batching=Batching(batch_dim="batch"),
        # A token that pads is no mask, one that marks padding is.
        inputs={"in/ids": InputRecipe(pad=1), "half": InputRecipe(role=InputRole.MASK, pad=1)},
    )
    for print_ in "abc":
        registry.add_model_version(
            name="m", master=master, recipe=recipe, source="s", source_fingerprint=print_
        )
    run_dir = CliSettings().run_dir
    with fleet_lock(run_dir):
        running = RunningFleet(
            supervisor_pid=1,
            controller="c",
            grpc_address=gateway,
            metrics_address="m",
            store_url=str(tmp_path / "store"),
        )
        write_fleet(run_dir, running)
        with pytest.raises(InvalidRequestError) as raised:
            CliRunner().invoke(app, ["infer", "m"], catch_exceptions=False)
    told = str(raised.value)
    assert "in/ids  INT64  [batch, 4, h]" in told
    assert "batch 1..8, h 32..256" in told
    assert "np.ones((1, 4, 64), " in told
    assert "np.zeros((1,), " in told
    # What its encoder would refuse is no example.
    assert """ --input 'text=[["text", "Ж"]]'""" in told


def test_numbers_that_are_typed_are_sent_in_the_datatypes_of_the_model(gateway: str) -> None:
    inputs = [
        "--input",
        "in/ids=[[1, 2, 3, 4]]",
        "--input",
        "half=[1.5]",
        "--input",
        'text=[["a", "b"]]',
    ]
    words = ["infer", "m", "--address", gateway, *inputs, "--json"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    sent = {
        each["name"]: (each["datatype"], each["data"])
        for each in json.loads(done.stdout)["outputs"]
    }
    assert sent == {
        "in/ids": ("INT64", [1, 2, 3, 4]),
        "half": ("FP16", [1.5]),
        "text": ("BYTES", ["a", "b"]),
    }


@pytest.mark.parametrize(
    ("width", "texts"), [(1, "--text 'a text'"), (2, "--text 'a text' --text 'a text'")]
)
def test_text_of_a_tokenizer_is_a_command_of_its_own(width: int, texts: str) -> None:
    model = pb.ModelMetadataResponse(name="m")
    model.inputs.add(name="input_ids", datatype="INT64", shape=(-1, -1))
    model.inputs.add(name="text", datatype="BYTES", shape=(-1, width))
    lines = needed_inputs_words(model, ()).splitlines()
    assert lines[-2].strip() == "smelt infer m --input input_ids=@input_ids.npy"
    texts = " --text 'a text'" * width
    assert lines[-1].strip() == f"smelt infer m{texts}  # in place of the others"
