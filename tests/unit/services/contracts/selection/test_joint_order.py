"""Joint runs decide between engines, with the noise between them, and chain over the incumbent."""

from collections.abc import Callable, Mapping

import pytest
from pydantic import ValidationError

from services.contracts.hardware.facts import DeviceFacts
from services.contracts.model.manifest import Proof, PublishedEngine, SideTiming
from services.contracts.model.recipe import Recipe
from services.contracts.ratio import Ratio
from services.contracts.selection.joint_order import engine_history, joint_order, unsettled
from services.contracts.selection.joint_run import JointRun, JointTiming
from services.contracts.selection.selection import FallbackReason, select
from services.contracts.selection.speed_gate import deciding, speed_over_fallback
from tests.unit.services.contracts.conftest import device

MakeEngine = Callable[..., PublishedEngine]
MakeDevice = Callable[..., DeviceFacts]
MakeProof = Callable[..., Proof]
HERE = "cuda-sm90"


def side(p50_s: float) -> SideTiming:
    return SideTiming(p50_s=p50_s, p95_s=p50_s, throughput=1 / p50_s, peak_memory_bytes=1)


def run_of(
    engines_s: Mapping[str, float],
    incumbent: str = "",
    *,
    fallback_s: float | None = None,
    left_out: tuple[str, ...] = (),
    generation: str = HERE,
) -> JointRun:
    """One shape and another that takes ten times as long."""
    shapes = tuple(
        JointTiming(
            bucket="b",
            sizes={"batch": batch},
            engines={digest: side(batch * p50_s) for digest, p50_s in engines_s.items()},
            eager=side(batch * 100.0),
            fallback=side(batch * fallback_s) if fallback_s else None,
        )
        for batch in (1, 10)
    )
    return JointRun(
        master_digest="a" * 64,
        device=device(generation=generation),
        incumbent=incumbent,
        shapes=shapes,
        left_out=dict.fromkeys(left_out, "too many"),
        created_at="2026-01-01T00:00:00.000+00:00",
    )


def run(incumbent: str = "", **engines_s: float) -> JointRun:
    return run_of(engines_s, incumbent)


# name: runs, the engines that could serve, and their order ("" when the runs do not tell)
ORDERS: dict[str, tuple[tuple[JointRun, ...], str, str]] = {
    "nothing was timed together": ((), "ab", ""),
    "by seconds": ((run(a=2.0, b=1.0, c=3.0),), "abc", "bac"),
    "only those that could serve": ((run(a=2.0, b=1.0, c=3.0),), "ac", "ac"),
    "of equals the smaller digest": ((run(b=1.0, a=1.0),), "ab", "ab"),
    "one that no run has": ((run(a=2.0, b=1.0),), "abc", ""),
    "a run on another generation": (
        (run_of({"a": 2.0, "b": 1.0}, generation="cuda-sm80"),),
        "ab",
        "",
    ),
    "of other engines": ((run(x=2.0, y=1.0),), "ab", ""),
    "a newcomer that is faster": ((run(a=1.0, b=2.0), run("a", a=1.0, n=0.5)), "abn", "nab"),
    "a newcomer within the noise": ((run(a=1.0, b=2.0), run("a", a=1.0, n=0.96)), "abn", "anb"),
    "a newcomer beyond the noise": ((run(a=1.0, b=2.0), run("a", a=1.0, n=0.94)), "abn", "nab"),
    "a slower newcomer, placed through the incumbent": (
        # The machine was three times as slow: n takes 1.5 of the first run's seconds.
        (run(a=1.0, b=2.0), run("a", a=3.0, n=4.5)),
        "abn",
        "anb",
    ),
    "back within the noise changes nothing": (
        (run(a=1.0, b=2.0), run("a", a=1.0, n=0.5), run("n", n=1.0, a=0.97)),
        "abn",
        "nab",
    ),
    "the incumbent does not fit here": ((run(a=1.0, b=2.0), run("a", a=1.0, n=1.5)), "bn", "nb"),
    "and the newcomer is within the noise of what is left": (
        (run(a=1.0, b=2.0), run("a", a=1.0, n=1.96)),
        "bn",
        "bn",
    ),
    "without a common engine the newest counts alone": (
        (run(a=1.0, b=2.0), run(c=1.0, d=2.0)),
        "cd",
        "cd",
    ),
    "and what is only in the older one is not covered": (
        (run(a=1.0, b=2.0), run(c=1.0, d=2.0)),
        "ac",
        "",
    ),
    "what was left out comes last": (
        (run_of({"b": 1.0, "a": 2.0}, left_out=("z", "y")),),
        "abyz",
        "bayz",
    ),
    "until it is timed": (
        (run_of({"b": 1.0, "a": 2.0}, left_out=("z",)), run("b", b=1.0, z=0.5)),
        "abz",
        "zba",
    ),
}


