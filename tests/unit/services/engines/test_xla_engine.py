"""What is special about executables of XLA: files that do not load, and threads."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from services.contracts.errors import EngineError
from services.contracts.hardware.kinds import EngineKind
from services.engines.device.device_probe import probe_device
from services.engines.xla_engine import STABLEHLO, XlaEngine
from tests.conformance.cases import EngineCase
from tests.conformance.tiny_model import draw_inputs
from tests.conformance.workshop import Published, build, unbuildable_reason

CASE = EngineCase(name="xla", kind=EngineKind.XLA, max_abs=2e-5, is_bounded=True, reads_master=True)
REASON = unbuildable_reason(CASE)
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON or "it is here")
COUNT_THREADS = """
import sys
from pathlib import Path
from services.contracts.hardware.facts import Platform
from services.engines.xla_engine import start_jax
start_jax(Platform.CPU, int(sys.argv[1]))
start_jax(Platform.CPU, int(sys.argv[1]))
names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
print(names.count("tf_XLAEigen"))
"""


@pytest.fixture
def published(tmp_path: Path) -> Published:
    made = build(CASE, tmp_path)
    assert isinstance(made, Published)
    return made


def test_an_executable_that_does_not_load_is_compiled_from_its_stablehlo(
    published: Published, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = draw_inputs(3, 7)
    whole = XlaEngine.load(published.spec)
    wanted = whole.run(inputs)
    assert not caplog.records
    for path in published.spec.directory.glob("*.bin"):
        path.write_bytes(b"of another runtime")
    compiled = XlaEngine.load(published.spec)
    assert "XLA does not load bucket0.bin: compiling it" in caplog.text
    for name, array in compiled.run(inputs).items():
        np.testing.assert_allclose(array, wanted[name], rtol=1e-5, atol=1e-5)


def test_without_both_files_the_engine_does_not_load(published: Published) -> None:
    for path in published.spec.directory.glob("bucket*"):
        path.write_bytes(b"")
    assert list(published.spec.directory.glob(f"*{STABLEHLO}"))
    with pytest.raises(EngineError, match="XLA's executable failed to load"):
        XlaEngine.load(published.spec)


def test_a_host_without_jax_refuses_it_by_the_version(published: Published) -> None:
    device = probe_device()
    others = {name: v for name, v in device.toolchain.items() if not name.startswith("jax")}
    without = device.model_copy(update={"toolchain": others})
    with pytest.raises(EngineError, match=r"was built with jax .*, this device has none"):
        XlaEngine.load(replace(published.spec, device=without))


@pytest.mark.parametrize("num_threads", [1, 3])
def test_it_computes_with_the_threads_that_it_is_given(num_threads: int) -> None:
    found = subprocess.run(
        [sys.executable, "-c", COUNT_THREADS, str(num_threads)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert int(found.stdout) == num_threads
