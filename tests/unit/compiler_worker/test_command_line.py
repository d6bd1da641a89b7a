"""Arguments, settings and reports of the compiler's own process."""

from pathlib import Path

import pytest

from compiler_worker.arguments import parse_arguments
from compiler_worker.building.build_report import engine_line, report_document, report_lines
from compiler_worker.building.pipeline import BuildReport
from compiler_worker.settings import CompilerSettings, settings_from_environment
from services.cli.settings import CliSettings
from services.contracts.builds.build_plan import BuildPlan, SkippedKey
from services.contracts.builds.build_record import BuildOutcome, BuildRecord
from services.contracts.errors import InvalidRequestError
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.document import canonical_json
from services.contracts.model.manifest import (
    EngineManifest,
    Proof,
    ProofOutcome,
    PublishedEngine,
    Timing,
)
from services.contracts.ratio import Ratio
from tests.documents import small_key

KEY = small_key(precision=Precision.BF16, generation="cpu-x86_64-amx")


class TestArguments:
    def test_build_takes_several_of_everything(self) -> None:
        line = (
            "build minilm --version 3 --generation cuda-sm90 --generation cpu-x86_64-v3 "
            "--kind inductor --precision fp16 --precision fp32 --json"
        )
        found = parse_arguments(line.split())
        assert (found.command, found.target, found.version) == ("build", "minilm", 3)
        assert found.wanted.generations == (
            Generation.parse("cuda-sm90"),
            Generation.parse("cpu-x86_64-v3"),
        )
        assert found.wanted.kinds == (EngineKind.INDUCTOR,)
        assert found.wanted.precisions == (Precision.FP16, Precision.FP32)
        assert found.is_json

    def test_without_options_everything_is_the_default(self) -> None:
        found = parse_arguments(["build", "minilm"])
        assert (found.wanted.generations, found.wanted.kinds, found.settings) == ((), (), {})

    def test_settings_can_be_given(self) -> None:
        found = parse_arguments(["prove", "abc", "--store-url", "s3://b", "--num-threads", "2"])
        settings = settings_from_environment(**found.settings)
        assert (settings.store_url, settings.num_threads) == ("s3://b", 2)

    def test_a_child_gets_its_request_and_its_parent(self) -> None:
        found = parse_arguments(["build-one", "--request", "r.json", "--parent-pid", "7"])
        assert (found.request, found.parent_pid) == (Path("r.json"), 7)

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ("build minilm --generation sm90", "expected cuda-sm<major><minor>"),
            ("build minilm --kind tvm", "invalid"),
            ("build minilm --precision int7", "invalid"),
            ("build", "MODEL"),
            ("", "COMMAND"),
        ],
    )
    def test_a_wrong_line_is_refused(
        self, line: str, told: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as stopped:
            parse_arguments(line.split())
        assert stopped.value.code == 2
        assert told in capsys.readouterr().err


class TestSettings:
    def test_come_from_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SMELT_STORE_URL", "s3://engines")
        monkeypatch.setenv("SMELT_BUILD_TIME_LIMIT_S", "60")
        settings = settings_from_environment()
        assert (settings.store_url, settings.build_time_limit_s) == ("s3://engines", 60.0)
        assert settings_from_environment(store_url="here").store_url == "here"

    def test_are_those_of_the_command_line_by_default(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        for home in (None, tmp_path):
            if home:
                monkeypatch.setenv("SMELT_HOME", str(home))
            ours, cli = settings_from_environment(), CliSettings()
            assert (ours.store_url, ours.cache_dir) == (cli.store_url, cli.cache_dir)
        assert ours.cache_dir == tmp_path / "cache"

    @pytest.mark.parametrize(
        ("name", "value"),
        [("BUILD_TIME_LIMIT_S", "0"), ("NUM_THREADS", "two"), ("LOG_LEVEL", "loud")],
    )
    def test_a_wrong_value_is_told_with_its_key(
        self, monkeypatch: pytest.MonkeyPatch, name: str, value: str
    ) -> None:
        monkeypatch.setenv(f"SMELT_{name}", value)
        with pytest.raises(InvalidRequestError, match=f"SMELT_{name}: got '{value}'"):
            settings_from_environment()

    def test_do_not_change(self) -> None:
        with pytest.raises(ValueError, match="frozen"):
            CompilerSettings().num_threads = 3  # type: ignore[misc]


def record(outcome: BuildOutcome, reason: str = "") -> BuildRecord:
    durations = {"build": 1.5, "prove": 2.0}
    return BuildRecord(
        key=KEY,
        outcome=outcome,
        stage="prove",
        reason=reason,
        stage_durations_s=durations,
        started_at="",
    )


def engine(outcome: ProofOutcome, reason: str = "", *timings: Timing) -> PublishedEngine:
    manifest = EngineManifest(
        key=KEY,
        files={},
        inputs=(),
        outputs=(),
        needs_master=True,
        build_duration_s=0,
        created_at="",
    )
    proof = Proof(outcome=outcome, reason=reason, timings=timings, created_at="")
    return PublishedEngine(digest=KEY.digest(), manifest=manifest, proof=proof)


class TestReport:
    PLAN = BuildPlan(
        model="m",
        version=1,
        node_class=NodeClass(generation="cuda-sm75"),
        skipped=(
            SkippedKey(kind="openvino", precision="fp32", reason="kind openvino is for CPUs"),
        ),
        created_at="",
    )

    def test_has_a_line_for_everything(self) -> None:
        report = BuildReport(
            plans=(self.PLAN,),
            records=(record(BuildOutcome.PROVEN), record(BuildOutcome.FAILED, "no kernel")),
            up_to_date=(engine(ProofOutcome.PASSED),),
        )
        proven, failed, up_to_date, skipped = report_lines(report, "s3://bucket/store")
        digest = KEY.digest()[:12]
        assert proven.endswith(f"{digest} proven in 3.5 s")
        assert failed.endswith(f"{digest} failed in 3.5 s: no kernel")
        assert up_to_date.endswith(f"{digest} passed")
        assert skipped.startswith("cuda-sm75")
        assert skipped.endswith("skipped: kind openvino is for CPUs")
        assert not report.is_success
        document = report_document(report)
        assert canonical_json(document)
        assert document["skipped"][0]["kind"] == "openvino"
        assert [len(document[part]) for part in ("records", "up_to_date")] == [2, 1]

    @pytest.mark.parametrize(
        ("outcome", "is_success"),
        [
            (BuildOutcome.PROVEN, True),
            (BuildOutcome.BUILT, True),
            (BuildOutcome.PROOF_FAILED, False),
            (BuildOutcome.FAILED, False),
        ],
    )
    def test_knows_what_success_is(self, outcome: BuildOutcome, *, is_success: bool) -> None:
        report = BuildReport(plans=(), records=(record(outcome),), up_to_date=())
        assert report.is_success == is_success

    def test_what_a_proof_refuses_of_a_precision_that_auto_tries_is_no_failure(self) -> None:
        for tried, outcome, is_success in (
            (KEY.precision, BuildOutcome.PROOF_FAILED, True),
            (KEY.precision, BuildOutcome.FAILED, False),
            (Precision.INT8, BuildOutcome.PROOF_FAILED, False),
        ):
            report = BuildReport(
                plans=(),
                records=(record(outcome),),
                up_to_date=(),
                tried=frozenset({tried}),
            )
            assert report.is_success == is_success

    def test_a_timed_engine_says_how_much_faster_it_is(self) -> None:
        timing = Timing(bucket="b", sizes={}, p50_s=1, p95_s=1, throughput=1, eager_p50_s=3)
        assert engine_line(engine(ProofOutcome.PASSED, "", timing)).endswith("3.00 x eager")
        wild = Ratio(median=3.0, low=0.1, high=40.0, num_pairs=20)
        timing = timing.model_copy(update={"ratio": wild})
        assert engine_line(engine(ProofOutcome.PASSED, "", timing)).endswith("passed")

    def test_an_unproven_engine_says_why(self) -> None:
        assert engine_line(engine(ProofOutcome.NOT_RUN, "needs x")).endswith("not_run: needs x")
