"""How many lines of product code each part has, and what it reuses.

    python -m tests.benchmarks.lines [--write FILE.md]

Lines of Python and HTML files, blank ones and comments included, of what git knows; a file counts
for one part. What a part needed elsewhere, a field of a recipe or a call of a handler, is in none.
"""

import argparse
import subprocess
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
# Part; what it is made of; what it reuses.
_PARTS: tuple[tuple[str, str, str], ...] = (
    (
        "kind `xla`",
        "compiler_worker/builders/xla_builder.py services/engines/xla_engine.py",
        "import to FX, precision, proof, timing, choice: all of other kinds",
    ),
    (
        "samples of traffic",
        (
            "services/replica/sampling services/contracts/registry/sample_windows.py "
            "services/contracts/traffic/sampled_rows.py "
            "services/contracts/traffic/sample_cipher.py "
            "services/contracts/model/sampling_recipe.py services/cli/sizes/samples.py "
            "services/cli/main_samples.py"
        ),
        "the store, .npz as masters have it, AES-GCM of `cryptography`",
    ),
    (
        "calibration with them",
        (
            "services/contracts/traffic/drift.py services/contracts/traffic/fitting_rows.py "
            "services/contracts/traffic/recalibration.py services/controller/build/traffic_watch.py"
        ),
        "calibration sets, samples given with a model, versions, the build loop",
    ),
    ("`smelt buckets`", "services/cli/sizes", "metrics of replicas, samples, curves of `plan`"),
    (
        "`smelt plan`",
        "services/cli/planning",
        "timings of proofs, the replica's own batch queue (which the simulation runs)",
    ),
    (
        "`smelt advise`",
        (
            "services/cli/advise compiler_worker/builders/expected_speed.py "
            "compiler_worker/timing/unbuilt.py"
        ),
        "the order of builds, refusals of build plans, proofs, joint runs, ONNX's shape inference",
    ),
    (
        "external models",
        (
            "services/contracts/external services/contracts/registry/externals.py "
            "services/controller/external services/controller/platform/ray/serve_apps.py "
            "services/controller/platform/kubernetes/servers.py "
            "services/gateway/upstream/external_connection.py services/gateway/http/relay.py "
            "services/gateway/api/external_descriptions.py services/cli/models/external.py"
        ),
        "pools, weights, access, admission, metrics, traces; aiohttp, grpc.aio, Ray Serve",
    ),
    (
        "`smelt report`",
        "services/cli/report services/cli/output/html_page.py",
        "proofs, roofline and advice of `advise`, pygal",
    ),
    (
        "text",
        (
            "services/replica/request/text_thread.py services/replica/request/tokeniser.py "
            "services/contracts/model/text_input.py services/contracts/model/text_recipe.py "
            "services/contracts/model/pooling_choice.py compiler_worker/master/appended_pooling.py "
            "services/cli/requests/texts.py services/cli/models/asked_text.py"
        ),
        "`tokenizers`, batching, blobs of the store",
    ),
    (
        "HTTP",
        "services/gateway/http",
        "uvicorn's loop, httptools; every handler of gRPC, its limits, access and errors",
    ),
    (
        "`hf://` and folders",
        "compiler_worker/master/hub services/cli/models/text_source.py",
        "huggingface_hub, transformers, torch's export",
    ),
    (
        "`triton://`, `export triton`",
        "compiler_worker/master/triton services/cli/export",
        "recipes, protobuf's text format, engines as they are",
    ),
    ("`oci://`, `export oci`", "services/cli/oci", "requests; verification of the store"),
    ("the page", "services/controller/page", "documents of `why` and `status`, metrics, uvicorn"),
)


def tables() -> str:
    """A table in Markdown."""
    taken: set[str] = set()
    rows = ["| part | lines | files | reuses |", "|---|---:|---:|---|"]
    for part, places, reused in _PARTS:
        files = [each for each in _files(*places.split()) if each not in taken]
        taken.update(files)
        rows.append(f"| {part} | {_lines(files):,} | {len(files)} | {reused} |")
    everything = [each for each in _files("services", "compiler_worker") if "/pb/" not in each]
    rows.append(f"| these parts | {_lines(sorted(taken)):,} | {len(taken)} | |")
    rows.append(f"| all product code | {_lines(everything):,} | {len(everything)} | |")
    return "\n".join(rows) + "\n"


def _files(*places: str) -> list[str]:
    command = ["git", "ls-files", "--", *places]
    listed = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    return [each for each in listed.stdout.split() if each.endswith((".py", ".html"))]


def _lines(files: list[str]) -> int:
    return sum(len((_ROOT / each).read_text().splitlines()) for each in files)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", type=Path)
    found = tables()
    print(found)
    if written := parser.parse_args().write:
        written.write_text(found)
