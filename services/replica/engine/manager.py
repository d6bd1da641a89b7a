"""The engines of one model version on one device: what is loaded first, and what next.

Everything here blocks and runs in a thread of its own, while an older engine serves on.
"""

import time
from collections.abc import Callable, Sequence

from services.contracts.errors import EngineError
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.model.manifest import ModelVersion
from services.contracts.registry.registry import Registry
from services.contracts.security.signing import TrustRoot
from services.engines.caches.passed_checks import name_here
from services.replica.engine.checked_fallback import CheckedFallback
from services.replica.engine.checker import EngineChecker
from services.replica.engine.choice import EngineChoice, Offer
from services.replica.engine.failure_notes import FailureNotes
from services.replica.engine.failures import EngineFailures
from services.replica.engine.loaded_engine import FallbackLoader, LoadedEngine
from services.replica.engine.loading import EngineLoader


class EngineManager:
    """Chooses and loads engines of one model version for one device."""

    def __init__(
        self,
        registry: Registry,
        model: ModelVersion,
        device: DeviceFacts,
        load_fallback: FallbackLoader,
        checker: EngineChecker,
        *,
        num_threads: int = 0,
        trust: TrustRoot | None = None,
        notes: FailureNotes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is read yet.

        Args:
            registry: where engines and masters are fetched from.
            model: the version that is served.
            device: that engines run on.
            load_fallback: compiles the master's graph with torch.
            checker: runs code of an engine in a child process first.
            num_threads: of an engine on the CPU; 0 leaves it to its library.
            trust: who may sign engines; None takes unsigned ones too.
            notes: failures that all replicas of this machine share; by default of this process
                alone.
            clock: seconds of a monotonic clock.
        """
        self._registry = self._published = registry
        self._model = model
        self._device = device
        self._trust = trust
        fallback = CheckedFallback(registry, load_fallback, num_threads, clock)
        self._loader = EngineLoader(
            registry, model, device, fallback, checker, num_threads=num_threads, clock=clock
        )
        self._failures = EngineFailures(
            lambda engine: name_here(engine.manifest, device, num_threads),
            notes or FailureNotes(None),
            clock,
        )
        self._first: EngineChoice | None = None

    def announce(self, document_keys: Sequence[str]) -> None:
        """From now on these are all documents of the master's engines; none: list the store."""
        self._published = (
            self._registry.with_documents(document_keys) if document_keys else self._registry
        )

    def load(self) -> LoadedEngine:
        """The best engine that loads, or the fallback with the reason, as soon as there is one.

        Raises:
            EngineError: not even the fallback could be loaded.
            StoreError: the store cannot be read.
        """
        self._first = self.choose(None)
        loaded = self._first.load(is_urgent=True)
        if loaded is None:
            raise EngineError(f"model '{self._model.name}': no engine to load")
        return loaded

    def refuse_first(self, words: str) -> None:
        """`load` hangs: no replica of this machine takes that engine for a while."""
        if self._first and self._first.loading:
            self._failures.add(self._first.loading, EngineError(words))

    def choose(self, current_digest: str | None) -> EngineChoice:
        """Look once at what is published, for what to serve with in place of the engine in use.

        It is what was announced last; the store is listed only before the first announcement.

        Args:
            current_digest: the engine in use, "" for the fallback, None for nothing that may stay.

        Raises:
            StoreError: the store cannot be read.
        """
        master = self._model.master
        published = self._published
        engines = published.engines(master.digest)
        offer = Offer(
            engines=engines,
            # Before a file of an engine is fetched, let alone read.
            untrusted=published.untrusted(engines, master, self._trust),
            runs=published.joint_runs(master.digest, self._trust),
        )
        return EngineChoice(
            offer, self._model, self._device, self._loader, self._failures, current_digest
        )

    def mark_failed(self, digest: str, words: str) -> None:
        """An engine, or the fallback (""), failed: not chosen again here, by others for a while."""
        self._failures.mark_failed(digest, words)
