"""The jobs of child processes: what each takes and gives, and where its code is.

Parent and child share this table and nothing else: the code of a job is imported in its child
alone, as the libraries behind it may crash, hang and leak.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, TypeVar

from compiler_worker.builders.base import BuildResult
from compiler_worker.children.requests import (
    BuildRequest,
    CheckRequest,
    ImportRequest,
    ImportVerdict,
    ProofRequest,
    ProofResult,
    ReplayRequest,
    ReplayResult,
    ServedShapes,
    Stage,
    TrialRequest,
    TrialResult,
    VerdictRequest,
)
from compiler_worker.profiling.profile_report import ProfileReport
from compiler_worker.profiling.profile_request import ProfileRequest
from services.contracts.model.document import Document
from services.contracts.selection.fallback_verdict import FallbackVerdict

Request = TypeVar("Request", bound=Document)
Result = TypeVar("Result", bound=Document)


@dataclass(frozen=True)
class ChildJob(Generic[Request, Result]):
    """One kind of job.

    Attributes:
        command: of `python -m compiler_worker`.
        code: `module:function`; it takes the request and the child's events.
        first_stage: the stage in which a child that ends at once has failed.
    """

    command: str
    code: str
    request: type[Request]
    result: type[Result]
    first_stage: Stage

    @property
    def function(self) -> Callable[[Request, Any], Result]:
        """Import the job's code."""
        module, _, name = self.code.partition(":")
        return getattr(import_module(module), name)  # type: ignore[no-any-return]


IMPORT = ChildJob(
    "import-one",
    "compiler_worker.plans.import_child:import_one",
    ImportRequest,
    ImportVerdict,
    Stage.OPEN,
)
BUILD = ChildJob(
    "build-one",
    "compiler_worker.building.build_child:build_one",
    BuildRequest,
    BuildResult,
    Stage.BUILD,
)
PROVE = ChildJob(
    "prove-one",
    "compiler_worker.proof.proof_child:prove_one",
    ProofRequest,
    ProofResult,
    Stage.PROVE,
)
REPLAY = ChildJob(
    "replay-one",
    "compiler_worker.proof.replay_child:replay_one",
    ReplayRequest,
    ReplayResult,
    Stage.PROVE,
)
PROFILE = ChildJob(
    "profile-one",
    "compiler_worker.profiling.profile_child:profile_one",
    ProfileRequest,
    ProfileReport,
    Stage.PROFILE,
)
VERDICT = ChildJob(
    "verdict-one",
    "compiler_worker.model_checks.verdict_child:verdict_one",
    VerdictRequest,
    FallbackVerdict,
    Stage.PROVE,
)
CHECK = ChildJob(
    "check-one",
    "compiler_worker.model_checks.model_run:check_one",
    CheckRequest,
    ServedShapes,
    Stage.OPEN,
)
TRIAL = ChildJob(
    "trial-one",
    "compiler_worker.master.dimensions.ties:try_one",
    TrialRequest,
    TrialResult,
    Stage.OPEN,
)
CHILD_JOBS: dict[str, ChildJob[Any, Any]] = {
    job.command: job for job in (IMPORT, BUILD, PROVE, REPLAY, PROFILE, TRIAL, CHECK, VERDICT)
}
