"""`smelt bench` against a real gateway: what it counts, shows and writes."""

import asyncio
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from services.cli.bench.bench import BenchOptions, run_bench
from services.cli.bench.bench_report import bench_text
from services.cli.bench.bench_run import run_loads
from services.cli.fleet.fleet_file import RunningFleet, fleet_lock, write_fleet
from services.cli.output.progress import StepLine, Steps
from services.cli.output.show import output_form
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError, NotFoundError, UnauthenticatedError
from services.contracts.transport.frames import InferFrame
from services.gateway.access.static_tokens import new_token, token_hash
from services.pb import fleet_v1_pb2 as fleet_pb
from services.pb import open_inference_v2_pb2 as pb
from tests.certificates import Authority
from tests.integration.gateway.conftest import Fleet
from tests.unit.services.cli.fleet_stub import fleet_saying


def options(folder: Path, **given: object) -> BenchOptions:
    """Two rows a request, three callers, for a moment."""
    np.save(folder / "x.npy", np.ones((2, 4), np.float32))
    usual = {
        "version": 0,
        "inputs": [f"x=@{folder / 'x.npy'}"],
        "sizes": [],
        "concurrency": "1,3",
        "seconds": 0.2,
        "html": folder / "page.html",
    }
    return BenchOptions(**usual | given)  # type: ignore[arg-type]


async def bench(
    folder: Path,
    fleet: Fleet,
    *,
    name: str = "echo",
    as_json: bool = True,
    settings: CliSettings | None = None,
    **given: object,
) -> int:
    """Run it in a thread, as it has a loop of its own."""
    asked = options(folder, **{"address": fleet.url} | given)
    known = settings or CliSettings(home=folder)
    with output_form(as_json=as_json):
        return await asyncio.to_thread(run_bench, known, name, asked)


async def test_given_inputs_are_sent_and_their_figures_shown(
    echo_fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await bench(tmp_path, echo_fleet) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(cell["callers"], cell["rows"]) for cell in document["cells"]] == [(1, 2), (3, 2)]
    for cell in document["cells"]:
        assert cell["errors"] == {}
        assert cell["rows_per_s"] == 2 * cell["requests_per_s"] > 0
        assert list(cell["latency_ms"].values()) == sorted(cell["latency_ms"].values())
        assert cell["served_by"] == ["openvino"]
    # Those that open a caller's connection are not among the answered ones.
    asked = sum(replica.num_requests for replica in echo_fleet.replicas.values())
    assert asked == sum(cell["num_answered"] for cell in document["cells"]) + 1 + 3
    page = (tmp_path / "page.html").read_text()
    assert f"{document['cells'][1]['latency_ms']['p99']:.2f}</td>" in page


async def test_numbers_that_are_typed_have_the_datatype_of_the_model(
    echo_fleet: Fleet, tmp_path: Path
) -> None:
    given = {"inputs": ["x=[[1, 2, 3, 4.5]]"], "concurrency": "1"}
    assert await bench(tmp_path, echo_fleet, **given) == 0
    frames = [frame for replica in echo_fleet.replicas.values() for frame in replica.frames]
    sent = [pb.ModelInferRequest.FromString(bytes(frame.request)) for frame in frames]
    # Read from JSON as float64.
    assert {request.inputs[0].datatype for request in sent} == {"FP32"}


