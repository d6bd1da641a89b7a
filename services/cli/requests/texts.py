"""The texts of `smelt infer --text`, as the model takes them."""

from collections.abc import Sequence

import numpy as np

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.byte_strings import STRING_DTYPE
from services.contracts.kserve.tensors import Array
from services.contracts.model.text_input import TEXT
from services.pb import open_inference_v2_pb2 as pb


def array_from_texts(texts: Sequence[str], model: pb.ModelMetadataResponse) -> Array:
    """BYTES [B, 1], or [B, 2] of pairs, each being two texts that follow each other.

    A model that takes none gets [B, 1] too: its replica refuses it, and says what to do.

    Raises:
        InvalidRequestError: half of a pair is missing.
    """
    shapes = [tuple(each.shape) for each in model.inputs if each.name == TEXT]
    width = 2 if shapes and shapes[0][1:] == (2,) else 1
    if len(texts) % width:
        raise InvalidRequestError(
            f"--text: model '{model.name}' takes pairs; give two for each, got {len(texts)}"
        )
    array = np.array(list(texts), dtype=STRING_DTYPE)
    flat = bool(shapes) and len(shapes[0]) == 1
    return array if flat else array.reshape(-1, width)
