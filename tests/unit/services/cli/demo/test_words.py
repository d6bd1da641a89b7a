"""What the demo prints of events, and what it reads of engines."""

import re
import shlex
from typing import Any

import pytest

from services.cli.demo.minilm import tokenise
from services.cli.demo.run import MODEL, Answer
from services.cli.demo.words import (
    answers_words,
    best_digest,
    done_words,
    end_words,
    event_words,
    next_steps,
    served_digest,
    served_precision,
    serving_words,
)
from services.cli.requests.infer import read_inputs
from services.contracts.events import Event, EventKind
from services.contracts.selection.speed_gate import BUSY, TIMED_LATER
from tests.reference.commands import all_commands

FAST, SLOW = "f" * 64, "s" * 64


def key(digest: str, precision: str, **changes: Any) -> dict[str, Any]:
    """A planned engine as `smelt why` has it."""
    fields: dict[str, Any] = {
        "digest": digest,
        "kind": "openvino",
        "precision": precision,
        "key_state": "proven",
        "rank": 1,
        "reason": "",
        "speed_over_fallback": 2.5,
        "speed_bounds": [2.25, 2.75],
        "speed_over_eager": 4.0,
        "is_wild": False,
    }
    return fields | changes


def case(served: str, *keys: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """One generation as `smelt why` has it, with a replica that is ready and one that loads."""
    loading = {"state": "LOADING", "engine_digest": "", "fallback_reason": ""}
    reason = "" if served else "slower_than_fallback"
    ready = {"state": "READY", "engine_digest": served, "fallback_reason": reason}
    fields: dict[str, Any] = {
        "generation": "cpu-x86_64-v3",
        "planned": list(keys),
        "replicas": [loading, ready],
        "decided_by": "timed together on some day, 2 candidates",
        "skipped": [],
        "given_up": "",
        "passed_over": [],
        "precisions": {},
    }
    return fields | changes


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (EventKind.PROOF_PASSED, "proof passed: openvino bf16: 2.50 x the fallback"),
        (EventKind.PROOF_FAILED, "proof failed: openvino bf16: 2.50 x the fallback"),
        # What serves is seen in the fleet itself.
        (EventKind.ENGINE_SERVING, ""),
        (EventKind.BUILD_FINISHED, ""),
    ],
)
def test_an_event_is_one_line_or_none(kind: EventKind, words: str) -> None:
    assert event_words(Event(kind=kind, why="openvino bf16: 2.50 x the fallback")) == words


def test_the_end_of_a_proof_says_which_of_how_many_and_nothing_twice() -> None:
    keys = [key(FAST, "bf16"), key(SLOW, "fp32", key_state="quarantined")]
    done = done_words([case("", *keys, key("w" * 64, "fp32", key_state="missing"))])
    assert (done, done_words([case("")])) == ("2 of 3", "")
    unclear = f"openvino fp32: 0.65 to 2.14 x the fallback's speed, too close{TIMED_LATER}; at once"
    passed, started = EventKind.PROOF_PASSED, EventKind.BUILD_STARTED
    words = event_words(Event(kind=passed, why=unclear), done)
    assert (
        words
        == "proof passed (2 of 3): openvino fp32: 0.65 to 2.14 x the fallback's speed, too close"
    )
    assert "first" not in event_words(Event(kind=started, why="first build for these nodes"), done)
    busy = Event(kind=EventKind.ENGINES_COMPARED, why=f"openvino bf16 is {BUSY}; on some day")
    assert event_words(busy) == ""
    joint = Event(kind=EventKind.ENGINES_COMPARED, why="openvino bf16 is best; others; on some day")
    assert event_words(joint, done) == "timed together: openvino bf16 is best"


def test_what_serves_is_named_or_the_reason_for_the_fallback() -> None:
    engine = Event(kind=EventKind.ENGINE_SERVING, key=FAST, why="openvino bf16")
    assert serving_words(engine) == "engine openvino bf16"
    fallback = Event(kind=EventKind.FALLBACK_SERVING, why="no engine is faster")
    assert serving_words(fallback) == (
        "the fallback (ONNX Runtime or PyTorch), as no engine is faster"
    )


def test_what_serves_and_what_should_is_read_from_the_case() -> None:
    of = case(FAST, key(FAST, "bf16"), key(SLOW, "fp32", rank=2, speed_over_fallback=1.5))
    assert (served_digest(of), best_digest(of), served_precision(of)) == (FAST, FAST, "bf16")
    of = case("", key(SLOW, "fp32", rank=None))
    assert (served_digest(of), best_digest(of), served_precision(of)) == ("", "", "fp32")


@pytest.mark.parametrize("reason", ["not_measurable", "slower_than_fallback"])
def test_the_end_says_that_an_engine_is_still_to_be_timed(reason: str) -> None:
    over = [{"digest": SLOW, "reason": reason, "detail": "why"}]
    slow = key(SLOW, "fp32", rank=None)
    words = end_words([case("", slow, passed_over=over)])
    assert words.startswith("nothing is left to be built")
    assert (f"smelt build {MODEL}" in words) is (reason == "not_measurable")
    # Another one serves.
    assert end_words([case(FAST, key(FAST, "bf16"), slow, passed_over=over)]) == (
        "nothing is left to be built"
    )


def answer(query: str, distance: float, *, is_matched: bool) -> Answer:
    return Answer(
        query=query, nearest="n", cosine=0.5, cosine_distance=distance, is_matched=is_matched
    )


def test_answers_are_counted_and_those_that_are_off_are_shown() -> None:
    good, off = answer("q1", -1e-7, is_matched=True), answer("q2", 0.25, is_matched=False)
    assert list(answers_words([good, good])) == [
        (
            "2 of 2 answers match sentence-transformers': "
            "embeddings differ by less than 1e-07 (1 - cosine)"
        ),
        "  q1 -> n",
    ]
    assert list(answers_words([good, off])) == [
        (
            "1 of 2 answers match sentence-transformers': "
            "embeddings differ by at most 2e-01 (1 - cosine)"
        ),
        "  q2 -> n",
    ]


def test_the_next_steps_are_commands() -> None:
    commands, text = all_commands(), "\n".join(next_steps())
    typed = [shlex.split(line) for line in re.findall(r"(?<![\w.])smelt ([a-z][^;\n]*)", text)]
    # `make run` is `smelt up --demo` with more options.
    typed += [["up", "--demo", *args.split()] for args in re.findall(r"make run ARGS=(\S+)", text)]
    names = [" ".join(words[: 1 + (" ".join(words[:2]) in commands)]) for words in typed]
    assert names == ["infer", "models add", "why", "up"]
    for name, words in zip(names, typed, strict=True):
        commands[name].make_context(name, words[len(name.split()) :])
    given = read_inputs(typed[0][3::2])
    ids, mask = given.values()
    assert (list(given), ids.shape, mask.shape) == (list(tokenise(("hi",))), (1, 4), (1, 4))
