"""Every sabotage of one model in one precision, and what the proof says to each."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

import onnx

from compiler_worker.proof.claim import ProofVerdict
from compiler_worker.references.models import Model
from services.contracts.errors import SmeltError
from services.contracts.hardware.kinds import EngineKind, Precision
from tests.faults.saboteurs.effect import FAILED, NOTICED, ROUNDING_FACTOR, Effect
from tests.faults.saboteurs.engine_faults import EngineFault, Interface
from tests.faults.saboteurs.graph_faults import GRAPH_FAULTS, GraphFault, sabotaged
from tests.faults.saboteurs.kept_state import FAULTS_OF_ENGINES
from tests.faults.saboteurs.remembered import Remembered
from tests.faults.saboteurs.subject import Subject

REFUSED, BLIND, PROVEN = "refused", "blind, and refused unless accepted", "PROVEN"
NO_PART, NO_CHANGE = "no such part", "changes nothing"
ACCEPTED = "proven only where the recipe accepts the blindness"
WITHIN = "within the precision's own rounding"
NO_ENGINE = "refused when built"
Prove = Callable[[Model], ProofVerdict]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one sabotage.

    Attributes:
        what: one of the words above.
        effect: on float64; None where it was not asked.
        words: the proof's reason, or why there was no engine.
    """

    model: str
    precision: Precision
    sabotage: str
    what: str
    effect: Effect | None = None
    words: str = ""

    @property
    def identity(self) -> tuple[str, Precision, str]:
        """Which sabotage of which engine."""
        return self.model, self.precision, self.sabotage


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One model in one precision."""

    subject: Subject
    precision: Precision
    kind: EngineKind | None

    @cached_property
    def engine(self) -> Model:
        """The right engine."""
        return Remembered(self.subject.built(self.kind, self.precision))

    @cached_property
    def interface(self) -> Interface:
        """What faults may know."""
        return Interface(master=self.subject.master, recipe=self.subject.specimen.recipe)

    @cached_property
    def own(self) -> Effect:
        """How far the right engine is off, over draws that no proof makes."""
        return self.subject.effect_of(self.engine, self.precision)

    def outcome_of_engine(self, name: str, fault: EngineFault) -> Outcome:
        """A fault of an engine whose graph is right."""
        right = self.subject.exact_model
        return self._outcome(
            name,
            lambda: fault(right, self.interface),
            lambda: fault(self.engine, self.interface),
        )

    def outcome_of_graph(self, name: str, fault: GraphFault) -> Outcome:
        """A fault of the graph, built as the master is."""
        graph = sabotaged(onnx.load(self.subject.path), fault)
        if graph is None:
            return self._said(name, NO_PART)
        return self._outcome(
            name,
            lambda: self.subject.exact(graph),
            lambda: self.subject.built(self.kind, self.precision, graph),
        )

    def _outcome(self, name: str, exact: Callable[[], Model], make: Callable[[], Model]) -> Outcome:
        found = self._asked(name, exact)
        if found.is_within(self.subject.rounding):
            return self._said(name, NO_CHANGE, found)
        try:
            engine = make()
        except SmeltError as error:
            return self._said(name, NO_ENGINE, found, str(error))
        verdict = self.subject.judged(engine, self.kind, self.precision)
        if verdict.reason:
            is_blind = "is blind to" in verdict.reason
            return self._said(name, BLIND if is_blind else REFUSED, found, verdict.reason)
        return self._settled(name, found, verdict)

    def _settled(self, name: str, found: Effect, verdict: ProofVerdict) -> Outcome:
        """What a proof without a fault says of a sabotage that has one."""
        accepted = [fault for check in verdict.power for fault in check.accepted]
        is_small = found.mean < NOTICED and self.precision is not Precision.FP32
        if is_small or found.is_within(self.own, ROUNDING_FACTOR):
            return self._said(name, WITHIN, found)
        if accepted:
            return self._said(name, ACCEPTED, found, "blind to " + ", ".join(accepted))
        return self._said(name, PROVEN, found)

    def _asked(self, name: str, exact: Callable[[], Model]) -> Effect:
        """Float64's effects are the same in all precisions of the same draws."""
        known, key = self.subject.effects, (name, self.precision.is_calibrated)
        if key not in known:
            try:
                known[key] = self.subject.effect_of(exact(), self.precision)
            except SmeltError:
                known[key] = FAILED
        return known[key]

    def _said(self, name: str, what: str, found: Effect | None = None, words: str = "") -> Outcome:
        return Outcome(
            model=self.subject.name,
            precision=self.precision,
            sabotage=name,
            what=what,
            effect=found,
            words=words,
        )


def outcomes(trial: Trial, only: Collection[str] = ()) -> Iterator[Outcome]:
    """All sabotages of engines, then those of graphs; or only those of some names."""
    for name, fault in FAULTS_OF_ENGINES.items():
        if not only or name in only:
            yield trial.outcome_of_engine(name, fault)
    for name, graph_fault in GRAPH_FAULTS.items():
        if not only or name in only:
            yield trial.outcome_of_graph(name, graph_fault)
