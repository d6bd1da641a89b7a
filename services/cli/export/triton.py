"""`smelt export triton`: a Triton model repository of the models in the store."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from compiler_worker.master.hub.folder import TOKENIZER_FILE
from services.cli.export.triton_config import (
    LABELS_FILE,
    ONNX,
    PLAN,
    config_text,
    lost_words,
    plan_file,
    triton_config,
)
from services.cli.export.triton_plans import library_of, plans_of
from services.cli.output.show import show
from services.cli.registry import open_registry
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError, NotFoundError
from services.contracts.model.manifest import ModelVersion, PublishedEngine
from services.contracts.registry.registry import Registry
from services.contracts.text.text_table import Table
from services.pb import open_inference_v2_pb2 as pb

if TYPE_CHECKING:  # it needs a library of cryptography
    from services.contracts.security.signing import TrustRoot


class _Entry(NamedTuple):
    """A model of the repository; plans by compute capability, none for ONNX."""

    version: ModelVersion
    plans: dict[str, PublishedEngine]
    config: pb.ModelConfig
    remarks: list[str]


def run_export_triton(
    settings: CliSettings,
    folder: Path,
    names: Sequence[str],
    backend: str,
    generations: Sequence[str],
) -> None:
    """Write a model repository into an empty folder.

    Args:
        settings: where the store is, and whose signatures count.
        folder: is made where it is not there.
        names: of models; none for all that are to be served.
        backend: a platform of Triton's; `auto`: plans where every generation has a proven one.
        generations: for plans; none for those that the model has engines for.

    Raises:
        InvalidRequestError: the folder holds something, or a plan is asked for and none is proven.
        NotFoundError: no such model, or none at all.
    """
    registry = open_registry(settings)
    unloaded = registry.unloaded_models()
    names = names or [name for name in registry.model_names() if name not in unloaded]
    if not names:
        raise NotFoundError(f"no model to export in the store at {settings.store_url}")
    # All that is refused is, before anything is written.
    trust = settings.trust
    entries = [_entry(registry, name, backend, generations, trust) for name in names]
    folder.mkdir(parents=True, exist_ok=True)
    if found := sorted(path.name for path in folder.iterdir()):
        raise InvalidRequestError(
            f"{folder}: {', '.join(found[:5])} found, an empty folder wanted: nothing was written"
        )
    for entry in entries:
        _write(registry, entry, folder)
    documents = [_document(entry) for entry in entries]
    document = {"folder": str(folder), "models": documents}
    show(document, _text(folder, documents))


def _entry(
    registry: Registry,
    name: str,
    backend: str,
    generations: Sequence[str],
    trust: "TrustRoot | None",
) -> _Entry:
    version = registry.model_version(name)
    plans, missing = plans_of(registry, version, generations, trust, with_rtx=backend == PLAN)
    if backend == ONNX:
        plans = {}
    elif missing or not plans:
        if backend == PLAN:
            why = "; ".join(missing) or "no GPU has an engine of it"
            raise InvalidRequestError(f"{name}: {why}: nothing was written; --backend {ONNX}?")
        plans = {}
    remarks = [] if plans or backend == ONNX else missing
    if registry.version_weights(name):
        remarks.append("older versions and weights: skipped: the newest version gets all requests")
    config = triton_config(version, plans)
    return _Entry(version, plans, config, [*remarks, *lost_words(version, config)])


def _write(registry: Registry, entry: _Entry, folder: Path) -> None:
    """Write a model's folder whole, or nothing of it."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".smelt-") as scratch:
        staging = Path(scratch) / entry.version.name
        target = staging / str(entry.version.version)
        target.mkdir(parents=True)
        (staging / "config.pbtxt").write_text(config_text(entry.config))
        if labels := entry.version.recipe.labels:
            # A line each, so that none takes the place of the next.
            lines = (f"{' '.join(label.splitlines())}\n" for label in labels)
            (staging / LABELS_FILE).write_text("".join(lines))
        if tokenizer := entry.version.tokenizer:
            shutil.copyfile(registry.materialise_tokenizer(tokenizer), staging / TOKENIZER_FILE)
        for name, path in _files(registry, entry):
            shutil.copyfile(path, target / name)
        staging.rename(folder / entry.version.name)


def _files(registry: Registry, entry: _Entry) -> Iterator[tuple[str, Path]]:
    if not entry.plans:
        master = registry.materialise_master(entry.version.master)
        yield from ((name, master / name) for name in entry.version.master.files)
    for capability, engine in entry.plans.items():
        (name,) = engine.manifest.files
        yield plan_file(capability), registry.materialise_engine(engine) / name


def _document(entry: _Entry) -> dict[str, Any]:
    plans = {
        capability: {"engine": engine.digest, "library": library_of(engine)}
        for capability, engine in entry.plans.items()
    }
    return {
        "name": entry.version.name,
        "version": entry.version.version,
        "platform": entry.config.platform,
        "plans": plans,
        "remarks": entry.remarks,
    }


def _text(folder: Path, documents: Sequence[dict[str, Any]]) -> Iterator[str | Table]:
    columns = ("name", "version", "platform")
    yield Table(f"Models in {folder}", columns, [[str(d[c]) for c in columns] for d in documents])
    for document in documents:
        for capability, plan in document["plans"].items():
            words = f"engine {plan['engine'][:12]}, which loads in {plan['library']} alone"
            yield f"{document['name']} on {capability}: {words}"
        yield from (f"{document['name']}: {remark}" for remark in document["remarks"])
