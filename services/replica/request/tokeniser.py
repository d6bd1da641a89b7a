"""Texts to the tensors that a model of tokens takes; runs beside the event loop.

The work is bounded by what a request may become: of a text that is truncated no more is looked at
than `_CHARACTERS` for each token of the bound, which prose fills several times over.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, Array
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.text_input import IDS, MASK, TYPES, text_input
from services.contracts.registry.registry import Registry

_CHARACTERS: Final = 64
_LEFT = "left"
Tensors = dict[str, Array]


class Tokeniser:
    """The tokenizer of one model version.

    B = texts, T = tokens of the longest of them.
    """

    def __init__(self, path: Path, model: ModelVersion) -> None:
        """Read a `tokenizer.json`.

        Args:
            path: its file.
            model: a version that has `text_input`.
        """
        from tokenizers import Tokenizer

        text = model.recipe.text
        assert text is not None, "asked only of a version that takes text"
        self._model = model.name
        self._is_truncating = text.truncate
        self._inputs = {each.name: each for each in model.master.inputs}
        self._pads = {name: each.pad for name, each in model.recipe.inputs.items()}
        self._library: Any = Tokenizer.from_file(str(path))
        rule = self._library.truncation or {}
        self._max_tokens = _max_tokens(model, rule.get("max_length"))
        self._is_cut_left = rule.get("direction") == _LEFT
        self._library.no_padding()
        self._library.no_truncation()
        if text.truncate:
            rest = {name: rule[name] for name in ("strategy", "direction") if name in rule}
            self._library.enable_truncation(self._max_tokens, **rest)

    def tensors_from_texts(self, requests: Sequence[Array]) -> list[Tensors | InvalidRequestError]:
        """What each request becomes, or why it is refused.

        Args:
            requests: of each its texts, [B] or [B, 1], or its pairs, [B, 2].

        Returns:
            For each request int [B, T] by input: ids, 1 where there is a token, and which of a pair
            it is of.
        """
        try:
            texts = [self._checked(row) for each in requests for row in _rows(each)]
            encoded = iter(self._library.encode_batch_fast(texts))
            return [self._tensors([next(encoded) for _ in each]) for each in requests]
        except BaseException as error:  # the library's own panics are no Exception
            if len(requests) > 1:
                # So that one text fails alone.
                return [self.tensors_from_texts([each])[0] for each in requests]
            words = str(error)
            return [InvalidRequestError(f"input 'text' for model '{self._model}': {words}")]

    def _checked(self, row: list[str]) -> str | tuple[str, ...]:
        most = self._max_tokens * _CHARACTERS
        if not self._is_truncating and any(len(text) > most for text in row):
            raise InvalidRequestError(
                f"expected at most {self._max_tokens} tokens, got {max(map(len, row))} characters"
            )
        cut = tuple(text[-most:] if self._is_cut_left else text[:most] for text in row)
        return cut if len(cut) > 1 else cut[0]

    def _tensors(self, encoded: Sequence[Any]) -> Tensors:
        lengths = [len(each.ids) for each in encoded]
        if min(lengths) == 0:
            raise InvalidRequestError(f"text {lengths.index(0)} has no token; omit it")
        if (most := max(lengths)) > self._max_tokens:
            raise InvalidRequestError(
                f"expected at most {self._max_tokens} tokens, got {most} in text "
                f"{lengths.index(most)}; shorten it, or set text.truncate in the recipe"
            )
        fixed = self._inputs[IDS].shape[1]
        shape = len(encoded), fixed if isinstance(fixed, int) else most
        return {name: self._filled(name, shape, encoded) for name in self._inputs}

    def _filled(self, name: str, shape: tuple[int, int], encoded: Sequence[Any]) -> Array:
        dtype = NUMPY_FROM_DATATYPE[self._inputs[name].datatype]
        array: Array = np.full(shape, self._pads.get(name, 0.0), dtype)
        for row, each in zip(array, encoded, strict=True):
            row[: len(each.ids)] = _values(name, each)
        return array


def tokeniser_of(model: ModelVersion, registry: Registry) -> Tokeniser | None:
    """A version's tokenizer, fetched and read; None of one that takes no text."""
    if model.tokenizer is None or text_input(model) is None:
        return None
    return Tokeniser(registry.materialise_tokenizer(model.tokenizer), model)


def _values(name: str, encoded: Any) -> Any:
    return {IDS: encoded.ids, TYPES: encoded.type_ids}[name] if name != MASK else 1


def _rows(texts: Array) -> list[list[str]]:
    rows: list[list[str]] = texts.reshape(len(texts), -1).tolist()
    return rows


def _max_tokens(model: ModelVersion, of_file: int | None) -> int:
    """The least of the recipe's bound, or else the file's, and the largest length served."""
    length = next(spec.shape[1] for spec in model.master.inputs if spec.name == IDS)
    spans = [bucket.dims[length].max for bucket in model.buckets if length in bucket.dims]
    served = length if isinstance(length, int) else max(spans, default=None)
    stated = model.recipe.text.max_tokens if model.recipe.text else None
    bounds = [each for each in (stated or of_file, served) if each is not None]
    return min(bounds)