@pytest.mark.parametrize("name", ORDERS)
def test_engines_are_ordered_by_the_runs(name: str) -> None:
    runs, wanted, order = ORDERS[name]
    found = joint_order(wanted, HERE, runs)
    assert "".join(found.order) == order
    assert found == joint_order(reversed(wanted), HERE, runs)
    assert bool(found.words) is bool(order)


def test_a_run_without_an_engine_at_one_of_its_shapes_is_none() -> None:
    whole = run(a=1.0, b=2.0)
    fewer = whole.shapes[1].model_copy(update={"engines": {"a": side(1.0)}})
    cut = whole.model_copy(update={"shapes": (whole.shapes[0], fewer)})
    with pytest.raises(ValidationError, match="the same engines at each"):
        JointRun.from_json(cut.canonical_json())


def test_the_words_name_the_day_and_the_number() -> None:
    found = joint_order("ab", HERE, [run(a=2.0, b=1.0, c=4.0)])
    assert found.words == "timed together on 2026-01-01 00:00:00Z, 3 candidates"
    assert joint_order("abx", HERE, [run(a=2.0, b=1.0)]).uncovered == {"x"}


def test_the_newest_run_of_an_engine_with_the_fallback_counts(
    make_engine: MakeEngine, make_proof: MakeProof
) -> None:
    engine = make_engine(make_proof(speedup=3.0))
    (proof,) = engine.proof.timings
    assert deciding(engine_history(engine, HERE, [])) == (proof,)
    a = engine.digest
    runs = [
        run_of({a: 1.0, "b": 2.0}, fallback_s=4.0),
        run_of({a: 1.0, "b": 2.0}, "b", fallback_s=0.5),
        run_of({a: 1.0, "b": 2.0}),
        run(b=1.0),
    ]
    assert [t.speedup for t in deciding(engine_history(engine, HERE, runs[2:]))] == [100.0] * 2
    assert speed_over_fallback(deciding(engine_history(engine, HERE, runs))) == 0.5
    assert engine_history(engine, "cuda-sm80", runs) == [(proof,)]


def test_a_proof_that_is_newer_than_the_runs_counts(
    make_engine: MakeEngine, make_proof: MakeProof
) -> None:
    """Proven again, as on a device that has become slower: what was before is of the past."""
    first = make_engine(make_proof(speedup=3.0))
    fast = run_of({first.digest: 1.0}, fallback_s=4.0)
    (timing,) = first.proof.timings
    slow = timing.model_copy(update={"fallback": side(timing.p50_s / 2)})
    again = {"created_at": "2026-02-01T00:00:00.000+00:00", "timings": (slow,)}
    proof = first.proof.model_copy(update=again)
    engine = first.model_copy(update={"proof": proof})
    assert engine_history(engine, HERE, [fast]) == [fast.timings(first.digest), (slow,)]
    assert speed_over_fallback(deciding(engine_history(engine, HERE, [fast]))) == 0.5


def measured(widest: float, wild: str = "", **engines_s: float) -> JointRun:
    """A run on paired calls: intervals reach so many times beyond medians, wild ones forty."""
    plain = run_of(engines_s, fallback_s=1.0)
    shapes = [
        shape.model_copy(
            update={
                "engines": {
                    digest: known.model_copy(
                        update={
                            "ratio": around(
                                1 / engines_s[digest], 40.0 if digest in wild else widest
                            )
                        }
                    )
                    for digest, known in shape.engines.items()
                }
            }
        )
        for shape in plain.shapes
    ]
    return plain.model_copy(update={"shapes": tuple(shapes)})


def around(median: float, widest: float) -> Ratio:
    return Ratio(median=median, low=median / widest, high=median * widest, num_pairs=20)


@pytest.mark.parametrize(("widest", "order"), [(1.05, "na"), (1.5, "an")])
def test_the_lead_changes_only_where_intervals_do_not_overlap(widest: float, order: str) -> None:
    """The newcomer has four fifths of the seconds."""
    first = measured(widest, a=0.5)
    second = measured(widest, a=0.5, n=0.4).model_copy(update={"incumbent": "a"})
    assert "".join(joint_order("an", HERE, [first, second]).order) == order


@pytest.mark.parametrize(
    ("wild", "order"),
    [("", "abc"), ("a", "bca"), ("ab", "cab"), ("abc", "abc")],
)
def test_wild_figures_rank_nobody_ahead_of_others(wild: str, order: str) -> None:
    """Also where no gate keeps them from serving: a recipe may switch it off."""
    run = measured(1.05, wild, a=0.2, b=0.3, c=0.4)
    assert "".join(joint_order("abc", HERE, [run]).order) == order
    # Measured once, they keep their place in runs of a machine that is too busy.
    clear = measured(1.05, a=0.2, b=0.3, c=0.4)
    assert "".join(joint_order("abc", HERE, [clear, run]).order) == "abc"


