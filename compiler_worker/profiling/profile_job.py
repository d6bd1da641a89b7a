"""Profiles a model version in a process of its own, and gives its report."""

import re
from contextlib import suppress
from pathlib import Path

from compiler_worker.children.child_jobs import PROFILE
from compiler_worker.children.process import OnEvent, run_child
from compiler_worker.devices import main_device
from compiler_worker.model_checks.recipe_check import check_recipe
from compiler_worker.plans.build_keys import buckets_of
from compiler_worker.profiling.profile_report import ProfileReport
from compiler_worker.profiling.profile_request import ProfileOptions, ProfileRequest
from compiler_worker.work_folder import work_folder
from compiler_worker.worker_context import MASTER_FILE, WorkerContext
from services.contracts.errors import (
    BuildError,
    BuildUnavailableError,
    InvalidModelError,
    InvalidRequestError,
    NotFoundError,
)
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import Bucket
from services.contracts.text.nearest import nearest
from services.engines.shapes import volume


def profile_model(
    version: ModelVersion, options: ProfileOptions, worker: WorkerContext, on_event: OnEvent
) -> ProfileReport:
    """Profile one bucket on this machine's main device.

    Args:
        version: what to profile.
        options: bucket, precision and the folder for the files.
        worker: its settings limit the child's time and memory.
        on_event: called with each event of the child.

    Raises:
        NotFoundError: the model has no such bucket.
        InvalidRequestError: the folder for the files cannot be made.
        InvalidModelError: the source is none, or the importer refuses the master.
        BuildUnavailableError: this machine has no Inductor engine in that precision.
        BuildError: Inductor failed, or the process crashed or passed its limits.
    """
    check_recipe(version.master, version.recipe)
    buckets = buckets_of(version.master, version.recipe, version.dim_limits)
    bucket = _chosen(version, buckets, options.bucket)
    settings = worker.settings
    cache_dir = worker.settings.cache_dir.absolute()
    out = (options.out or Path(_folder_name(version, bucket))).absolute()
    # Before the long run: a folder that cannot be made would be met at its end.
    is_ours = _make_folder(out)
    with work_folder(cache_dir / "work", "profile-") as folder:
        request = ProfileRequest(
            model=version.name,
            version=version.version,
            master=version.master,
            master_path=worker.registry.materialise_master(version.master) / MASTER_FILE,
            recipe=version.recipe,
            precision=options.precision,
            buckets=buckets,
            bucket=bucket,
            device=main_device(worker.devices),
            source=options.source,
            out=out,
            workspace=folder,
            cache_dir=cache_dir,
            num_threads=settings.num_threads,
        )
        outcome = run_child(PROFILE, request, folder, worker.build_limits, on_event)
    if outcome.result is None and is_ours:
        with suppress(OSError):  # it holds a trace: that stays
            out.rmdir()
    try:
        return outcome.require(BuildError, BuildUnavailableError, InvalidModelError)
    except BuildUnavailableError:
        raise
    except BuildError as error:
        # Shown at once, and kept in no record.
        raise BuildError("\n".join([str(error), *error.log_tail])) from None


def _chosen(version: ModelVersion, buckets: tuple[Bucket, ...], label: str) -> Bucket:
    if not label:
        return max(buckets, key=volume)
    for bucket in buckets:
        if bucket.label == label:
            return bucket
    known = [bucket.label for bucket in buckets]
    raise NotFoundError(
        f"{version.name} version {version.version} has no bucket '{label}'{nearest(label, known)}; "
        f"it has {', '.join(known)}"
    )


def _folder_name(version: ModelVersion, bucket: Bucket) -> str:
    name = f"profile-{version.name}-v{version.version}-{bucket.label}"
    return re.sub(r"[^\w.-]", "_", name)


def _make_folder(path: Path) -> bool:
    """Whether the folder was not there before; raises InvalidRequestError."""
    is_new = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequestError(f"--out {path}: {error.strerror}; name another folder") from error
    return is_new
