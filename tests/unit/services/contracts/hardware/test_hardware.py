"""Generations: their text, what runs on what, and the classes of x86."""

import pytest

from services.contracts.errors import InvalidRequestError
from services.contracts.hardware.facts import (
    X86_ISA_FLAGS,
    DeviceFacts,
    Generation,
    Platform,
    x86_isa_class,
)

ISA_CLASSES = list(X86_ISA_FLAGS)


@pytest.mark.parametrize(
    ("text", "major", "minor"),
    [
        ("cuda-sm75", 7, 5),
        ("cuda-sm80", 8, 0),
        ("cuda-sm90", 9, 0),
        ("cuda-sm100", 10, 0),
        ("cuda-sm103", 10, 3),
        ("cuda-sm120", 12, 0),
        ("cuda-sm121", 12, 1),
    ],
)
def test_the_last_digit_of_an_sm_is_the_minor_number(text: str, major: int, minor: int) -> None:
    generation = Generation.parse(text)
    assert (generation.platform, generation.major, generation.minor) == (
        Platform.CUDA,
        major,
        minor,
    )
    assert str(generation) == text


@pytest.mark.parametrize("isa", ISA_CLASSES)
def test_x86_classes_have_one_text_form(isa: str) -> None:
    generation = Generation.parse(f"cpu-x86_64-{isa}")
    assert (generation.machine, generation.isa) == ("x86_64", isa)
    assert str(generation) == f"cpu-x86_64-{isa}"


def test_other_machines_are_named_too() -> None:
    generation = Generation.parse("cpu-aarch64-neon")
    assert (generation.machine, generation.isa) == ("aarch64", "neon")
    assert str(generation) == "cpu-aarch64-neon"


@pytest.mark.parametrize(
    "text",
    [
        *("", "sm90", "cuda-90", "cuda-sm9", "cuda-sm090", "cuda-sm9.0", "cuda-sm90a"),
        *("CUDA-SM90", " cuda-sm90", "cuda-sm\N{ARABIC-INDIC DIGIT NINE}0"),
        *("cpu-x86_64-v9", "cpu-x86_64-", "cpu-x86_64", "cpu-"),
    ],
)
def test_another_text_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"expected cuda-sm<major><minor>.*amx"):
        Generation.parse(text)


def test_a_misspelt_text_has_the_nearest_form() -> None:
    with pytest.raises(InvalidRequestError, match="did you mean 'cpu-x86_64-avx512_bf16'?"):
        Generation.parse("cpu-x86-64-avx512-bf16")


@pytest.mark.parametrize(
    ("built_for", "node", "runs"),
    [
        ("cuda-sm90", "cuda-sm90", True),
        ("cuda-sm80", "cuda-sm86", False),
        ("cuda-sm86", "cuda-sm80", False),
        ("cuda-sm90", "cuda-sm100", False),
        ("cuda-sm120", "cuda-sm121", False),
        ("cuda-sm90", "cpu-x86_64-amx", False),
        ("cpu-x86_64-v3", "cuda-sm90", False),
        ("cpu-x86_64-v3", "cpu-x86_64-v3", True),
        ("cpu-x86_64-v3", "cpu-x86_64-avx512", True),
        ("cpu-x86_64-avx512", "cpu-x86_64-v3", False),
        ("cpu-x86_64-v2", "cpu-x86_64-amx", True),
        ("cpu-x86_64-amx", "cpu-x86_64-avx512_bf16", False),
        ("cpu-x86_64-v3", "cpu-aarch64-neon", False),
        ("cpu-aarch64-neon", "cpu-aarch64-neon", True),
        ("cpu-aarch64-neon", "cpu-aarch64-sve", False),
    ],
)
def test_what_runs_on_what(built_for: str, node: str, runs: bool) -> None:
    assert Generation.parse(built_for).runs_on(Generation.parse(node)) is runs


@pytest.mark.parametrize("isa", ISA_CLASSES)
def test_a_class_needs_its_flags_and_all_below(isa: str) -> None:
    rank = ISA_CLASSES.index(isa)
    flags = frozenset().union(*(X86_ISA_FLAGS[each] for each in ISA_CLASSES[: rank + 1]))
    assert x86_isa_class(flags | {"something_else"}) == isa
    without_one = flags - {min(X86_ISA_FLAGS[isa])}
    if rank == 0:
        with pytest.raises(InvalidRequestError, match=r"SSE4\.2"):
            x86_isa_class(without_one)
    else:
        assert x86_isa_class(without_one) == ISA_CLASSES[rank - 1]


def test_a_gap_ends_the_climb() -> None:
    """A processor with AMX but a masked AVX-512 is a v3."""
    all_flags = frozenset().union(*X86_ISA_FLAGS.values())
    assert x86_isa_class(all_flags - {"avx512f"}) == "v3"


def test_facts_give_their_generation_as_a_value() -> None:
    facts = DeviceFacts(generation="cuda-sm103", name="NVIDIA B300", memory_gib=268)
    assert facts.parsed_generation == Generation(platform=Platform.CUDA, major=10, minor=3)
