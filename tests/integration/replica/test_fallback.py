"""The real fallback: exported by the compiler, compiled here, and left for an engine."""

import asyncio
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from compiler_worker.arguments import parse_arguments
from services.contracts.errors import EngineError, InvalidRequestError
from services.contracts.model.recipe import Recipe
from services.engines.fallback.fallback_engine import FallbackEngine, FallbackSpec
from services.engines.fallback.fallback_program import kept_program
from services.pb import fleet_v1_pb2 as fleet
from services.replica.engine.checker import EngineChecker
from services.replica.engine.fallback import CompiledFallback
from services.replica.engine.manager import EngineManager

from .conftest import Serving, connected, until
from .controller import TestController
from .published import (
    RECIPE,
    Shelf,
    assert_answers,
    ids_of,
    request_of,
    table,
)


@pytest.mark.usefixtures("forked_children")
async def test_the_real_fallback_serves_and_gives_way_to_an_engine(
    shelf: Shelf, controller: TestController, serving: Serving
) -> None:
    model = shelf.publish_model()
    server = await serving()
    report = await until(controller, fleet.REPLICA_STATE_READY)
    assert (report.engine_kind, report.engine_digest) == ("fallback", "")
    assert (report.fallback_reason, report.detail) == ("no_engine", "no_engine")
    async with connected(server.addresses[0], server.token) as connection:
        for ids in (ids_of(1, 1), ids_of(3, 7), ids_of(8, 16)):
            assert_answers(await connection.infer(request_of(ids)), ids)
        engine = shelf.publish_engine()
        changed = fleet.EnginesChanged(master_digest=model.master.digest)
        await controller.send(fleet.ReplicaCommand(engines_changed=changed))
        async with asyncio.timeout(60):
            report = await controller.report_where(lambda r: r.engine_digest == engine.digest)
        assert (report.fallback_reason, report.detail) == ("", "")
        assert_answers(await connection.infer(request_of(ids)), ids)


@pytest.mark.usefixtures("forked_children")
def test_without_a_recipe_the_real_fallback_is_warm_at_the_sizes_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf(tmp_path, RECIPE.model_copy(update={"buckets": ()}))
    model = shelf.publish_model()
    monkeypatch.setenv("PATH", "")  # it is eager then, which takes less time here
    specs: list[FallbackSpec] = []
    plain_load = FallbackEngine.load

    def load(spec: FallbackSpec) -> FallbackEngine:
        specs.append(spec)
        return plain_load(spec)

    monkeypatch.setattr(FallbackEngine, "load", load)
    cache_dir = tmp_path / "cache"
    fallback = CompiledFallback(shelf.store_url, cache_dir, shelf.device, num_threads=1)
    checker = EngineChecker(tmp_path / "checked")
    loaded = EngineManager(shelf.registry, model, shelf.device, fallback, checker).load()
    assert loaded.buckets == specs[0].buckets == model.buckets
    # The proofs of this machine, which know engines alone, take the same one.
    kept = kept_program(cache_dir, model.master, shelf.manifest().buckets, Path.unlink)
    assert specs[0].program_path == kept
    for rows, length in ((1, 1), (3, 100), (8, 128)):
        ids = ids_of(rows, length)
        outputs = loaded.engine.run({"ids": ids, "mask": np.ones_like(ids)})
        np.testing.assert_array_equal(outputs["tokens"], table()[ids])
    with pytest.raises(InvalidRequestError, match=r"built for batch 1\.\.8, sequence 1\.\.128"):
        loaded.engine.run(dict.fromkeys(("ids", "mask"), ids_of(9, 1)))
    loaded.engine.close()


def test_an_export_ends_with_the_replica_that_asked_for_it(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kernel's word to a child: the compiler's own, which other tests show to be kept."""
    told = tmp_path / "told"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {told}\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(EngineError, match="ended with 1"):
        CompiledFallback(shelf.store_url, tmp_path / "cache", shelf.device)(shelf.publish_model())
    words = told.read_text().splitlines()[2:]
    assert parse_arguments(words).parent_pid == os.getpid()


def test_an_export_that_fails_or_hangs_is_an_engine_error(shelf: Shelf, tmp_path: Path) -> None:
    model = shelf.publish_model()
    store = str(tmp_path / "store")
    absent = model.model_copy(update={"version": 9})
    with pytest.raises(EngineError, match=r"model 'toy' ended with 1: .*no version 9"):
        CompiledFallback(store, tmp_path / "cache", shelf.device)(absent)
    unnamed = absent.model_copy(update={"recipe": Recipe()})
    with pytest.raises(EngineError, match=r"\(for batch 1\.\.8, .* its recipe names no buckets\)"):
        CompiledFallback(store, tmp_path / "cache", shelf.device)(unnamed)
    with pytest.raises(EngineError, match="did not end within 0 s"):
        CompiledFallback(store, tmp_path / "cache", shelf.device, timeout_s=0.001)(model)
    assert list((tmp_path / "cache" / "programs").iterdir()) == []
