"""Real inputs that a model version brings for its task: an .npz file, one array per input."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from services.contracts.errors import InvalidModelError, InvalidRequestError
from services.contracts.tensors import Array, TensorSpec

SAMPLES_FILE = "samples.npz"


def read_samples(path: Path) -> dict[str, Array]:
    """The arrays of a samples file, by input name; raises InvalidModelError."""
    try:
        return read_arrays(path)
    except ValueError as error:
        raise InvalidModelError(f"samples {path}: {error}") from error


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file, by name; raises ValueError that says what was expected."""
    try:
        # numpy takes any other file for a pickle, and advises to load it as one.
        if not zipfile.is_zipfile(path):
            raise ValueError(f"{_found(path)} found")
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{error}; expected a file of arrays by input name, written by "
            "numpy.savez(FILE, input_name=array, ...)"
        ) from error


def _found(path: Path) -> str:
    """What is at a path instead of an .npz file, in a few words; raises OSError."""
    with path.open("rb") as file:
        start = file.read(16)
    return f"a file that begins with {start!r}" if start else "an empty file"


def write_samples(samples: Mapping[str, Array], folder: Path) -> Path:
    """Write a samples file; equal samples give equal bytes."""
    path = folder / SAMPLES_FILE
    np.savez_compressed(path, allow_pickle=False, **samples)
    return path


def check_samples(samples: Mapping[str, Array], inputs: Sequence[TensorSpec]) -> None:
    """Compare samples with a model's inputs.

    Raises:
        InvalidModelError: a name, datatype or rank that is not the model's, or inputs with
            different numbers of samples.
    """
    wanted = [spec.name for spec in inputs]
    if sorted(samples) != sorted(wanted):
        raise InvalidModelError(
            f"samples for {sorted(samples)} found, one array for each of {wanted} wanted"
        )
    try:
        for spec in inputs:
            spec.check(samples[spec.name])
    except InvalidRequestError as error:
        raise InvalidModelError(f"samples: {error}") from error
    counts = {name: array.shape[:1] for name, array in samples.items()}
    if len(set(counts.values())) != 1:
        raise InvalidModelError(f"samples: expected equal leading dimensions, found {counts}")
