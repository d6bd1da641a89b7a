"""Builds and proves an inductor fp16 engine on this GPU, from a master in a store.

    python -m tests.benchmarks.gpu.engine_build STORE CACHE MODEL

Publishes a version `MODEL-gpu` of the same master with a recipe of three buckets (batch
1, 8, 32 at 128 tokens), runs the compiler's own pipeline, and prints its report.
"""

import json
import sys
from pathlib import Path

from compiler_worker.pipeline import build_model
from compiler_worker.plan import Wanted
from compiler_worker.report import report_document
from compiler_worker.settings import CompilerSettings
from compiler_worker.workshop import Workshop
from services.contracts.kinds import EngineKind, Precision
from services.contracts.object_store import open_store
from services.contracts.recipe import Bucket, DimRange
from services.contracts.registry import Registry

NUM_TOKENS = 128
BATCHES = (1, 8, 32)


def main(store: str, cache: str, model: str) -> int:
    """Build; the exit code is 0 when the engine is proven."""
    registry = Registry(open_store(store), Path(cache))
    source = registry.model_version(model)
    recipe = source.recipe.model_copy(
        update={
            "kinds": (EngineKind.INDUCTOR,),
            "precisions": (Precision.FP16,),
            "buckets": tuple(_bucket(batch) for batch in BATCHES),
        }
    )
    version = registry.add_model_version(
        name=f"{model}-gpu",
        master=source.master,
        recipe=recipe,
        source=source.source,
        source_fingerprint=source.source_fingerprint,
        samples=registry.materialise_samples(source.samples) if source.samples else None,
    )
    settings = CompilerSettings(store_url=store, cache_dir=Path(cache))
    workshop = Workshop(
        registry=registry,
        settings=settings,
        on_progress=lambda key, event: print(key.generation, event.stage or event.line, flush=True),
    )
    report = build_model(version, Wanted(), workshop)
    print(json.dumps(report_document(report), indent=1))
    outcomes = [record.outcome.value for record in report.records]
    return 0 if outcomes == ["proven"] or report.up_to_date else 1


def _bucket(batch: int) -> Bucket:
    return Bucket(
        dims={
            "batch": DimRange(min=1, opt=batch, max=batch),
            "sequence": DimRange(min=1, opt=NUM_TOKENS, max=NUM_TOKENS),
        }
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
