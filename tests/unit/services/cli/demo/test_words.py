"""What the demo prints of events and of engines."""

import re
import shlex
from typing import Any

import pytest

from services.cli.demo.minilm import tokenise
from services.cli.demo.run import Answer
from services.cli.demo.words import (
    answers_words,
    best_digest,
    done_words,
    event_words,
    next_steps,
    outcome_text,
    served_digest,
    served_precision,
    serving_words,
)
from services.cli.requests.infer import read_inputs
from services.contracts.events import Event, EventKind
from services.contracts.selection.speed_gate import BUSY, TIMED_LATER
from services.contracts.text.text_table import Table
from tests.reference.commands import all_commands

FAST, SLOW = "f" * 64, "s" * 64


def key(digest: str, precision: str, **changes: Any) -> dict[str, Any]:
    """A planned engine as `smelt why` has it."""
    fields: dict[str, Any] = {
        "digest": digest, "kind": "openvino", "precision": precision, "standing": "proven",
        "rank": 1, "reason": "", "speed_over_fallback": 2.5, "speed_bounds": [2.25, 2.75],
        "speed_over_eager": 4.0, "is_wild": False,
    }  # fmt: skip
    return fields | changes


SLOWER = "passed over: slower than the fallback: 0.80 x its speed (0.75 to 0.85)"


def case(served: str, *keys: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """One generation as `smelt why` has it, with a replica that is ready and one that loads."""
    loading = {"state": "LOADING", "engine_digest": "", "fallback_reason": ""}
    reason = "" if served else "slower_than_fallback"
    ready = {"state": "READY", "engine_digest": served, "fallback_reason": reason}
    fields: dict[str, Any] = {
        "generation": "cpu-x86_64-v3", "planned": list(keys), "replicas": [loading, ready],
        "decided_by": "timed together on some day, 2 candidates", "skipped": [], "precisions": {},
    }  # fmt: skip
    return fields | changes


def lines(of: dict[str, Any]) -> tuple[Table, list[str]]:
    """The table, and what follows the lines that explain its columns."""
    table, *text = outcome_text(of)
    assert isinstance(table, Table)
    explained = [line for line in map(str, text) if line.startswith("  ")]
    assert max(map(len, explained)) < 80
    heads = [line.partition(":")[0].strip() for line in explained]
    has_unknown = any("?" in row for row in table.rows)
    assert heads == ["proof", "x fallback", "x eager", *(["?"] if has_unknown else [])]
    assert set(heads) - {"?"} <= set(table.columns)
    return table, [str(line) for line in text[len(explained) :]]


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
    keys = [key(FAST, "bf16"), key(SLOW, "fp32", standing="quarantined")]
    done = done_words([case("", *keys, key("w" * 64, "fp32", standing="missing"))])
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


def test_the_table_says_which_engine_serves_and_how_much_faster() -> None:
    of = case(FAST, key(FAST, "bf16"), key(SLOW, "fp32", rank=2, speed_over_fallback=1.5))
    table, text = lines(of)
    assert [(row[1], row[2], row[3], row[-1]) for row in table.rows] == [
        ("bf16", "proven", "2.50x", "serves"),
        ("fp32", "proven", "1.50x", "2."),
        ("fp32", "-", "1.00x", ""),
    ]
    assert text == [
        "openvino bf16 serves: proven, 2.50 x the fallback's speed (2.25 to 2.75).",
        "Order and speeds: timed together on some day, 2 candidates.",
    ]
    assert (served_digest(of), best_digest(of), served_precision(of)) == (FAST, FAST, "bf16")


def test_where_the_fallback_serves_each_engine_has_its_figures() -> None:
    slow = key(SLOW, "fp32", rank=None, speed_over_fallback=0.8, reason=SLOWER)
    of = case("", slow, decided_by="")
    table, text = lines(of)
    assert table.rows[-1][-1] == "serves"
    assert text == ["The fallback serves: no engine is faster.", f"openvino fp32: {SLOWER}"]
    assert (served_digest(of), best_digest(of), served_precision(of)) == ("", "", "fp32")


def test_that_engines_are_timed_again_is_said_once_and_what_is_not_built_says_why() -> None:
    unclear = f"passed over: not measurable here now: 0.5 to 9{TIMED_LATER}; at once: smelt build"
    keys = [key(FAST, each, reason=unclear, is_wild=True) for each in ("fp32", "bf16")]
    found = {"fp32": {"distances": {}}, "bf16": {"not_built": "no instructions for bf16 here"}}
    table, (_, _, *text) = lines(case("", *keys, precisions=found))
    assert table.rows[0][3:5] == ("?", "?")
    again = text.pop(1)
    assert again.endswith(" build all-minilm-l6-v2")
    assert text == [
        "openvino fp32, openvino bf16: passed over: not measurable here now: 0.5 to 9",
        "bf16: not built: no instructions for bf16 here",
    ]


def test_a_wild_interval_is_no_speed_of_what_serves() -> None:
    wild = key(FAST, "bf16", speed_bounds=[1.4, 1854.0], is_wild=True)
    _, text = lines(case(FAST, wild))
    assert text[0] == "openvino bf16 serves: proven, at least 1.40 x the fallback's speed."
    _, text = lines(case(FAST, wild | {"speed_bounds": [0.0069, 1854.0]}))
    assert text[0].endswith("proven, and how fast is not measurable while this machine is busy.")


def test_an_engine_that_was_not_timed_claims_no_speed() -> None:
    untimed = key(FAST, "bf16", speed_over_fallback=None, speed_bounds=None, speed_over_eager=None)
    table, text = lines(case(FAST, untimed))
    assert table.rows[0][3:5] == ("-", "-")
    assert "was not timed beside it" in text[0]


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
