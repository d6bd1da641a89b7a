"""`smelt doctor`: each check on a host that has what it looks for, and on one that lacks it."""

import json
import os
import socket
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from obstore.store import LocalStore, MemoryStore
from typer.testing import CliRunner

from compiler_worker.builders.select import builder_for
from services.cli.doctor.device_checks import (
    check_devices,
    check_kinds,
    instructions_finding,
    kind_finding,
)
from services.cli.doctor.doctor import check_fleet, check_ray, checks, findings, run_doctor
from services.cli.doctor.finding import Finding, Level
from services.cli.doctor.host_checks import check_disk, check_packages, disk_finding, port_finding
from services.cli.doctor.install_commands import fix_of, install_command
from services.cli.doctor.store_checks import check_store, store_findings
from services.cli.fleet.fleet_file import RunningFleet, fleet_lock, write_fleet
from services.cli.main import app
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError, StoreError
from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.store.object_store import ObstoreArtifactStore, open_store
from services.engines.device.device_probe import cpu_flags, probe_device
from services.pb import fleet_v1_pb2 as fleet
from tests.unit.services.cli.fleet_stub import fleet_saying
from tests.unit.services.contracts.store.test_object_store import OverwritingStore
from tests.unit.services.engines.device.test_device_probe import needs_gcc, run_with_driver

PIP = f"{sys.executable} -m pip install"
CPU = probe_device(Platform.CPU).parsed_generation

GPU_HOST = """
from services.cli.doctor.device_checks import check_devices, check_kinds
for each in (*check_devices(), *check_kinds()):
    print(each.found, each.fix, sep="\\n")
"""


@pytest.fixture
def settings(tmp_path: Path) -> CliSettings:
    return CliSettings(home=tmp_path / "home")


@pytest.fixture
def held_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def of(kind: EngineKind, generation: Generation) -> Finding:
    builder = builder_for(kind)
    return kind_finding(kind, {p: builder.unavailable_reason(generation, p) for p in Precision})


def lacking(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version

    def without(name: str) -> str:
        if name == package:
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without)


def test_everything_is_looked_at_and_told_in_eighty_columns(
    settings: CliSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(settings.home))
    done = CliRunner().invoke(app, ["doctor", "--json"], catch_exceptions=False)
    document = json.loads(done.stdout)
    assert done.exit_code == (1 if document["num_problems"] else 0)
    found = [Finding(**each) for each in document["findings"]]
    names = {finding.check for finding in found}
    assert {"packages", "processor", "instructions", *EngineKind, "Ray", "fleet"} <= names
    assert {"port 8001", "disk", "store"} <= names
    lines = [line for finding in found for line in finding.lines() if "fix: " not in line]
    # A path is never broken.
    assert max(len(line) for line in lines if str(settings.home) not in line) <= 80


