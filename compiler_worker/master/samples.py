"""Real inputs that a model version brings for its task: an .npz file, one array per input.

Legend: samples are [rows, ...]; what is read may be of any shape until it is checked.
"""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from services.contracts.errors import InvalidModelError, InvalidRequestError
from services.contracts.kserve.byte_strings import BYTES, STRING_DTYPE, strings_from_array
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array, check_array
from services.contracts.model.recipe import InputRecipe, Recipe
from services.contracts.model.value_limits import ValueLimits

SAMPLES_FILE = "samples.npz"
# Of an input, for proofs: they lie in the recipe, which is read often.
MAX_WORDS = 256
MAX_WORD_CHARACTERS = 1000


def read_samples(path: Path) -> dict[str, Array]:
    """The arrays of a samples file, by input name; raises InvalidModelError."""
    try:
        return read_arrays(path)
    except ValueError as error:
        raise InvalidModelError(f"samples {path}: {error}") from error


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file, by name; raises ValueError with what was expected."""
    try:
        # numpy takes any other file for a pickle, and advises to load it as one.
        if not zipfile.is_zipfile(path):
            raise ValueError(f"{_found(path)} found")
        with np.load(path, allow_pickle=False) as archive:
            return {name: strings_from_array(archive[name]) for name in archive.files}
    except (
        InvalidRequestError,
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        zipfile.BadZipFile,
    ) as error:
        words = (error.strerror if isinstance(error, OSError) else "") or error
        raise ValueError(
            f"{words}; expected a file of arrays by input name, written by "
            "numpy.savez(FILE, input_name=array, ...)"
        ) from error


def recipe_with_words(
    recipe: Recipe, samples: Mapping[str, Array] | None, inputs: Sequence[TensorSpec]
) -> Recipe:
    """The recipe; where it names no strings for an input, proofs draw those of the samples.

    Args:
        recipe: of the model version.
        samples: checked arrays by input name; None changes nothing.
        inputs: the model's specs.
    """
    if samples is None:
        return recipe
    drawn = dict(recipe.inputs)
    for spec in inputs:
        known = drawn.get(spec.name, InputRecipe())
        if spec.datatype == BYTES and known.values is None:
            words = _words(samples[spec.name])
            drawn[spec.name] = known.model_copy(update={"values": words or None})
    return recipe.model_copy(update={"inputs": drawn})


def _words(strings: Array) -> tuple[str, ...]:
    """The first different ones that are not too long."""
    different = dict.fromkeys(strings.ravel().tolist())
    return tuple(word for word in different if len(word) <= MAX_WORD_CHARACTERS)[:MAX_WORDS]


def _found(path: Path) -> str:
    """What is at a path instead of an .npz file, in a few words; raises OSError."""
    with path.open("rb") as file:
        start = file.read(16)
    return f"a file that begins with {start!r}" if start else "an empty file"


def write_samples(samples: Mapping[str, Array], folder: Path) -> Path:
    """Write a samples file; equal samples give equal bytes."""
    path = folder / SAMPLES_FILE
    # As text: numpy would write objects as code that runs when it is read.
    plain = {
        name: array.astype(np.str_) if array.dtype == STRING_DTYPE else array
        for name, array in samples.items()
    }
    np.savez_compressed(path, allow_pickle=False, **plain)
    return path


def check_samples(
    samples: Mapping[str, Array],
    inputs: Sequence[TensorSpec],
    limits: Mapping[str, ValueLimits] | None = None,
) -> None:
    """Compare samples with a model's inputs, and with the limits of requests where they are known.

    Args:
        samples: arrays by input name, one row per sample.
        inputs: the model's specs.
        limits: by input name, what a request may hold; None or a missing name checks no values.

    Raises:
        InvalidModelError: a name, datatype or rank that is not the model's, integers that a
            request may not hold, inputs with different numbers of samples, no rows, or no numbers.
    """
    wanted = [spec.name for spec in inputs]
    if sorted(samples) != sorted(wanted):
        raise InvalidModelError(
            f"samples for {sorted(samples)} found, one array for each of {wanted} wanted"
        )
    try:
        for spec in inputs:
            check_array(spec, samples[spec.name])
    except InvalidRequestError as error:
        raise InvalidModelError(f"samples: {error}") from error
    for name, allowed in (limits or {}).items():
        if (place := allowed.first_outside(samples[name])) is not None:
            raise InvalidModelError(
                f"samples: input '{name}' at {list(place)} holds {samples[name][place]}, values "
                f"from {allowed.span_at(place)}{allowed.source} wanted: such a request is refused"
            )
    counts = {name: array.shape[:1] for name, array in samples.items()}
    if len(set(counts.values())) != 1:
        raise InvalidModelError(f"samples: expected equal leading dimensions, found {counts}")
    if (0,) in counts.values():
        raise InvalidModelError("samples: no rows found, one at least wanted")
    for name, array in samples.items():
        if array.dtype.kind == "f" and array.size and not np.isfinite(array).any():
            raise InvalidModelError(
                f"samples: input '{name}' holds NaN and Inf alone: nothing to compare engines by"
            )
