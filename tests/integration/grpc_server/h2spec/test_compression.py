"""h2spec's cases of HPACK: header blocks that cannot be decoded."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.integration.grpc_server.h2spec.conversations import (
    BLOCK,
    COMPRESSION,
    End,
    Row,
    conversations,
    converse,
    with_block,
)

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host


def compression() -> Iterator[Row]:
    """hpack: what cannot be decoded."""
    yield "2.3.3/1", with_block(BLOCK + b"\xfe"), COMPRESSION
    yield "2.3.3/2", with_block(BLOCK + b"\x7e\x04test"), COMPRESSION
    yield "4.2/1", with_block(BLOCK + b"\x21"), COMPRESSION
    wrong = ("84ff8449509fff", "84ff83495090", "87fffffffd25427f")
    for number, value in enumerate(wrong, start=1):
        block = BLOCK + bytes.fromhex("0085f2b24a" + value)
        yield f"5.2/{number}", with_block(block), COMPRESSION
    yield "6.1/1", with_block(BLOCK + b"\x80"), COMPRESSION
    yield "6.3/1", with_block(b"\x3f\xe2\x1f" + BLOCK), COMPRESSION


@conversations("hpack", compression())
async def test_a_block_that_cannot_be_decoded(host: "Host", sent: bytes, end: End) -> None:
    await converse(host, sent, end)