def test_the_exit_code_tells_of_problems_alone(
    settings: CliSettings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = checks(settings)
    monkeypatch.setenv("SMELT_HOME", str(settings.home))
    folder = settings.home / "store"
    folder.parent.mkdir()
    folder.write_text("a file where the store should be")
    broken = settings.model_copy(update={"store_url": "s4://nowhere"})
    assert list(before) == list(checks(broken))
    assert run_doctor(broken) == 1
    assert "problem  store" in capsys.readouterr().out


def test_a_check_that_fails_is_a_problem_and_the_others_are_made() -> None:
    def without_library() -> Iterator[Finding]:
        raise ModuleNotFoundError("No module named 'openvino'", name="openvino.runtime")

    def refused() -> Iterator[Finding]:
        raise InvalidRequestError("processor is too old")

    def fine() -> Iterator[Finding]:
        yield Finding(check="c", found="all")

    found = list(findings({"a": without_library, "b": refused, "c": fine}))
    assert [each.level for each in found] == [Level.PROBLEM, Level.PROBLEM, Level.OK]
    assert found[0].fix == f"{PIP} 'smelt[replica]'"
    assert found[1].found == "processor is too old"


def test_a_command_names_the_extra_that_brings_a_package() -> None:
    assert install_command("nncf") == f"{PIP} 'smelt[compiler]'"
    assert install_command("tensorrt") == f"{PIP} 'smelt[cuda]'"
    assert install_command("tensorrt_rtx") == f"{PIP} 'smelt[rtx]'"
    assert install_command("no-such") == f"{PIP} no-such"
    assert fix_of("kind openvino is for CPUs, not for cuda-sm90") == ""


def test_devices_of_this_host_are_told(tmp_path: Path) -> None:
    found = {each.check: each for each in check_devices(tmp_path)}
    assert str(CPU) in found["processor"].found
    assert "GiB" in found["processor"].found


@needs_gcc
def test_gpus_are_told_with_their_driver_and_what_kinds_lack_for_them(tmp_path: Path) -> None:
    told = run_with_driver(tmp_path, GPU_HOST).splitlines()
    assert "cuda-sm103: NVIDIA B300, 288 GiB, driver 580.95.05" in told
    assert "kind openvino is for CPUs, not for cuda-sm103" in told
    if metadata.version("torch").endswith("+cpu"):
        assert any("computes on processors alone" in line for line in told)
    assert f"{PIP} 'smelt[cuda]'" in told
    assert f"{PIP} --force-reinstall onnxruntime-gpu" in told


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="a driver is here")
def test_a_gpu_without_a_driver_is_a_warning(tmp_path: Path) -> None:
    for name, vendor, kind in (("a", "0x8086", "0x030000"), ("b", "0x10de", "0x030200")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    found = {each.check: each for each in check_devices(tmp_path)}
    assert found["GPU"].level is Level.WARNING
    assert "driver" in found["GPU"].fix


def test_instructions_have_the_names_that_people_know() -> None:
    v3 = frozenset({"avx2", "fma", "bmi2", "f16c"})
    found = instructions_finding(v3)
    assert (found.level, found.found) == (Level.OK, "AVX2; not AVX-512, VNNI, AVX512_BF16, AMX")
    old = instructions_finding(frozenset({"sse4_2"}))
    assert old.level is Level.WARNING
    assert "AVX2" in old.wanted
    assert instructions_finding(frozenset()).level is Level.OK
    assert instructions_finding(cpu_flags()).found


def test_kinds_tell_in_which_precisions_they_are_built_here() -> None:
    found = {each.check: each for each in check_kinds()}
    assert set(found) == set(EngineKind)
    assert "fp32" in found["onnxruntime"].found
    assert of(EngineKind.TENSORRT, CPU).level is Level.OK
    assert "is for GPUs" in of(EngineKind.TENSORRT, CPU).found


@pytest.mark.parametrize(
    ("package", "kind", "left", "fix"),
    [
        ("openvino", EngineKind.OPENVINO, "", "smelt[replica]"),
        ("torch", EngineKind.INDUCTOR, "", "smelt[replica]"),
        ("nncf", EngineKind.ONNXRUNTIME, "fp32, int8_weight_only; ", "smelt[compiler]"),
    ],
)
def test_a_package_that_is_missing_comes_with_its_command(
    monkeypatch: pytest.MonkeyPatch, package: str, kind: EngineKind, left: str, fix: str
) -> None:
    lacking(package, monkeypatch)
    found = of(kind, CPU)
    assert found.level is Level.WARNING
    assert found.found.startswith(f"{left}the Python package {package} is not installed")
    assert found.fix == f"{PIP} '{fix}'"


def test_a_compiler_that_is_missing_comes_with_its_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = of(EngineKind.INDUCTOR, CPU)
    assert found.level is Level.WARNING
    assert found.fix.endswith("apt-get install g++")


def test_a_package_of_another_version_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [each.level for each in check_packages()] == [Level.OK]
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "1.2" if name == "ray" else version(name))
    (found,) = check_packages()
    assert found.level is Level.WARNING
    assert "ray 1.2, not ==" in found.found
    # The name alone would be satisfied by what is there.
    assert found.fix == f"{PIP} 'ray[serve]==2.60.0'"


def test_a_held_port_names_its_holder(held_port: int) -> None:
    found = port_finding(held_port, "--grpc-port", Level.PROBLEM, None)
    assert found.level is Level.PROBLEM
    assert f"(process {os.getpid()})" in found.found
    assert "--grpc-port 0" in found.fix
    mine = RunningFleet(
        supervisor_pid=1,
        controller="",
        grpc_address=f"127.0.0.1:{held_port}",
        metrics_address="",
        store_url="",
    )
    assert port_finding(held_port, "--grpc-port", Level.PROBLEM, mine).level is Level.OK


