"""The tensors and sizes that a Triton configuration states, by the names of the master's."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from services.contracts.errors import InvalidModelError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.default_buckets import dynamic_dims
from services.contracts.model.dim_limits import DimLimits
from services.contracts.model.recipe import Bucket, DimRange
from services.pb import open_inference_v2_pb2 as pb

_FLAGS: Final = ("allow_ragged_batch", "is_shape_tensor", "optional")


def tensor_words(
    config: pb.ModelConfig, inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec]
) -> Iterator[str]:
    """A line for each thing that is set for a tensor and left out.

    Args:
        config: of a model.
        inputs: of the master.
        outputs: of the master.

    Raises:
        InvalidModelError: a tensor has another name or datatype in the ONNX file, as Triton says.
    """
    of_file = {spec.name: spec for spec in outputs}
    for tensor in config.output:
        _check_tensor("output", tensor, of_file)
    named = {tensor.name for tensor in config.output} or of_file.keys()
    for name in of_file:
        if name not in named:
            yield f"output {name}: not in the configuration, so Triton does not give it: served too"
    of_file = {spec.name: spec for spec in inputs}
    for given in config.input:
        _check_tensor("input", given, of_file)
        yield from (
            f"{given.name}: {flag} skipped: requests have the ONNX file's inputs, each whole"
            for flag in _FLAGS
            if getattr(given, flag)
        )


def _check_tensor(
    kind: str, tensor: pb.ModelInput | pb.ModelOutput, of_file: Mapping[str, TensorSpec]
) -> None:
    spec = of_file.get(tensor.name)
    type_name = pb.DataType.Name(tensor.data_type)
    known = f"TYPE_{spec.datatype}".replace("TYPE_BYTES", "TYPE_STRING") if spec else ""
    if spec is None or type_name not in ("TYPE_INVALID", known):
        have = ", ".join(f"{each.name} {each.datatype}" for each in of_file.values())
        raise InvalidModelError(
            f"config.pbtxt: {kind} '{tensor.name}' of {type_name} found, and {have} in the ONNX "
            "file: correct either"
        )


def config_limits(config: pb.ModelConfig, inputs: Iterable[TensorSpec]) -> dict[str, DimLimits]:
    """Rows up to max_batch_size, and sizes that the configuration fixes.

    Raises:
        InvalidModelError: an input has another rank than the configuration says, or two inputs
            fix one dimension at different sizes.
    """
    specs = {spec.name: spec for spec in inputs}
    limits: dict[str, DimLimits] = {}
    for tensor in config.input:
        if spec := specs.get(tensor.name):
            shape = zip(spec.shape, _shape(config, tensor, spec), strict=True)
            for dim, size in shape:
                if isinstance(dim, str) and size > 0:
                    fixed = DimLimits(min=size, max=size)
                    if limits.setdefault(dim, fixed) != fixed:
                        raise InvalidModelError(
                            f"config.pbtxt: input '{tensor.name}': dims fix '{dim}', which the "
                            f"ONNX file has in several inputs, at {size}, those of another input "
                            f"at {limits[dim].max}: give both the same, or -1"
                        )
    if config.max_batch_size:
        rows = {spec.shape[0] for spec in specs.values() if spec.shape}
        full = DimLimits(min=1, max=config.max_batch_size)
        limits |= {dim: full for dim in rows if isinstance(dim, str)}
    return limits


def config_buckets(
    config: pb.ModelConfig, inputs: Sequence[TensorSpec], limits: Mapping[str, DimLimits]
) -> tuple[Bucket, ...]:
    """A bucket for each warm-up, else for each preferred number of rows; none by default.

    None where a size is in neither: then those by default serve, as far as the model computes
    them.

    Args:
        config: of a model.
        inputs: of the master.
        limits: what `config_limits` found.

    Raises:
        InvalidModelError: a size is none that max_batch_size and dims have.
    """
    dims = dynamic_dims(inputs)
    fixed = {name: limit.max for name, limit in limits.items()}
    # Triton takes every number of rows up to the largest.
    rows = {name: limit.max for name, limit in limits.items() if limit.min < limit.max}
    boxes = [_warmed(config, warmup, inputs) for warmup in config.model_warmup]
    if not boxes and fixed.keys() >= set(dims):
        preferred = config.dynamic_batching.preferred_batch_size
        boxes = [fixed | dict.fromkeys(rows, num) for num in preferred]
    boxes = [box for box in boxes if box.keys() == set(dims)]
    if boxes:
        boxes.append({dim: max(box[dim] for box in boxes) for dim in dims} | rows)
    return tuple(
        _bucket(dict(box), limits)
        for box in dict.fromkeys(tuple(sorted(box.items())) for box in boxes)
        if box
    )


def _bucket(sizes: Mapping[str, int], limits: Mapping[str, DimLimits]) -> Bucket:
    for name, size in sizes.items():
        if (limit := limits.get(name)) and not limit.min <= size <= limit.max:
            raise InvalidModelError(
                f"config.pbtxt: model_warmup or preferred_batch_size has {size} of '{name}', and "
                f"max_batch_size and dims have {limit.min} to {limit.max}: correct either"
            )
    least = {name: limits[name].min if name in limits else 1 for name in sizes}
    return Bucket(dims={name: DimRange(min=least[name], opt=n, max=n) for name, n in sizes.items()})


def _warmed(
    config: pb.ModelConfig, warmup: pb.ModelWarmup, inputs: Sequence[TensorSpec]
) -> dict[str, int]:
    """Size of each dynamic dimension that a warm-up names."""
    sizes: dict[str, int] = {}
    for spec in inputs:
        first = [warmup.batch_size] if config.max_batch_size else []
        shape = [*first, *warmup.inputs[spec.name].dims] if spec.name in warmup.inputs else []
        named = zip(spec.shape, shape, strict=False)
        sizes |= {dim: max(size, 1) for dim, size in named if isinstance(dim, str)}
    return sizes


def _shape(config: pb.ModelConfig, tensor: pb.ModelInput, spec: TensorSpec) -> Sequence[int]:
    """The whole shape, with the dimension of rows that Triton leaves out."""
    dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
    shape = [*([-1] if config.max_batch_size else []), *dims]
    if len(shape) != len(spec.shape):
        raise InvalidModelError(
            f"config.pbtxt: input '{tensor.name}' is {shape} with the rows of max_batch_size "
            f"{config.max_batch_size}, and {list(spec.wire_shape)} in the ONNX file: correct either"
        )
    return shape
