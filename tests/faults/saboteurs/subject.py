"""A specimen as the compiler has it: its master, its reference, its engines and its proof."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import count
from pathlib import Path

import onnx

from compiler_worker.builders.base import BuildResult, BuildSpec
from compiler_worker.builders.select import builder_for
from compiler_worker.builders.typed_graphs import typed_graph
from compiler_worker.inputs.calibrated_recipe import calibrated_recipe
from compiler_worker.inputs.sampling import Sample, SampleVariant, draw_sample, proof_samples
from compiler_worker.master.opened import open_master
from compiler_worker.master.source import OnnxFile
from compiler_worker.model_checks.accepted_blindness import with_accepted_blindness
from compiler_worker.precision.calibration import write_calibration
from compiler_worker.proof.claim import Claim, ProofVerdict
from compiler_worker.proof.judge import judge
from compiler_worker.references.models import FxModel, Model, OrtModel
from compiler_worker.references.reference import Reference, open_eager, open_reference
from services.contracts.builds.build_key import BuildKey
from services.contracts.errors import EngineError, ProofError
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import BlobRef, MasterRecord
from services.contracts.model.recipe import Recipe
from services.engines.base import LoadSpec
from services.engines.device.device_probe import probe_device
from services.engines.guarded import library_errors
from services.engines.loader import engine_class
from services.engines.onnxruntime_engine import TYPED_MODEL
from tests.conformance.workshop import manifest_of
from tests.faults.saboteurs.effect import Effect, answers, effect
from tests.faults.saboteurs.remembered import Remembered
from tests.faults.saboteurs.specimen import Specimen

_GIVEN_ROWS = 64
# Seeds of draws that no proof makes: whether a sabotage changes anything is asked of these too.
_OTHER_SEEDS = (1, 2, 3)
_NUMBERS = count()


class _Eager:
    """A typed graph in eager PyTorch: each op rounds. It is loaded and fails as engines do."""

    def __init__(self, path: Path, master: MasterRecord) -> None:
        with library_errors("eager PyTorch failed to load the typed graph"):
            self._model = FxModel.open(path, master, device="cpu")

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute all outputs; raises EngineError."""
        try:
            return self._model.run(inputs)
        except ProofError as error:
            raise EngineError(str(error)) from error


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A master beside its reference."""

    name: str
    specimen: Specimen
    folder: Path
    path: Path
    master: MasterRecord

    @classmethod
    def of(cls, name: str, specimen: Specimen, seed: int, folder: Path) -> "Subject":
        """Make the master as `smelt models add` does."""
        folder.mkdir(parents=True)
        source = folder / "source.onnx"
        onnx.save(specimen.make(seed), source)
        opened = open_master(OnnxFile(path=source), folder / "master", lambda line: None)
        record = MasterRecord(
            digest=opened.digest,
            files={name: BlobRef(sha256="b" * 64, num_bytes=1) for name in opened.files},
            inputs=opened.inputs,
            outputs=opened.outputs,
            opset=opened.opset,
            num_parameters=opened.num_parameters,
            input_values=dict(opened.input_values),
        )
        path = opened.files["model.onnx"]
        return cls(name=name, specimen=specimen, folder=folder, path=path, master=record)

    def reference(self, kind: EngineKind | None) -> Reference:
        """What engines of a kind are compared with, in memory too: it is asked in each proof."""
        if kind not in self._references:
            opened = open_reference(
                self.path, self.master, self._eager, self.folder / "cache", kind=kind, num_threads=1
            )
            witness, eager = (
                Remembered(model) if model else None
                for model in (opened.witness, opened.eager_outputs)
            )
            self._references[kind] = replace(
                opened, model=Remembered(opened.model), witness=witness, eager_outputs=eager
            )
        return self._references[kind]

    @cached_property
    def _references(self) -> dict[EngineKind | None, Reference]:
        return {}

    @cached_property
    def _eager(self) -> FxModel | str:
        return open_eager(self.path, self.master, "cpu")

    @cached_property
    def given(self) -> dict[str, Array]:
        """Rows as the owner has them: samples of proofs, and what calibrates eight bits."""
        largest = {name: most for name, (_, _, most) in self.specimen.sizes.items()}
        bucket, sizes = self.specimen.bucket, largest | {"batch": _GIVEN_ROWS}
        drawn = draw_sample(
            self.master, self.specimen.recipe, bucket, sizes, variant=SampleVariant.RAGGED, seed=99
        )
        return drawn.inputs

    @cached_property
    def draws(self) -> list[Sample]:
        """Samples of other seeds than a proof's, and those that are given."""
        return self._drawn(Precision.FP32)

    @cached_property
    def calibrated_draws(self) -> list[Sample]:
        """The same within the range that scales of eight bits are taken from."""
        return self._drawn(Precision.INT8)

    def _drawn(self, precision: Precision) -> list[Sample]:
        master, recipe = self.master, self.recipe(precision)
        drawn = [
            sample
            for seed in _OTHER_SEEDS
            for sample in proof_samples(master, recipe, (self.specimen.bucket,), seed=seed)
        ]
        # One size after the other, larger batches first: what is kept of a call shows in the next.
        drawn.sort(key=lambda sample: sorted(sample.sizes.items(), reverse=True), reverse=True)
        few = {name: array[:8] for name, array in self.given.items()}
        return [*drawn, replace(drawn[0], inputs=few, variant=SampleVariant.GIVEN)]

    @cached_property
    def exact_model(self) -> Model:
        """The master in float64."""
        return Remembered(self.exact(onnx.load(self.path)))

    def effect_of(self, model: Model, precision: Precision) -> Effect:
        """How far a model is off float64 at the draws of a precision."""
        draws = self.calibrated_draws if precision.is_calibrated else self.draws
        found, right = answers(model, draws), answers(self.exact_model, draws)
        return effect(found, right, draws, self.master, self.specimen.recipe)

    @cached_property
    def rounding(self) -> Effect:
        """How far plain float32 is off; at least a millionth of a spread."""
        plain = OrtModel.open(self.path, self.master, num_threads=1)
        return self.effect_of(plain, Precision.FP32).union(Effect(mean=1e-6, largest=1e-6))

    @cached_property
    def effects(self) -> dict[tuple[str, bool], Effect]:
        """What was asked of sabotages before, by their names and whether draws are calibrated."""
        return {}

    def exact(self, graph: onnx.ModelProto) -> Model:
        """A graph in float64, or in ONNX Runtime's float32 where there is no import."""
        path = self.folder / f"exact{next(_NUMBERS)}.onnx"
        onnx.save(graph, path)
        if isinstance(self._eager, FxModel):
            return FxModel.open(path, self.master, device="cpu", is_double=True)
        return OrtModel.open(path, self.master, num_threads=1)

    def recipe(self, precision: Precision) -> Recipe:
        """What proofs draw by."""
        wanted = self.specimen.recipe.model_copy(update={"precisions": (precision,)})
        recipe = with_accepted_blindness(wanted, self.master, has_calibration=True)
        if not precision.is_calibrated:
            return recipe
        return calibrated_recipe(recipe, self.master, self.given)

    def judged(
        self, engine: Model, kind: EngineKind | None, precision: Precision, seed: int = 7
    ) -> ProofVerdict:
        """What the proof says; a reference that is refused is told as such."""
        claim = Claim(
            master=self.master,
            recipe=self.recipe(precision),
            precision=precision,
            buckets=(self.specimen.bucket,),
            samples=self.given,
            seed=seed,
            master_path=self.path,
        )
        return judge(engine, self.reference(kind), claim)

    def built(
        self, kind: EngineKind | None, precision: Precision, graph: onnx.ModelProto | None = None
    ) -> Model:
        """An engine of the master, or of another graph in its place, built and loaded.

        Without a kind it is the typed graph in eager PyTorch: of fp16, which no kind has on a CPU.
        """
        workspace = self.folder / f"engine{next(_NUMBERS)}"
        workspace.mkdir()
        path, digest = self.path, self.master.digest
        if graph is not None:
            path = workspace / "model.onnx"
            onnx.save(graph, path)
            digest = sha256(path.read_bytes()).hexdigest()
        if kind is None:
            typed = workspace / TYPED_MODEL
            onnx.save(typed_graph(path, precision), typed)
            return _Eager(typed, self.master)
        plan = self._plan(kind, precision, path, digest)
        output = builder_for(kind).build(plan, workspace, lambda line: None)
        return _loaded(plan, output.files, workspace)

    def _plan(self, kind: EngineKind, precision: Precision, path: Path, digest: str) -> BuildSpec:
        device, builder = probe_device(), builder_for(kind)
        generation = device.parsed_generation
        calibration = None
        if precision.is_calibrated:
            folder = self.folder / "calibration"
            folder.mkdir(exist_ok=True)
            calibration = write_calibration(self.given, folder)
        key = BuildKey(
            master_digest=digest,
            kind=kind,
            precision=precision,
            buckets=(self.specimen.bucket,),
            builder_options=builder.options(generation, precision),
            generation=device.generation,
            toolchain=builder.toolchain(generation),
        )
        return BuildSpec(
            key=key,
            master=self.master,
            master_path=path,
            calibration_path=calibration,
            typed_graphs=self.folder / "typed",
        )


def _loaded(plan: BuildSpec, files: Mapping[str, Path], workspace: Path) -> Model:
    output = BuildResult(files=dict(files), needs_master=not files)
    spec = LoadSpec(
        manifest=manifest_of(plan, output),
        master=plan.master,
        directory=workspace,
        master_path=plan.master_path,
        device=probe_device(),
        num_threads=1,
    )
    return engine_class(plan.key.kind).load(spec)
