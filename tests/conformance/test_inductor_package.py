"""The promise of the CPU package: it loads where nothing can be compiled."""

import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from services.engines.inductor.inductor_engine import InductorEngine
from services.engines.inductor.inductor_package import PACKAGE
from tests.conformance.cases import ENGINE_CASES, EngineCase
from tests.conformance.tiny_model import draw_inputs, reference
from tests.conformance.workshop import Built, Published

_SERVE = """
import os, shutil, signal, sys
from pathlib import Path
import numpy as np
from services.engines.base import LoadSpec
from services.engines.device.device_probe import probe_device
from services.engines.inductor.inductor_engine import InductorEngine
from services.contracts.model.manifest import EngineManifest, MasterRecord

folder = Path(sys.argv[1])
assert shutil.which("g++") is None and shutil.which("gcc") is None
spec = LoadSpec(
    manifest=EngineManifest.from_json((folder / "manifest.json").read_bytes()),
    master=MasterRecord.from_json((folder / "master.json").read_bytes()),
    directory=folder,
    master_path=folder / "absent.onnx",
    device=probe_device(),
    num_threads=1,
)
engine = InductorEngine.load(spec)
outputs = engine.run(dict(np.load(folder / "inputs.npz")))
np.savez(folder / "outputs.npz", **outputs)
assert "torch._inductor" not in sys.modules
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def package(built_of: Callable[[EngineCase], Built]) -> Published:
    built = built_of(next(case for case in ENGINE_CASES if case.name == "inductor"))
    assert isinstance(built, Published)
    return built


def test_kernels_are_the_calls_in_its_code(package: Published) -> None:
    """Those that were generated, and those of libraries, whatever they are given."""
    with zipfile.ZipFile(package.spec.directory / PACKAGE) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".wrapper.cpp"))
        code = archive.read(name).decode()
    body = code[code.index("AOTInductorModel::run_impl(") :]
    num_generated, num_library = body.count("\n    cpp_fused_"), body.count("(aoti_torch_cpu_")
    assert num_generated
    engine = InductorEngine.load(package.spec)
    assert engine.num_kernels({}) == num_generated + num_library
    engine.close()


def test_a_fresh_process_loads_it_with_empty_caches_and_no_compiler(
    package: Published, model: onnx.ModelProto, tmp_path: Path
) -> None:
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / PACKAGE).write_bytes(package.output.files[PACKAGE].read_bytes())
    (folder / "manifest.json").write_bytes(package.spec.manifest.canonical_json())
    (folder / "master.json").write_bytes(package.spec.master.canonical_json())
    inputs = draw_inputs(3, 11)
    np.savez(folder / "inputs.npz", **inputs)  # type: ignore[arg-type]
    environment = {
        "PATH": "",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "caches"),
        "TMPDIR": str(tmp_path),
        "HOME": str(tmp_path / "home"),
    }
    done = subprocess.run(
        [sys.executable, "-c", _SERVE, str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    # It ends by SIGKILL, as a replica may.
    assert done.returncode == -signal.SIGKILL, done.stderr
    outputs = np.load(folder / "outputs.npz")
    for name, wanted in reference(model, inputs).items():
        np.testing.assert_allclose(outputs[name], wanted, rtol=1e-4, atol=2e-5)
    # Nothing was compiled, so nothing was cached; what the loader unpacked is gone.
    assert {path.name for path in tmp_path.iterdir()} <= {"engine", "home"}


def test_the_package_holds_its_weights(package: Published) -> None:
    assert not package.output.needs_master
    assert list(package.output.files) == [PACKAGE]