@pytest.mark.parametrize(
    ("runs", "again"),
    [
        ([measured(1.03, a=0.40, b=0.41)], ""),  # whichever leads, nothing is lost
        ([measured(1.30, a=0.40, b=0.44)], "b"),
        ([measured(1.30, a=0.40, b=0.44), measured(1.30, a=0.40, b=0.44)], "b"),
        ([measured(1.30, a=0.40, b=0.44), measured(1.02, a=0.40, b=0.44)], ""),
        ([measured(1.02, a=0.40, b=0.44), measured(1.30, a=0.40, b=0.44)], ""),
        ([measured(1.30, a=0.40, b=0.80)], ""),
        ([measured(1.30, a=2.00, b=2.20)], ""),  # slower than the fallback, both of them
        ([run(a=0.40, b=0.44)], ""),  # an older run has no intervals
    ],
)
def test_who_may_be_much_faster_than_the_first_is_timed_again(
    make_engine: MakeEngine, make_proof: MakeProof, runs: list[JointRun], again: str
) -> None:
    made = {name: make_engine(make_proof(), builder_options={"n": name}) for name in "ab"}
    named = {name: engine.digest for name, engine in made.items()}
    runs = [renamed(each, named) for each in runs]
    found = unsettled(made.values(), Recipe(), HERE, runs)
    assert found == {named[name] for name in again}
    assert unsettled(made.values(), Recipe(), "cuda-sm80", runs) == set()


def renamed(run: JointRun, names: Mapping[str, str]) -> JointRun:
    """The same run of other engines."""
    shapes = tuple(
        shape.model_copy(update={"engines": {names[d]: e for d, e in shape.engines.items()}})
        for shape in run.shapes
    )
    return run.model_copy(update={"shapes": shapes})


def test_the_ratio_of_pairs_counts_and_not_the_seconds() -> None:
    """Seconds of one side alone change with the load of the machine."""
    changed = measured(1.05, a=0.5, b=0.4)
    slow = {digest: side(9.0 + n) for n, digest in enumerate("ab")}
    shapes = tuple(
        shape.model_copy(
            update={
                "engines": {
                    digest: each.model_copy(update={"ratio": shape.engines[digest].ratio})
                    for digest, each in slow.items()
                }
            }
        )
        for shape in changed.shapes
    )
    assert joint_order("ab", HERE, [changed.model_copy(update={"shapes": shapes})]).order == (
        "b",
        "a",
    )


class TestSelection:
    @pytest.fixture
    def engines(self, make_engine: MakeEngine, make_proof: MakeProof) -> list[PublishedEngine]:
        """By their proofs the first is the fastest: 3, 2 and 1 times as fast as eager."""
        return [
            make_engine(make_proof(speedup=speed), builder_options={"n": str(speed)})
            for speed in (3.0, 2.0, 1.0)
        ]

    def test_a_joint_run_counts_more_than_proofs(
        self, engines: list[PublishedEngine], make_device: MakeDevice
    ) -> None:
        seconds = {engine.digest: 3.0 - n for n, engine in enumerate(engines)}
        selection = select(engines, make_device(), runs=[run_of(seconds)])
        assert [selection.engine, *selection.runners_up] == engines[::-1]
        assert selection.joint.words.endswith("3 candidates")

    def test_one_that_does_not_have_all_does_not_count(
        self, engines: list[PublishedEngine], make_device: MakeDevice
    ) -> None:
        some = run_of({engines[2].digest: 1.0, engines[1].digest: 2.0})
        selection = select(engines, make_device(), runs=[some])
        assert [selection.engine, *selection.runners_up] == engines
        assert not selection.joint.words

    def test_an_engine_that_was_never_timed_comes_last(
        self, engines: list[PublishedEngine], make_device: MakeDevice, make_engine: MakeEngine
    ) -> None:
        untimed = make_engine()
        seconds = {engine.digest: 3.0 - n for n, engine in enumerate(engines)}
        selection = select([untimed, *engines], make_device(), runs=[run_of(seconds)])
        assert [selection.engine, *selection.runners_up] == [*engines[::-1], untimed]

    @pytest.mark.parametrize(("fallback_s", "may_serve"), [(2.0, True), (0.98, True), (0.9, False)])
    def test_its_fallback_is_the_gate(
        self,
        engines: list[PublishedEngine],
        make_device: MakeDevice,
        fallback_s: float,
        may_serve: bool,
    ) -> None:
        only = engines[:1]
        runs = [run_of({only[0].digest: 1.0}, fallback_s=fallback_s)]
        selection = select(only, make_device(), runs=runs)
        assert (selection.engine is not None) is may_serve
        slower = FallbackReason.SLOWER_THAN_FALLBACK
        assert (selection.fallback_reason is slower) is not may_serve
