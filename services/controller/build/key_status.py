"""How one planned engine stands: proven, to be built, waiting after a failure, quarantined.

Pure: everything comes from documents of the store, times included.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from services.contracts.builds.build_plan import (
    BuildPlan,
    PlannedKey,
    RebuildRequest,
    is_of_other_code,
)
from services.contracts.builds.build_record import BuildRecord
from services.contracts.hardware.facts import Generation
from services.contracts.model.manifest import Proof, ProofOutcome, PublishedEngine
from services.contracts.process.backoff import wait_after

_LONGEST_WAIT_S = 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """When what failed is tried again.

    Attributes:
        max_attempts: failures in a row after which nothing is tried any more.
        first_delay_s: pause after the first failure; each further one doubles it.
        max_timings: how often engines whose times do not differ are timed again; by default
            for six days, as a machine may be busy for long.
        first_timing_s: pause before the first time; each further one doubles it, up to
            a day.
    """

    max_attempts: int = 3
    first_delay_s: float = 30.0
    max_timings: int = 15
    first_timing_s: float = 120.0

    def next_attempt_at(self, failed_at: datetime, num_failures: int) -> datetime:
        """When to try again after so many failures in a row."""
        wait_s = wait_after(num_failures, first_s=self.first_delay_s, most_s=_LONGEST_WAIT_S)
        return failed_at + timedelta(seconds=wait_s)

    def next_timing_at(self, timed_at: datetime, num_timings: int) -> datetime:
        """When to time again what was timed again so often already."""
        wait_s = wait_after(num_timings + 1, first_s=self.first_timing_s, most_s=_LONGEST_WAIT_S)
        return timed_at + timedelta(seconds=wait_s)


class KeyState(StrEnum):
    """Where a planned engine is on its way."""

    PROVEN = "proven"
    MISSING = "missing"
    UNPROVEN = "unproven"
    FAILED = "failed"
    PROOF_FAILED = "proof_failed"
    QUARANTINED = "quarantined"

    @property
    def words(self) -> str:
        """For a table."""
        return self.replace("_", " ")

    @property
    def is_open(self) -> bool:
        """Whether there is something to be done for it, now or after a pause."""
        return self in (KeyState.MISSING, KeyState.UNPROVEN, KeyState.FAILED)


@dataclass(frozen=True, kw_only=True)
class KeyStatus:
    """One planned engine.

    Attributes:
        engine: when it is published, proven or not.
        num_failures: in a row, not counting those that a rebuild request disregards; those for
            which memory was short are, though they never give the key up.
        next_attempt_at: not before that; None unless it failed and is tried again.
        reason: why it is not proven, in words; "" when it is.
    """

    planned: PlannedKey
    state: KeyState
    engine: PublishedEngine | None
    num_failures: int = 0
    next_attempt_at: datetime | None = None
    reason: str = ""


def key_status(
    planned: PlannedKey,
    generation: Generation,
    engine: PublishedEngine | None,
    records: Sequence[BuildRecord],
    requests: Sequence[RebuildRequest],
    policy: RetryPolicy,
    plan: BuildPlan | None = None,
    failed_at: datetime | None = None,
) -> KeyStatus:
    """The status of one planned key for nodes of a generation.

    Args:
        planned: the key.
        generation: of the nodes that shall run it.
        engine: what is published under the key.
        records: all attempts to build it, oldest first.
        requests: all rebuild requests for its model.
        policy: when what failed is tried again.
        plan: that it is a key of.
        failed_at: when the last failure was seen, by the clock that the next attempt is awaited
            by; None takes that of the record, by the clock of the machine that built.
    """
    digest = planned.digest
    if engine is not None and not is_to_be_proven_again(engine, requests, plan):
        # Not built again: equal keys give equal bytes, and so the same failed proof.
        if engine.proof.outcome is ProofOutcome.FAILED:
            return KeyStatus(
                planned=planned,
                state=KeyState.PROOF_FAILED,
                engine=engine,
                reason=engine.proof.reason,
            )
        if is_proven_on(engine, generation):
            return KeyStatus(planned=planned, state=KeyState.PROVEN, engine=engine)
    failures = _failures_that_count(digest, records, requests, plan)
    if failures:
        return _failed(planned, engine, failures, policy, failed_at)
    return KeyStatus(
        planned=planned,
        state=KeyState.UNPROVEN if engine else KeyState.MISSING,
        engine=engine,
        reason=_why_unproven(engine, generation) if engine else "not built yet",
    )


def is_given_up(
    digest: str,
    records: Sequence[BuildRecord],
    requests: Sequence[RebuildRequest],
    policy: RetryPolicy,
    plan: BuildPlan | None,
) -> bool:
    """Whether only a rebuild request has a key tried again: refused, or failed too often.

    Args:
        digest: of the key.
        records: attempts at the key, oldest first.
        requests: for its model and generation, oldest first; failures before one do not count.
        policy: has the number of attempts.
        plan: a verdict that is older than it and of other proof code ends the count; None: none
            does.
    """
    failures = _failures_that_count(digest, records, requests, plan)
    return _is_refused(failures) or _is_failed_too_often(failures, policy)


def _is_failed_too_often(failures: Sequence[BuildRecord], policy: RetryPolicy) -> bool:
    return sum(failure.is_counted for failure in failures) >= policy.max_attempts


def _is_refused(failures: Sequence[BuildRecord]) -> bool:
    """Whether an engine was built and its answers were wrong: built again it would be the same.

    One that could not be loaded or run was compared with nothing: memory may have been short.
    """
    proof = failures[-1].proof if failures else None
    return proof is not None and proof.outcome is ProofOutcome.FAILED and bool(proof.checks)


def is_to_be_proven_again(
    engine: PublishedEngine, requests: Sequence[RebuildRequest], plan: BuildPlan | None = None
) -> bool:
    """Whether an engine needs a new proof: other code made the newest one, or one was requested.

    Args:
        engine: with its newest proof.
        requests: for its model and generation; each names the proof that it wants a newer one of.
        plan: names the code that proofs have to be of; None takes proofs of any code.
    """
    newest = engine.proof.created_at
    return _is_outdated(engine.proof, plan) or any(
        request.reprove.get(engine.digest) == newest for request in requests
    )


def _is_outdated(proof: Proof, plan: BuildPlan | None) -> bool:
    """Whether a verdict is of other code than a plan's, and older than the plan.

    So once for each plan: nodes of two releases would replace each other's proofs without end.
    """
    if plan is None or proof.created_at >= plan.created_at:
        return False
    return is_of_other_code(proof, plan.proof_code)


def is_proven_on(engine: PublishedEngine, generation: Generation) -> bool:
    """Whether its newest proof passed on a device whose results hold for a generation."""
    proof = engine.proof
    if proof.outcome is not ProofOutcome.PASSED or proof.device is None:
        return False
    # A proof on a higher CPU class does not hold for a lower one; see `selection`.
    return proof.device.parsed_generation.runs_on(generation)


def _failures_that_count(
    digest: str,
    records: Sequence[BuildRecord],
    requests: Sequence[RebuildRequest],
    plan: BuildPlan | None,
) -> list[BuildRecord]:
    """The failures since the last success or outdated verdict, none that a request disregards."""
    # Requests hold how many records there were: those are only ever appended to, oldest first.
    disregarded = max((request.disregarded.get(digest, 0) for request in requests), default=0)
    failures: list[BuildRecord] = []
    for record in reversed(records[disregarded:]):
        # Newest first: what is older than a success is over.
        if record.outcome.is_good or (record.proof and _is_outdated(record.proof, plan)):
            break
        failures.append(record)
    return failures[::-1]


def _failed(
    planned: PlannedKey,
    engine: PublishedEngine | None,
    failures: Sequence[BuildRecord],
    policy: RetryPolicy,
    failed_at: datetime | None,
) -> KeyStatus:
    last = failures[-1]
    num_failures = len(failures)
    reason = last.reason or f"failed in stage '{last.stage}' without a reason"
    if _is_refused(failures):
        return KeyStatus(
            planned=planned,
            state=KeyState.PROOF_FAILED,
            engine=engine,
            num_failures=num_failures,
            reason=reason,
        )
    is_given_up = _is_failed_too_often(failures, policy)
    return KeyStatus(
        planned=planned,
        state=KeyState.QUARANTINED if is_given_up else KeyState.FAILED,
        engine=engine,
        num_failures=num_failures,
        next_attempt_at=(
            None
            if is_given_up
            else policy.next_attempt_at(failed_at or _ended_at(last), num_failures)
        ),
        reason=reason,
    )


def _ended_at(record: BuildRecord) -> datetime:
    lasted = timedelta(seconds=sum(record.stage_durations_s.values()))
    return datetime.fromisoformat(record.started_at) + lasted


def _why_unproven(engine: PublishedEngine, generation: Generation) -> str:
    proof = engine.proof
    match proof.outcome:
        case ProofOutcome.NOT_RUN:
            return f"built, not proven: {proof.reason}"
        case ProofOutcome.FAILED:
            return f"to be proven again, its proof failed: {proof.reason}"
        case ProofOutcome.PASSED if is_proven_on(engine, generation):
            return "to be proven again, as was asked for or as another release proved it"
        case ProofOutcome.PASSED:
            proven_on = proof.device.generation if proof.device else "no device"
            return f"proven on {proven_on}, not yet on {generation}"
