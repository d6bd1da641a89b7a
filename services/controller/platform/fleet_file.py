"""A fleet description file: generations that the fleet has, or is going to have.

    pools:
      - generation: cuda-sm89
      - generation: cuda-sm90
        driver: "580.95"

What can be built ahead of time for them is built before their first node is there.
"""

from pathlib import Path

import yaml
from pydantic import ValidationError, field_validator

from services.contracts.errors import InvalidRequestError, NotReadyError
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.document import Document
from services.contracts.model.yaml_text import value_from_yaml
from services.controller.interfaces import NodePool


class _Pool(NodeClass):
    @field_validator("generation")
    @classmethod
    def _is_generation(cls, text: str) -> str:
        try:
            return str(Generation.parse(text))
        except InvalidRequestError as error:
            raise ValueError(str(error)) from error


class _FleetFile(Document):
    pools: tuple[_Pool, ...] = ()


class FleetFile:
    """A NodeSource that reads its file each time; none of its pools has nodes."""

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
        self._path = path

    def pools(self) -> list[NodePool]:
        """The file's pools, in its order.

        Raises:
            NotReadyError: it is missing or wrong; with the place and what is expected.
        """
        try:
            described = _FleetFile.model_validate(
                value_from_yaml(self._path.read_text("utf-8")) or {}
            )
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise NotReadyError(f"fleet file {self._path} cannot be read: {error}") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "document"
            raise NotReadyError(
                f"fleet file {self._path}: {where}: {first['msg']}; expected pools, each with a "
                f"generation and, where known, {', '.join(list(_Pool.model_fields)[1:])}"
            ) from error
        return [
            NodePool(
                node_class=NodeClass(**pool.model_dump()),
                source="file",
                num_nodes=0,
                names=(f"{self._path.name}:pools.{index}",),
            )
            for index, pool in enumerate(described.pools)
        ]
