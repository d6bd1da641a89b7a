"""Runs a model that is added, in a process of its own that has a deadline.

A graph may have a Loop that does not end, and ONNX Runtime may crash.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from compiler_worker.children.child_jobs import ChildJob, Request, Result
from compiler_worker.children.process import ChildLimits, run_child
from compiler_worker.settings import CompilerSettings
from services.contracts.errors import InvalidModelError, SmeltError


def run_check(
    job: ChildJob[Request, Result],
    request: Request,
    settings: CompilerSettings,
    what: str,
    fix: str,
    *own: type[SmeltError],
) -> Result:
    """Do a job that runs a model; in this process with a deadline of 0.

    Args:
        job: one of `child_jobs`.
        request: of the job.
        settings: deadline and memory.
        what: cannot be done, where there is no result.
        fix: what takes less.
        own: errors of the job that are raised again as they are.

    Raises:
        InvalidModelError: there is no result within the deadline, or the process crashed.
    """
    if not settings.check_time_limit_s:
        return job.function(request, None)
    limits = ChildLimits(
        time_s=settings.check_time_limit_s,
        memory_bytes=settings.memory_limit_bytes,
        time_setting="SMELT_CHECK_TIME_LIMIT_S",
    )
    with TemporaryDirectory(prefix="smelt-check-") as folder:
        outcome = run_child(job, request, Path(folder), limits, lambda _: None)
    if outcome.error not in [kind.__name__ for kind in own]:
        outcome.failure = f"{what}: {outcome.failure}; {fix}"
    return outcome.require(InvalidModelError, *own)
