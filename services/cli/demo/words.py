"""What the demo prints: a line for each event, and at the end how answers compare. Pure."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from services.cli.demo.run import MODEL, Answer
from services.contracts.events import Event, EventKind
from services.contracts.hardware.kinds import Precision
from services.contracts.selection.selection import FallbackReason
from services.contracts.selection.speed_gate import BUSY, TIMED_LATER
from services.controller.build.key_status import KeyState

# What else is recorded is of no interest here, or shows in what serves.
_WORDS = {
    EventKind.BUILD_STARTED: "the fleet builds engines meanwhile",
    EventKind.BUILD_WAITING: "a build waits",
    EventKind.BUILD_FAILED: "build failed",
    EventKind.PROOF_PASSED: "proof passed",
    EventKind.PROOF_FAILED: "proof failed",
    EventKind.QUARANTINED: "quarantined",
    EventKind.ENGINES_COMPARED: "timed together",
    EventKind.REPLICA_LOST: "replica lost",
    EventKind.REPLICA_RESTORED: "replica restored",
}
_ENDS_PROOF = (EventKind.PROOF_PASSED, EventKind.PROOF_FAILED)
_ROUNDING = 1e-7
_ALL_BUILT = "nothing is left to be built"


def event_words(event: Event, done: str = "") -> str:
    """One line of an event; "" for one that the demo does not show.

    Args:
        event: of the demo's model.
        done: how many of its engines are built, for the end of a proof.
    """
    # A comparison that decided nothing is in the line of the proof that it belongs to.
    if event.kind not in _WORDS or (event.kind is EventKind.ENGINES_COMPARED and BUSY in event.why):
        return ""
    count = f" ({done})" if done and event.kind in _ENDS_PROOF else ""
    return f"{_WORDS[event.kind]}{count}" + (f": {why}" if (why := _brief(event)) else "")


def serving_words(served: Event) -> str:
    """What answers requests."""
    if served.kind is EventKind.ENGINE_SERVING:
        return f"engine {served.why}"
    return f"the fallback (ONNX Runtime or PyTorch), as {served.why}"


def done_words(cases: Sequence[dict[str, Any]]) -> str:
    """How many engines are proven, refused or quarantined; "" before there is a plan."""
    states = [key["key_state"] for case in cases for key in case["planned"]]
    num_done = sum(not KeyState(state).is_open for state in states)
    return f"{num_done} of {len(states)}" if states else ""


def answers_words(answers: Sequence[Answer]) -> Iterator[str]:
    """How the answers compare with sentence-transformers', with an example or with what is off."""
    off = [answer for answer in answers if not answer.is_matched]
    most = max(answer.cosine_distance for answer in answers)
    # What is less is the rounding of float32.
    by = f"by at most {most:.0e}" if most >= _ROUNDING else f"by less than {_ROUNDING:.0e}"
    yield (
        f"{len(answers) - len(off)} of {len(answers)} answers match sentence-transformers': "
        f"embeddings differ {by} (1 - cosine)"
    )
    for each in off or answers[:1]:
        yield f"  {each.query} -> {each.nearest}"


def end_words(cases: Sequence[dict[str, Any]]) -> str:
    """Why the demo ends: all is built, perhaps not timed yet, or no plan could be made."""
    given_up = next((case["given_up"] for case in cases if case["given_up"]), "")
    if given_up:
        return f"quarantined: {given_up}"
    if not any(map(_awaits_timing, cases)):
        return _ALL_BUILT
    return (
        f"{_ALL_BUILT}; the fallback serves, as no engine could be measured to be faster yet: "
        "the fleet times them again in a few minutes; at once, best when less runs here: "
        f"{_program()} build {MODEL}"
    )


def next_steps() -> Iterator[str]:
    """What a person may do now."""
    smelt = _program()
    # "hello world"
    ids = "--input 'input_ids=[[101, 7592, 2088, 102]]'"
    yield f"Query it: {smelt} infer {MODEL} {ids} --input 'attention_mask=[[1, 1, 1, 1]]'"
    yield f"Add your own model: {smelt} models add NAME FILE.onnx"
    yield f"Inspect it: {smelt} why {MODEL}; with Prometheus: make run ARGS=--observe"


def served_digest(case: dict[str, Any]) -> str:
    """Digest of the engine that a ready replica has; "" for the fallback."""
    ready = (each for each in case["replicas"] if each["state"] == "READY")
    return next((str(each["engine_digest"]) for each in ready), "")


def served_precision(case: dict[str, Any]) -> str:
    """What the engine computes in that a ready replica has; the fallback is of fp32."""
    served = served_digest(case)
    found = (str(key["precision"]) for key in case["planned"] if key["digest"] == served)
    return next(found, Precision.FP32.value)


def best_digest(case: dict[str, Any]) -> str:
    """Digest of the engine that should serve; "" for the fallback."""
    return next((str(key["digest"]) for key in case["planned"] if key["rank"] == 1), "")


def _awaits_timing(case: dict[str, Any]) -> bool:
    """Whether nothing but its timing keeps an engine from serving."""
    reasons = (each["reason"] for each in case["passed_over"])
    return not best_digest(case) and FallbackReason.NOT_MEASURABLE in reasons


def _brief(event: Event) -> str:
    """What the table at the end does not say as well."""
    if event.kind is EventKind.BUILD_STARTED:
        return ""
    if event.kind is EventKind.ENGINES_COMPARED:
        return event.why.partition("; ")[0]
    return event.why.partition(TIMED_LATER)[0]


def _program() -> str:
    """`smelt` as a shell finds it: it may be in an environment that is not active."""
    if shutil.which("smelt"):
        return "smelt"
    path = Path(sys.executable).with_name("smelt")
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
