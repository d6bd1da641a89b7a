"""Header blocks of answers, as another library reads them."""

import base64
from urllib.parse import unquote

import grpc
import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from services.grpc_server.headers.response_headers import (
    http_status_block,
    response_block,
    trailers_block,
    trailers_only_block,
)

ABORTED = grpc.StatusCode.ABORTED
HEAD = [(":status", "200"), ("content-type", "application/grpc")]


def read(block: bytes) -> list[tuple[str, str]]:
    """The fields, by a decoder that knows nothing of others."""
    return [(str(name), str(value)) for name, value in Decoder().decode(block)]


def test_the_usual_blocks() -> None:
    assert read(response_block()) == HEAD
    assert read(trailers_block(grpc.StatusCode.OK)) == [("grpc-status", "0")]
    assert read(http_status_block(415)) == [(":status", "415")]
    refusal = [("grpc-status", "10"), ("grpc-message", "no"), ("retry", "1")]
    assert read(trailers_only_block(ABORTED, "no", [("retry", "1")])) == HEAD + refusal


def test_a_decoder_s_table_stays_as_it_is() -> None:
    decoder = Decoder()
    decoder.decode(trailers_only_block(ABORTED, "why", [("key", "value")]))
    assert not decoder.header_table.dynamic_entries


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 254, 255, 256, 20_000])
def test_values_of_any_length(size: int) -> None:
    assert read(trailers_block(ABORTED, "", [("key", "x" * size)]))[1] == ("key", "x" * size)


@pytest.mark.parametrize("value", [b"", b"\x00", bytes(range(256))])
def test_bytes_travel_in_base64(value: bytes) -> None:
    ((_, text),) = read(trailers_block(ABORTED, "", [("key-bin", value)]))[1:]
    assert "=" not in text
    assert base64.b64decode(text + "==") == value


@given(st.text(max_size=50))
def test_any_words_come_through(details: str) -> None:
    fields = dict(read(trailers_block(ABORTED, details)))
    text = fields.get("grpc-message", "")
    assert text == text.strip()
    assert text.isascii()
    assert unquote(text) == details.encode(errors="replace").decode()


@pytest.mark.parametrize("letter", ["x", "%", "é", "𝄞", " "])
@pytest.mark.parametrize("shift", range(4))
def test_long_words_are_cut_between_letters(letter: str, shift: int) -> None:
    details = "y" * shift + letter * 9000
    text = dict(read(trailers_block(ABORTED, details)))["grpc-message"]
    assert 5980 < len(text) <= 6004
    assert details.startswith(unquote(text, errors="strict"))