def test_room_is_compared_with_what_is_needed(tmp_path: Path) -> None:
    folders = [tmp_path / "not" / "there", tmp_path]
    assert disk_finding(folders, 1).level is Level.OK
    found = disk_finding(folders, 10**18)
    assert found.level in (Level.WARNING, Level.PROBLEM)
    assert str(folders[0]) in found.found
    assert "1000000000.0 GB" in found.wanted


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_a_problem(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert disk_finding([tmp_path / "home"], 1).level is Level.PROBLEM


def test_a_store_is_not_made_by_looking_for_it(settings: CliSettings) -> None:
    (found,) = check_store(settings)
    assert found.level is Level.OK
    assert "not there yet" in found.found
    assert not Path(settings.store_url).exists()
    url = settings.model_copy(update={"store_url": f"file://{settings.store_url}"})
    assert list(check_store(url)) == [found]
    assert settings.store_url in next(check_disk(url)).found


def test_a_store_that_answers_has_our_clock_and_keeps_nothing_new(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    assert [each.level for each in store_findings(store)] == [Level.OK, Level.OK]
    before = store.list("")
    assert [each.check for each in store_findings(store)] == ["store", "clock"]
    assert store.list("") == before


class LateStore(ObstoreArtifactStore):
    """Its clock is an hour ahead."""

    def create(self, key: str, data: bytes) -> None:
        super().create(key, data)
        path = Path(self.url) / key
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime + 3600))


class WriteOnceStore(ObstoreArtifactStore):
    """Nothing of it may be deleted."""

    def delete(self, key: str) -> None:
        raise StoreError(f"'{key}' is kept")


def test_a_store_that_deletes_nothing_has_a_clock_too() -> None:
    found = store_findings(WriteOnceStore(MemoryStore(), "s3://bucket"))
    assert [each.level for each in found] == [Level.OK, Level.OK]


class FullStore(ObstoreArtifactStore):
    """Takes nothing more."""

    def create(self, key: str, data: bytes) -> None:
        raise StoreError("no space left on device")


@pytest.mark.parametrize(("url", "fix"), [("s3://bucket", "AWS_*"), ("/srv/store", "free space")])
def test_what_cannot_be_written_comes_with_the_fix_of_its_kind(url: str, fix: str) -> None:
    (found,) = store_findings(FullStore(MemoryStore(), url))
    assert found.level is Level.PROBLEM
    assert fix in found.fix
    assert ("AWS" in found.fix) == ("AWS" in fix)


def test_another_clock_is_a_warning(tmp_path: Path) -> None:
    _, clock = store_findings(LateStore(LocalStore(tmp_path), str(tmp_path)))
    assert clock.level is Level.WARNING
    assert clock.found == "3600 s behind that of the store"


def test_a_store_that_overwrites_is_a_problem() -> None:
    (found,) = store_findings(OverwritingStore(MemoryStore(), "memory:"))
    assert found.level is Level.PROBLEM
    assert "overwrites on create" in found.found


def test_ray_is_told_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = check_ray()
    assert metadata.version("ray") in found.found
    lacking("ray", monkeypatch)
    (found,) = check_ray()
    assert (found.level, found.fix) == (Level.PROBLEM, f"{PIP} 'smelt[replica]'")


def test_a_fleet_is_whole_or_names_what_is_away(settings: CliSettings) -> None:
    assert [each.level for each in check_fleet(settings)] == [Level.OK]
    run_dir = settings.run_dir
    with fleet_saying(fleet.FleetSnapshot()) as controller, fleet_lock(run_dir):
        running = RunningFleet(
            supervisor_pid=os.getpid(),
            controller=controller,
            grpc_address="127.0.0.1:1",
            metrics_address="127.0.0.1:2",
            store_url=settings.store_url,
        )
        write_fleet(run_dir, running)
        assert [each.found[:4] for each in check_fleet(settings)] == ["runs"]
        write_fleet(run_dir, running.with_trouble("ray", "raylet ended", "now"))
        away, controller_found = check_fleet(settings)
        assert (away.level, away.fix) == (Level.PROBLEM, "smelt logs ray")
        assert controller_found.level is Level.OK
        write_fleet(run_dir, running.model_copy(update={"controller": "127.0.0.1:9"}))
        (silent,) = check_fleet(settings)
        assert (silent.level, silent.fix) == (Level.PROBLEM, "smelt logs controller")
