"""The jobs of throw-away children: what each takes and gives, and where its code is.

Parent and child share this table and nothing else: the code of a job is imported in its child
alone, as the libraries behind it may crash, hang and leak.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, TypeVar

from compiler_worker.profiling.report import ProfileReport
from compiler_worker.profiling.request import ProfileRequest
from compiler_worker.requests import (
    BuildRequest,
    BuildResult,
    ImportRequest,
    ImportVerdict,
    JointRequest,
    JointResult,
    ProofRequest,
    ReplayRequest,
    ReplayResult,
    Stage,
    VerdictRequest,
)
from services.contracts.document import Document
from services.contracts.fallback_verdict import FallbackVerdict
from services.contracts.manifest import Proof

Request = TypeVar("Request", bound=Document)
Result = TypeVar("Result", bound=Document)


@dataclass(frozen=True, kw_only=True)
class ChildJob(Generic[Request, Result]):
    """One kind of job.

    Attributes:
        command: of `python -m compiler_worker`.
        code: `module:function`; it takes the request and the child's events.
        first_stage: where a child that dies at once is said to have died.
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
    command="import-one",
    code="compiler_worker.import_check:import_one",
    request=ImportRequest,
    result=ImportVerdict,
    first_stage=Stage.OPEN,
)
BUILD = ChildJob(
    command="build-one",
    code="compiler_worker.build_child:build_one",
    request=BuildRequest,
    result=BuildResult,
    first_stage=Stage.BUILD,
)
PROVE = ChildJob(
    command="prove-one",
    code="compiler_worker.prove_child:prove_one",
    request=ProofRequest,
    result=Proof,
    first_stage=Stage.PROVE,
)
TIME = ChildJob(
    command="time-one",
    code="compiler_worker.joint_child:time_one",
    request=JointRequest,
    result=JointResult,
    first_stage=Stage.BENCHMARK,
)
REPLAY = ChildJob(
    command="replay-one",
    code="compiler_worker.replay_child:replay_one",
    request=ReplayRequest,
    result=ReplayResult,
    first_stage=Stage.PROVE,
)
PROFILE = ChildJob(
    command="profile-one",
    code="compiler_worker.profiling.child:profile_one",
    request=ProfileRequest,
    result=ProfileReport,
    first_stage=Stage.PROFILE,
)
VERDICT = ChildJob(
    command="verdict-one",
    code="compiler_worker.verdict_child:verdict_one",
    request=VerdictRequest,
    result=FallbackVerdict,
    first_stage=Stage.PROVE,
)
CHILD_JOBS: dict[str, ChildJob[Any, Any]] = {
    job.command: job for job in (IMPORT, BUILD, PROVE, TIME, REPLAY, PROFILE, VERDICT)
}
