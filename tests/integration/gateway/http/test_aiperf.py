"""NVIDIA's AIPerf at the gateway's HTTP port."""

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from services.contracts.kserve.tensor_spec import TensorSpec
from tests.integration.gateway.http.conftest import with_http
from tests.integration.gateway.http.embedder import add_embedder
from tests.minilm_folder import MODEL_DIR

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

_AIPERF = shutil.which("aiperf")
_NUM_REQUESTS = 40


def _with_tokenizer(home: Path) -> Path:
    """A cache of the hub: AIPerf counts tokens, and its processes refuse a folder."""
    kept = home / "hub" / "models--a--tokenizer"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("0" * 40)
    shutil.copytree(MODEL_DIR, kept / "snapshots" / ("0" * 40))
    return home


@pytest.mark.slow
@pytest.mark.skipif(not _AIPERF, reason="aiperf not found on PATH: pip install aiperf")
async def test_it_measures_embeddings(fleet_of: "Fleet", tmp_path: Path) -> None:
    text = TensorSpec(name="text", datatype="BYTES", shape=("batch", 1))
    await add_embedder(fleet_of, "texts", text)
    fleet = await with_http(fleet_of, "texts")
    process = await asyncio.create_subprocess_exec(
        str(_AIPERF),
        "profile",
        "--model",
        "texts",
        "--endpoint-type",
        "embeddings",
        "--url",
        f"http://127.0.0.1:{fleet.gateway.http_port}",
        "--tokenizer",
        "a/tokenizer",
        "--isl",
        "20",
        "--concurrency",
        "4",
        "--request-count",
        str(_NUM_REQUESTS),
        "--ui",
        "none",
        "--output-artifact-dir",
        str(tmp_path / "found"),
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(_with_tokenizer(tmp_path / "hub"))},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    found = json.loads((tmp_path / "found/profile_export_aiperf.json").read_bytes())
    assert found["request_count"]["avg"] == _NUM_REQUESTS
    assert not found.get("error_request_count")
