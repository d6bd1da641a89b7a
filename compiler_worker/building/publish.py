"""From what a child built to what the store holds: files in place, manifest, proof, record."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from compiler_worker.builders.base import BuildResult
from services.contracts.builds.build_key import BuildKey
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.model.manifest import (
    BlobRef,
    EngineManifest,
    MasterRecord,
    Proof,
    ProofOutcome,
)
from services.contracts.store.artifact_store import check_file_names
from services.contracts.text.moments import timestamp


def write_engine_folder(files: Mapping[str, Path], target: Path) -> Path:
    """A folder with the files under their published names, as a replica will find them.

    Raises:
        StoreError: a name would leave the folder.
    """
    check_file_names(files)
    target.mkdir(parents=True)
    for name, source in files.items():
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        _link_or_copy(source, place)
    return target


def engine_manifest(
    key: BuildKey, master: MasterRecord, built: BuildResult, peak_memory_bytes: int
) -> EngineManifest:
    """The manifest of a built engine, with the digests of its files.

    Args:
        key: of the engine.
        master: its inputs and outputs are the engine's.
        built: the child's result; its files are read and hashed.
        peak_memory_bytes: of the child's process tree; the larger of it and the child's own counts.
    """
    return EngineManifest(
        key=key,
        files={name: BlobRef.of(path) for name, path in built.files.items()},
        inputs=master.inputs,
        outputs=master.outputs,
        needs_master=built.needs_master,
        build_duration_s=built.duration_s,
        peak_build_memory_bytes=max(built.peak_memory_bytes, peak_memory_bytes),
        findings=built.findings,
        created_at=timestamp(),
    )


def proof_not_run(key: BuildKey, here: DeviceFacts) -> Proof:
    """The proof of an engine that no device of this machine can run."""
    return Proof(
        outcome=ProofOutcome.NOT_RUN,
        reason=f"needs a {key.generation} device, this machine has {here.generation}; on such a "
        f"device run: python -m compiler_worker prove {key.digest()[:12]}",
        created_at=timestamp(),
    )


def _link_or_copy(source: Path, place: Path) -> None:
    try:
        # Engines take gigabytes: a second name costs nothing.
        os.link(source, place)
    except OSError:  # another file system
        shutil.copyfile(source, place)
