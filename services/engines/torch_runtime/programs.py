"""Reads exported torch programs: their weights, their device, the sizes they hold for."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.sym_node import SymNode

from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.recipe import DimRange

_LARGEST_SIZE = 2**31 - 1
# A range that torch inferred begins at 2: sizes 0 and 1 are not traced with, yet
# the code holds for 1.
_SMALLEST_FOUND = 2


def program_on(path: Path, device: str) -> ExportedProgram:
    """Load a program and move it, constants and all, to a device."""
    from torch.export.passes import move_to_device_pass

    with warnings.catch_warnings():
        # torch 2.11 about its own reading; which load of a process warns depends on their order.
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        program = torch.export.load(path)
    return program if device == "cpu" else move_to_device_pass(program, device)


def lifted_weights(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Weights and constants, of any shape, by name, in order of the graph's leading arguments."""
    known = {**program.constants, **program.state_dict}
    # A request's inputs have no target.
    names = [spec.target for spec in program.graph_signature.input_specs if spec.target]
    return {name: known[name] for name in names}


def traced_again(program: ExportedProgram, device: str) -> ExportedProgram:
    """The same program with symbols of its own.

    A loaded program keeps whole expressions among the symbols of its dimensions, on which
    Inductor fails (seen with torch 2.13).
    """
    shapes = tuple(
        {axis: Dim.AUTO for axis, size in enumerate(sizes) if isinstance(size, torch.SymInt)}
        for sizes in _input_sizes(program)
    )
    assert program.example_inputs is not None
    arguments = tuple(tensor.to(device) for tensor in program.example_inputs[0])
    return torch.export.export(program.module(), arguments, dynamic_shapes=shapes, strict=False)


def placeholders(program: ExportedProgram) -> list[torch.fx.Node]:
    """The graph's arguments: weights first, then inputs."""
    return [node for node in program.graph.nodes if node.op == "placeholder"]


def ranges_of(program: ExportedProgram, inputs: Sequence[TensorSpec]) -> dict[str, DimRange]:
    """The sizes of each dynamic dimension that a program was exported for."""
    ranges: dict[str, DimRange] = {}
    for spec, sizes in zip(inputs, _input_sizes(program), strict=True):
        for dim, size in zip(spec.shape, sizes, strict=True):
            if isinstance(dim, str):
                ranges[dim] = _range(program, size)
    return ranges


def _input_sizes(program: ExportedProgram) -> Iterator[Sequence[int | torch.SymInt]]:
    names = set(program.graph_signature.user_inputs)
    for node in placeholders(program):
        if node.name in names:
            yield node.meta["val"].shape


def _range(program: ExportedProgram, size: int | torch.SymInt) -> DimRange:
    if isinstance(size, int):
        # The graph holds for the traced size alone.
        return DimRange(min=size, opt=size, max=size)
    node: SymNode = size.node
    found = program.range_constraints[node.expr]
    low = 1 if 0 < found.lower <= _SMALLEST_FOUND else int(found.lower)
    high = int(found.upper) if found.upper < _LARGEST_SIZE else _LARGEST_SIZE
    return DimRange(min=low, opt=max(low, 1), max=high)
