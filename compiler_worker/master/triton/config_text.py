"""Reads config.pbtxt: what Smelt's schema knows, and the names of all that it does not."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor

from services.contracts.errors import InvalidModelError
from services.pb import open_inference_v2_pb2 as pb

CONFIG_FILE: Final = "config.pbtxt"


@dataclass(frozen=True, kw_only=True)
class ConfigText:
    """A model's configuration as its owner wrote it.

    Attributes:
        config: what was read; empty where there is no file, as Triton needs none for ONNX.
        unknown: paths of fields that Smelt's schema has not, as `optimization`.
    """

    config: pb.ModelConfig
    unknown: tuple[str, ...] = ()


def read_config(folder: Path) -> ConfigText:
    """Read a model's config.pbtxt; raises InvalidModelError with line and column."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        return ConfigText(config=pb.ModelConfig())
    try:
        text = path.read_text(encoding="utf-8")
        config = text_format.Parse(text, pb.ModelConfig(), allow_unknown_field=True)
    except UnicodeDecodeError as error:
        raise InvalidModelError(f"{path}: not UTF-8 ({error}); expected protobuf's text") from error
    except text_format.ParseError as error:
        raise InvalidModelError(f"{path}:{error}; expected a ModelConfig as Triton's") from error
    unknown = dict.fromkeys(_unknown(text))
    return ConfigText(config=config, unknown=tuple(unknown))


def _unknown(text: str) -> Iterator[str]:
    """Paths of fields that a message has not; protobuf skips them without a word."""
    tokens = text_format.Tokenizer(text.splitlines())
    messages: list[Descriptor | None] = [cast("Descriptor", pb.ModelConfig.DESCRIPTOR)]
    names = [""]
    while not tokens.AtEnd():
        word = tokens.token
        tokens.NextToken()
        if word in ("{", "<"):
            field = messages[-1].fields_by_name.get(names[-1]) if messages[-1] else None
            messages.append(field.message_type if field else None)
            names.append("")
        elif word in ("}", ">"):
            messages.pop()
            names.pop()
        elif word.isidentifier() and any(map(tokens.LookingAt, (":", "{", "<", "["))):
            names[-1] = word
            if messages[-1] and word not in messages[-1].fields_by_name:
                yield ".".join(names)
