"""Which engine a replica takes, by one look at the store: the best that can be had and loads.

Engines, their signatures and their joint runs are read once for it, and the files of an engine
are compared with their digests once: what was fetched is what is loaded. Whatever goes wrong
with one engine, the next best one is tried, and after the last one the fallback, each time with
a reason that is logged, counted and reported.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from services.contracts.hardware.facts import DeviceFacts
from services.contracts.model.manifest import ModelVersion, PublishedEngine
from services.contracts.selection.joint_run import JointRun
from services.contracts.selection.selection import GATED, Selection, select
from services.replica.engine.failures import EngineFailures
from services.replica.engine.loaded_engine import LoadedEngine
from services.replica.engine.loading import EngineLoader, FetchedEngine

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What a store has of one master at one moment.

    Attributes:
        untrusted: why engines lack a trusted signature, by digest.
        runs: joint runs that may be believed.
    """

    engines: Sequence[PublishedEngine]
    untrusted: Mapping[str, str]
    runs: Sequence[JointRun]


class EngineChoice:
    """The engines of one offer, from the best one down; used by one thread at a time.

    Attributes:
        offer: what is chosen from.
        loading: the published engine that was begun with last; None when that is the fallback.
    """

    def __init__(
        self,
        offer: Offer,
        model: ModelVersion,
        device: DeviceFacts,
        loader: EngineLoader,
        failures: EngineFailures,
        current_digest: str | None,
    ) -> None:
        """Nothing is fetched yet.

        Args:
            offer: what is chosen from.
            model: the version that is served.
            device: that the engine is to run on.
            loader: fetches and loads an engine.
            failures: engines that are not tried now.
            current_digest: of the engine in use; "" for the fallback, None if nothing may stay.
        """
        self.offer = offer
        self.loading: PublishedEngine | None = None
        self._model = model
        self._device = device
        self._loader = loader
        self._failures = failures
        self._current_digest = current_digest
        self._failed = failures.known(offer.engines, current_digest)
        self._fetched: FetchedEngine | None = None

    @property
    def fetched_digest(self) -> str:
        """Of the engine that `fetch` found; "" where none is to be loaded."""
        return self._fetched.engine.digest if self._fetched else ""

    def fetch(self) -> bool:
        """Have the files here of the best engine that can be had; False when it is in use.

        True also when only the fallback can be had, and another engine is in use. When not even
        that can, what is in use stays.
        """
        while (best := self._selection(self._failed).engine) is not None:
            if best.digest == self._current_digest:
                return False
            try:
                self._fetched = self._loader.fetch(best)
            except Exception as error:
                self._failed[best.digest] = self._failures.add(best, error)
            else:
                return True
        return "" not in (self._current_digest, *self._failed)

    def load(self, *, is_urgent: bool = False) -> LoadedEngine | None:
        """The best engine that loads, or the fallback, warm; None when it is in use.

        Args:
            is_urgent: nothing serves, so that what answers at once is as good as the fallback.

        Raises:
            Exception: no engine is left, and the fallback cannot be loaded, whatever the reason.
        """
        while self._fetched or self.fetch():
            loaded = self.load_fetched() if self._fetched else self.load_fallback(is_urgent)
            if loaded:
                return loaded
        return None

    def load_fetched(self) -> LoadedEngine | None:
        """The published engine that `fetch` found, warm; None when it does not load."""
        fetched = self._fetched
        self._fetched = None
        assert fetched is not None, "ask `is_fallback` before"
        engine = self.loading = fetched.engine
        # It may have failed in service since the offer was read: a fallback compiles for minutes.
        if words := self._failures.lasting(engine.digest):
            self._failed[engine.digest] = words
            return None
        try:
            loaded = self._loader.load(fetched)
        except Exception as error:
            # Anything may come out of a library that reads foreign bytes, and nothing
            # of it may keep the replica from the next engine.
            self._failed[engine.digest] = self._failures.add(engine, error)
            return None
        self._failures.loaded(engine.digest)
        return replace(loaded, detail=self._passed_over(engine.digest))

    def load_fallback(self, is_urgent: bool = False) -> LoadedEngine | None:
        """The fallback; None when there is none and slower engines are to be tried.

        Raises:
            Exception: there is none, nor a slower engine, whatever the reason.
        """
        self.loading = None
        selection = self._selection(self._failed)
        detail = _explanation(selection, self._failed)
        # Other engines may have been passed over for other reasons, which come first.
        is_slower_there = any(each.reason in GATED for each in selection.rejections)
        if is_urgent and (interim := self._loader.load_interim(selection.fallback_reason, detail)):
            return interim
        try:
            loaded = self._loader.load_fallback(selection.fallback_reason, detail)
        except Exception as error:
            self._failed[""] = self._failures.postpone("", error)
            if is_slower_there:
                return None
            raise
        self._failures.loaded("")
        if loaded.refutation is None or not is_slower_there:
            return loaded
        loaded.engine.close()
        # Not failed: what is in its place serves after all where no slower engine loads.
        logger.error("fallback unavailable, trying slower engines: %s", loaded.refutation.words)
        self._failures.is_fallback_wrong = True
        return None

    @property
    def is_current_refused(self) -> bool:
        """Whether the engine in use may serve no longer: its proof or its signature is refused."""
        reasons = {each.digest: each.reason for each in self._selection({}).rejections}
        reason = reasons.get(self._current_digest or "")
        return reason is not None and reason not in GATED

    def load_in_place(self) -> LoadedEngine | None:
        """ONNX Runtime, in the place of an engine that may serve no longer; None without it."""
        selection = self._selection(self._failed)
        detail = _explanation(selection, self._failed)
        loaded = self._loader.load_interim(selection.fallback_reason, detail)
        if loaded is None:
            logger.error(
                "engine %s is no longer permitted (proof or signature) and still serves: no "
                "replacement is available: %s",
                self._current_digest,
                detail,
            )
        return loaded

    @property
    def is_fallback(self) -> bool:
        """Whether what `fetch` found is the fallback, which takes minutes to load."""
        return self._fetched is None

    def explained(self, fallback: LoadedEngine) -> LoadedEngine:
        """The fallback in use with why nothing better serves: that changed since it loaded."""
        selection = self._selection(self._failed)
        # Until it is compiled after all: each try would be two changes otherwise.
        if fallback.is_interim and (words := self._failed.get("")):
            fallback = fallback.after_failure(words)
        if selection.fallback_reason is None:
            return fallback
        detail = _explanation(selection, self._failed)
        return replace(fallback, fallback_reason=selection.fallback_reason, detail=detail)

    def _selection(self, failed: Mapping[str, str]) -> Selection:
        # What engines are slower than may not be there: they are the best that this model has.
        is_gated = "" not in self._failed and not self._failures.is_fallback_wrong
        return select(
            self.offer.engines,
            self._device,
            version=self._model if is_gated else _without_gate(self._model),
            failed_digests=frozenset(failed),
            untrusted=self.offer.untrusted,
            runs=self.offer.runs,
            serving=self._current_digest or "",
        )

    def _passed_over(self, digest: str) -> str:
        """In words, the better engines that failed here."""
        selection = self._selection({})
        ranked = [each.digest for each in (selection.engine, *selection.runners_up) if each]
        better = ranked[: ranked.index(digest)] if digest in ranked else []
        return "; ".join(f"{each[:12]}: {self._failed.get(each, '')}" for each in better)


def _without_gate(model: ModelVersion) -> ModelVersion:
    recipe = model.recipe.model_copy(update={"must_beat_fallback": False})
    return model.model_copy(update={"recipe": recipe})


def _explanation(selection: Selection, failed: Mapping[str, str]) -> str:
    """Why no published engine serves, in words: one clause for each engine."""
    reason = selection.fallback_reason.value if selection.fallback_reason else "unknown"
    clauses = [
        f"{rejection.digest[:12]}: {failed.get(rejection.digest, rejection.detail)}"
        for rejection in selection.rejections
    ]
    return f"{reason} ({'; '.join(clauses)})" if clauses else reason
