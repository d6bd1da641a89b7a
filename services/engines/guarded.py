"""What every engine does around its library's call: checks, one caller at a time, closing."""

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from services.contracts.errors import EngineError, InputRefusedError, SmeltError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, Array
from services.contracts.model.recipe import Bucket
from services.engines.request_check import Sizes, checked_arrays
from services.engines.shapes import dims_that_may_be_empty

# What libraries raise of values that a request brings: ONNX Runtime and torch of an index outside
# of a table, and Inductor's kernels, which have no class for it.
_OF_VALUES: Final = frozenset({"InvalidArgument", "IndexError"})
_WORDS_OF_VALUES: Final = ("index out of bounds", "index out of range", "Unknown Category")
_PATHS: Final = re.compile(r"(?:/[^\s/:,'\"]+){2,}")


class GuardedEngine(ABC):
    """Base of all engines, for arrays of any shape; a kind writes `_compute` and `_release` only.

    Libraries differ in what they do with a wrong shape, with two threads, or after they
    were closed; here all engines answer alike. Calls from several threads wait in line.

    Attributes:
        name: what computes, for people.
    """

    name: str

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        buckets: Sequence[Bucket],
    ) -> None:
        """Check requests against the model's tensors.

        Args:
            inputs: name, type and shape of each input, in order.
            outputs: the same of each output.
            buckets: ranges of sizes that the engine is proven for.
        """
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)
        self._may_be_empty = dims_that_may_be_empty(buckets)
        self._lock = threading.Lock()
        self._is_closed = False

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute all outputs; the arrays belong to the caller.

        Raises:
            InvalidRequestError: the inputs do not fit the model or the engine's buckets.
            InputRefusedError: the library refuses their values.
            EngineError: the engine is closed, or its library failed.
        """
        # Before the lock: a request that is wrong waits for no other.
        arrays, sizes = checked_arrays(self._inputs, inputs, self._may_be_empty)
        with self._lock:
            # Under the lock: it may have been closed while this call waited.
            if self._is_closed:
                raise EngineError(f"{type(self).__name__} is closed: load it again to run it")
            try:
                results = self._compute(arrays, sizes)
            except SmeltError:
                raise
            except Exception as error:
                raise _run_error(type(self).__name__, error) from error
        return self._named(results)

    def close(self) -> None:
        """Release what the library holds; a second call does nothing."""
        with self._lock:
            if not self._is_closed:
                # First: a library that fails to release is not called again.
                self._is_closed = True
                self._release()

    def num_kernels(self, _: Mapping[str, Array]) -> int:
        """How many a call of these inputs runs on a CPU; 0 where the library does not say."""
        return 0

    @abstractmethod
    def _compute(self, arrays: list[Array], sizes: Sizes) -> Sequence[Array]:
        """Run on checked arrays in input order; results in output order, owned by the caller."""

    @abstractmethod
    def _release(self) -> None:
        """Drop references to the library's objects; called once."""

    def _named(self, results: Sequence[Array]) -> dict[str, Array]:
        named: dict[str, Array] = {}
        for spec, array in zip(self._outputs, results, strict=True):
            # Clients read the bytes by the model's datatype alone: others would be wrong numbers.
            is_right = array.dtype == NUMPY_FROM_DATATYPE[spec.datatype]
            if not is_right or array.ndim != len(spec.shape):
                raise EngineError(
                    f"{type(self).__name__}: output '{spec.name}' has datatype {array.dtype}, "
                    f"shape {array.shape}, the model promises {spec.datatype}, {spec.shape}"
                )
            named[spec.name] = array
        return named


@contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Turn whatever a library raises into EngineError with its words; ours pass unchanged."""
    try:
        yield
    except SmeltError:
        raise
    except Exception as error:
        raise EngineError(f"{what}: {type(error).__name__}: {error}") from error


def _run_error(engine: str, error: Exception) -> EngineError:
    name = type(error).__name__
    words = str(error)
    is_of_values = name in _OF_VALUES or any(each in words for each in _WORDS_OF_VALUES)
    if is_of_values:
        # It goes to the client, who has no use for files of this host.
        return InputRefusedError(f"{engine} failed to run: {name}: {_PATHS.sub('...', words)}")
    return EngineError(f"{engine} failed to run: {name}: {words}")
