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
        versions: schema versions of the op that `convert` implements. A version
            that a newer ONNX adds is refused until it is added here.
        attributes: every attribute understood; any other one refuses the node.
        carried: element types without kernels of their own (`dtypes.CARRIED`) that
            `convert` takes as they are carried; any other one refuses the node.
        convert: emits the op for values on the device.
        convert_on_host: computes the op when every input is shape arithmetic.
    """

    versions: frozenset[int]
    attributes: frozenset[str]
    carried: frozenset[torch.dtype]
    convert: Convert
    convert_on_host: ConvertOnHost | None = None


CONVERTERS: dict[tuple[str, str], list[Converter]] = {}


def register(
    op_type: str,
    convert: Convert,
    *,
    versions: Sequence[int],
    attributes: Sequence[str] = (),
    host: ConvertOnHost | None = None,
    carried: Collection[torch.dtype] = (),
    domain: str = "",
) -> None:
    """Add one row to the table; two rows of an op may not share a version.

    Args:
        op_type: name of the op.
        convert: its device half.
        versions: schema versions that `convert` implements.
        attributes: every attribute that it reads or may ignore.
        host: its host half; None where shapes are never computed by it.
        carried: types of `dtypes.CARRIED` that `convert` takes.
        domain: of the op; "" is ai.onnx.

    Raises:
        ValueError: a version of the op is in the table already.
    """
    rows = CONVERTERS.setdefault((domain, op_type), [])
    taken = {version for row in rows for version in row.versions}
    if taken & set(versions):
        raise ValueError(f"{op_type}: versions {sorted(taken & set(versions))} registered twice")
    rows.append(
        Converter(
            versions=frozenset(versions),
            attributes=frozenset(attributes),
            carried=frozenset(carried),
            convert=convert,
            convert_on_host=host,
        )
    )


def converter(
    op_type: str,
    *,
    versions: Sequence[int],
    attributes: Sequence[str] = (),
    host: ConvertOnHost | None = None,
    carried: Collection[torch.dtype] = (),
) -> Callable[[C], C]:
    """Register the decorated function as the device half of an op of ai.onnx.

    Args:
        op_type: name of the op.
        versions: schema versions that the function implements.
        attributes: every attribute that it reads or may ignore.
        host: its host half; None where shapes are never computed by it.
        carried: types of `dtypes.CARRIED` that the function takes.

    Raises:
        ValueError: a version of the op is in the table already.
    """

    def decorate(convert: C) -> C:
        register(
            op_type,
            convert,
            versions=versions,
            attributes=attributes,
            host=host,
            carried=carried,
        )
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
