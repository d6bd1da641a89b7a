"""A master as it is to be served: what the checks of a model that is added run."""

from dataclasses import dataclass
from pathlib import Path

from compiler_worker.memory import has_room_for
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Bucket, Recipe


@dataclass(frozen=True, kw_only=True)
class ServedMaster:
    """A master with the recipe and the shapes that a version is published with.

    Attributes:
        path: of its `model.onnx`.
        recipe: with buckets where the model does not compute all of those by default.
        remarks: what was taken without being asked for, a line each.
    """

    path: Path
    record: MasterRecord
    recipe: Recipe
    buckets: tuple[Bucket, ...]
    remarks: tuple[str, ...] = ()


def has_room(master_path: Path) -> bool:
    """Whether the memory of this host holds the master's weights twice."""
    files = (path for path in master_path.parent.iterdir() if path.is_file())
    return has_room_for(sum(path.stat().st_size for path in files))
