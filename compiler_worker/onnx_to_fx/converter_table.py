"""The table of converters: which ops, in which versions, with which attributes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import torch

from compiler_worker.onnx_to_fx.values import AnyValue, HostValue

if TYPE_CHECKING:
    from compiler_worker.onnx_to_fx.op import Op

Result: TypeAlias = "AnyValue | Sequence[AnyValue | None]"
Convert: TypeAlias = "Callable[[Op], Result]"
C = TypeVar("C", bound=Convert)
# None: the host cannot do it (a value it would have to branch on is symbolic).
ConvertOnHost: TypeAlias = "Callable[[Op], HostValue | Sequence[HostValue] | None]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Converter:
    """How one op is translated.

    Attributes:
        versions: schema versions of the op that `convert` implements, with all of their
            attributes. A version that a newer ONNX adds is refused until it is added here.
        carried: element types without kernels of their own (`dtypes.CARRIED`) that
            `convert` takes as they are carried; any other one refuses the node.
        convert: emits the op for values on the device.
        convert_on_host: computes the op when every input is shape arithmetic.
    """

    versions: frozenset[int]
    carried: frozenset[torch.dtype]
    convert: Convert
    convert_on_host: ConvertOnHost | None = None


CONVERTERS: dict[tuple[str, str], list[Converter]] = {}


def converter(
    op_type: str,
    *,
    versions: Sequence[int],
    host: ConvertOnHost | None = None,
    carried: Collection[torch.dtype] = (),
    domain: str = "",
) -> Callable[[C], C]:
    """Register the decorated function as the device half of an op.

    Args:
        op_type: name of the op.
        versions: schema versions that the function implements; no two functions have one of them.
        host: its host half; None where shapes are never computed by it.
        carried: types of `dtypes.CARRIED` that the function takes.
        domain: of the op; "" is ai.onnx.

    Raises:
        ValueError: a version of the op is in the table already.
    """

    def decorate(convert: C) -> C:
        rows = CONVERTERS.setdefault((domain, op_type), [])
        taken = {version for row in rows for version in row.versions} & set(versions)
        if taken:
            raise ValueError(f"{op_type}: versions {sorted(taken)} registered twice")
        row = Converter(
            versions=frozenset(versions),
            carried=frozenset(carried),
            convert=convert,
            convert_on_host=host,
        )
        rows.append(row)
        return convert

    return decorate


def find(domain: str, op_type: str, version: int) -> Converter | None:
    """Return the row for one schema version, None when there is none.

    Args:
        domain: "" is ai.onnx.
        op_type: name of the op.
        version: of the op's schema, not of the opset.
    """
    for row in CONVERTERS.get((domain, op_type), []):
        if version in row.versions:
            return row
    return None