async def test_every_failure_is_counted_shown_and_fails_the_command(
    echo_fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = []
    for replica in echo_fleet.replicas.values():
        numbers = itertools.count()

        async def answer(frame: InferFrame, replica=replica, numbers=numbers) -> bytes:
            if next(numbers) % 2:
                return await replica.echo(frame)
            refused.append(replica.name)
            raise NotFoundError("not this one")

        replica.answer = answer
    assert await bench(tmp_path, echo_fleet, concurrency="2,2") == 1
    (cell,) = json.loads(capsys.readouterr().out)["cells"]
    assert cell["errors"] == {"NOT_FOUND": len(refused)}
    assert cell["num_answered"] > 0
    refused.clear()
    assert await bench(tmp_path, echo_fleet, concurrency="2", as_json=False) == 1
    words = f"{len(refused)} of "
    told = f"requests failed: NOT_FOUND: {cell['error_details']['NOT_FOUND']}"
    assert words in (out := capsys.readouterr().out)
    assert told in out
    page = (tmp_path / "page.html").read_text()
    assert words in page
    assert told in page


async def test_a_caller_waits_after_each_failure(
    echo_fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refuse(frame: InferFrame) -> bytes:
        raise NotFoundError("not this one")

    for replica in echo_fleet.replicas.values():
        replica.answer = refuse
    assert await bench(tmp_path, echo_fleet, concurrency="1") == 1
    (cell,) = json.loads(capsys.readouterr().out)["cells"]
    # One opens the connection. Then at 0 s, and after at least 25, 50 and 100 ms, of 200.
    assert 2 <= cell["errors"]["NOT_FOUND"] <= 5
    assert cell["num_answered"] == 0


async def test_the_first_refusal_ends_it_and_is_said_once(
    echo_fleet: Fleet, tmp_path: Path
) -> None:
    async def refuse(frame: InferFrame) -> bytes:
        raise InvalidRequestError("not this one")

    for replica in echo_fleet.replicas.values():
        replica.answer = refuse
    with pytest.raises(InvalidRequestError, match="inputs as given: .*not this one") as raised:
        await bench(tmp_path, echo_fleet)
    assert str(raised.value).count("not this one") == 1
    assert sum(replica.num_requests for replica in echo_fleet.replicas.values()) == 1


async def test_an_unknown_model_is_told_with_those_that_there_are(
    echo_fleet: Fleet, tmp_path: Path
) -> None:
    settings = CliSettings(home=tmp_path)
    known = fleet_pb.FleetSnapshot(models=[fleet_pb.ServedModel(name="echo", version=1)])
    with fleet_saying(known) as controller, fleet_lock(settings.run_dir):
        running = RunningFleet(
            supervisor_pid=1,
            controller=controller,
            grpc_address=echo_fleet.url,
            metrics_address="m",
            store_url="s",
        )
        write_fleet(settings.run_dir, running)
        with pytest.raises(NotFoundError, match="there are: echo"):
            await bench(tmp_path, echo_fleet, name="nope", settings=settings, address="")


async def test_what_was_measured_before_ctrl_c_is_shown(
    echo_fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt_the_second(line: StepLine, detail: str) -> None:
        if detail.startswith("2 of 2"):
            running.cancel()

    monkeypatch.setattr(StepLine, "update", interrupt_the_second)
    settings = CliSettings(home=tmp_path)
    with Steps(is_quiet=True).step("Load") as line:
        loads = run_loads(settings, "echo", options(tmp_path, address=echo_fleet.url), line)
        running = asyncio.create_task(loads)
        document = await running
    assert [cell["callers"] for cell in document["cells"]] == [1]
    words = [part for part in bench_text(document) if isinstance(part, str)]
    assert words[0] == "1 of 2 loads were measured; Ctrl-C came"


async def test_a_model_that_is_withdrawn_under_load_keeps_its_figures(
    echo_fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def last_answer(frame: InferFrame) -> bytes:
        del echo_fleet.controller.snapshot.models[:]
        del echo_fleet.controller.snapshot.replicas[:]
        await echo_fleet.until_ready()
        return await echo_fleet.replicas["r1"].echo(frame)

    for replica in echo_fleet.replicas.values():
        replica.answer = last_answer
    assert await bench(tmp_path, echo_fleet, concurrency="1") == 1
    (cell,) = json.loads(capsys.readouterr().out)["cells"]
    assert set(cell["errors"]) == {"NOT_FOUND"}
    before, after = cell["served_by"]
    assert before == "openvino"
    assert after.startswith("unknown: gateway ")
    assert "NOT_FOUND" in after


async def test_a_load_that_nothing_answers_has_no_latencies(
    echo_fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refuse(frame: InferFrame) -> bytes:
        raise NotFoundError("none")

    for replica in echo_fleet.replicas.values():
        replica.answer = refuse
    assert await bench(tmp_path, echo_fleet) == 1
    for cell in json.loads(capsys.readouterr().out)["cells"]:
        assert set(cell["errors"]) == {"NOT_FOUND"}
        assert (cell["num_answered"], cell["requests_per_s"], cell["latency_ms"]) == (0, 0.0, {})
    assert "<svg" in (tmp_path / "page.html").read_text()


async def test_it_has_tls_and_a_token(
    echo_fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority, token = Authority(tmp_path), new_token()
    files, access_file = authority.sign("gateway"), tmp_path / "access.yaml"
    grants = [{"verbs": ["infer"], "models": ["echo"]}]
    entry = {"name": "ada", "sha256": token_hash(token), "grants": grants}
    access_file.write_text(yaml.safe_dump({"tokens": [entry]}))
    await echo_fleet.start_gateway(
        tls_cert_file=files.cert, tls_key_file=files.key, access_file=access_file
    )
    await echo_fleet.until_ready("r1", "r2")
    settings = CliSettings(home=tmp_path, tls_ca_file=authority.cert)
    with pytest.raises(UnauthenticatedError):
        await bench(tmp_path, echo_fleet, settings=settings)
    known = settings.model_copy(update={"token": token})
    assert await bench(tmp_path, echo_fleet, settings=known) == 0
    assert token not in capsys.readouterr().out + (tmp_path / "page.html").read_text()


async def test_what_cannot_be_measured_is_refused_before_the_load(
    echo_fleet: Fleet, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequestError, match="--concurrency 1,x: expected numbers from 1 on"):
        await bench(tmp_path, echo_fleet, concurrency="1,x")
    with pytest.raises(InvalidRequestError, match="--sizes is for drawn inputs"):
        await bench(tmp_path, echo_fleet, sizes=["batch=1"])
    with pytest.raises(InvalidRequestError, match=r"none/p\.html: cannot be written: No such file"):
        await bench(tmp_path, echo_fleet, html=tmp_path / "none" / "p.html")
    with pytest.raises(InvalidRequestError, match="cannot be written: Is a directory"):
        await bench(tmp_path, echo_fleet, html=tmp_path)
    with pytest.raises(NotFoundError, match="unknown model: 'other'"):
        await bench(tmp_path, echo_fleet, name="other")
    with pytest.raises(NotFoundError, match="name its store by --store, or give each input by"):
        await bench(tmp_path, echo_fleet, inputs=[])
    assert not (tmp_path / "page.html").exists()
    assert all(replica.num_requests == 0 for replica in echo_fleet.replicas.values())
