"""Peers that do not keep to the data port's frames, at either end of a connection."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from random import Random

from services.contracts.errors import InvalidRequestError, SmeltError
from services.contracts.transport.frame_decoder import FrameDecoder
from services.contracts.transport.frames import (
    CONNECTION_ID,
    HEADER,
    MAX_PAYLOAD_BYTES,
    NO_TOKEN,
    Frame,
    InferFrame,
    Kind,
    encode_hello,
    encode_infer,
    header,
)
from services.gateway.upstream.replica_connection import connect
from tests.faults.fuzz.cases import INFER_MAKERS
from tests.faults.fuzz.requests import HANG_S, Findings

_SIZES = (0, 1, 47, 4096, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1)
_ANSWERS = (Kind.OK, Kind.ERROR, Kind.PONG)


def frame_bytes(kind: Kind, request_id: int, meta: bytes = b"", payload: bytes = b"") -> bytes:
    """A whole frame."""
    return header(kind, request_id, len(meta), len(payload)) + meta + payload


def hello(random: Random, token: bytes) -> bytes:
    """A right HELLO mostly, else one that is wrong somewhere, or none."""
    right = bytearray(frame_bytes(Kind.HELLO, CONNECTION_ID, encode_hello(token)))
    if random.random() < 0.3:
        right[random.randrange(len(right))] ^= random.randint(1, 255)
    return bytes(right) if random.random() < 0.9 else b""


def hostile_frame(random: Random) -> bytes:
    """Bytes that are a frame in part, or none at all."""
    meta = random.randbytes(random.choice((0, 1, 18, 300)))
    payload = random.randbytes(random.choice((0, 10, 70_000)))
    match random.randrange(6):
        case 0:
            return random.randbytes(random.randint(1, 300))
        case 1:  # a header that announces more than comes
            size = random.choice(_SIZES)
            return HEADER.pack(random.choice(list(Kind)), 0, len(meta), size, 7) + meta
        case 2:  # a header that no peer writes
            fields = [random.randrange(256), random.choice((0, 0, 1, 255)), len(meta)]
            return HEADER.pack(*fields, len(payload), random.randrange(2**64)) + meta + payload
        case 3:  # a trace that is not UTF-8, or a deadline that is no number
            whole = bytearray(encode_infer(InferFrame(b"", trace="toy")))
            whole[random.randrange(len(whole))] ^= random.randint(1, 255)
            return frame_bytes(Kind.INFER, random.randint(0, 3), bytes(whole), payload)
        case 4:  # a kind that is not for this end, or an id that is not to be used
            kind = random.choice(list(Kind))
            return frame_bytes(kind, random.choice((0, 1, 2**64 - 1)), meta, payload)
        case _:
            return frame_bytes(Kind.PING, random.randint(1, 9))[: random.randint(1, HEADER.size)]


async def fuzz_data_port(
    address: tuple[str, int], token: bytes, seeds: range, concurrency: int = 8
) -> Findings:
    """One connection for each seed: what can be answered is, and all of them end."""
    findings, left = Findings(), iter(seeds)

    async def work(seeds: Iterator[int]) -> None:
        for seed in seeds:
            random = Random(seed)
            judge = _orderly if random.random() < 0.3 else _disorderly
            try:
                async with asyncio.timeout(HANG_S):
                    await judge(random, address, token, findings)
            except (TimeoutError, AssertionError) as error:
                findings.faults.append(f"frames, seed {seed}: {error!r}")

    await asyncio.gather(*(work(left) for _ in range(concurrency)))
    return findings


async def _orderly(
    random: Random, address: tuple[str, int], token: bytes, findings: Findings
) -> None:
    """Right frames with hostile requests in them: each id is answered, and once."""
    reader, writer = await asyncio.open_connection(*address)
    sent = [frame_bytes(Kind.HELLO, CONNECTION_ID, encode_hello(token))]
    numbers = range(1, random.randint(2, 9))
    meta = encode_infer(InferFrame(b""))
    for number in numbers:
        body = random.choice(INFER_MAKERS)(random).body
        is_ping = random.random() < 0.3
        sent.append(
            frame_bytes(Kind.PING, number)
            if is_ping
            else frame_bytes(Kind.INFER, number, meta, body)
        )
    try:
        await _write(writer, b"".join(sent), random)
        answered: Counter[int] = Counter()
        async for frame in _frames(reader):
            if frame.kind is not Kind.HELLO:
                assert frame.kind in _ANSWERS, frame.kind
                answered[frame.request_id] += 1
            if answered.total() == len(numbers):
                break
        assert answered == Counter(numbers), f"{answered} of {numbers}"
        findings.answers["frames in order", "answered"] += 1
    finally:
        await _hang_up(writer)


async def _disorderly(
    random: Random, address: tuple[str, int], token: bytes, findings: Findings
) -> None:
    """Garbage: the port may say why, and lets go."""
    reader, writer = await asyncio.open_connection(*address)
    parts = [hello(random, token), *(hostile_frame(random) for _ in range(random.randint(1, 4)))]
    try:
        await _write(writer, b"".join(parts), random)
        writer.write_eof()
        # Whatever comes is frames, and then the end.
        async for frame in _frames(reader):
            assert frame.kind in (Kind.HELLO, *_ANSWERS), frame.kind
        findings.answers["frames in disorder", "closed"] += 1
    except OSError:
        findings.answers["frames in disorder", "reset"] += 1
    finally:
        await _hang_up(writer)


async def fuzz_gateway_end(seeds: range) -> Findings:
    """Replicas that answer with garbage: whoever asks them learns so, and waits for nothing."""
    findings = Findings()
    for seed in seeds:
        random = Random(seed)
        wrong = hello(random, NO_TOKEN) + b"".join(hostile_frame(random) for _ in range(3))

        async def answer(
            _: asyncio.StreamReader, writer: asyncio.StreamWriter, wrong: bytes = wrong
        ) -> None:
            writer.write(wrong)
            writer.write_eof()
            await _hang_up(writer)

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        outcome = "answered"
        try:
            async with asyncio.timeout(HANG_S):
                connection = await connect(f"{host}:{port}", timeout_s=HANG_S)
                await connection.infer(b"")
                connection.close()
        except TimeoutError:
            findings.faults.append(f"gateway's end, seed {seed}: hangs")
        except SmeltError as error:
            outcome = type(error).__name__
        findings.answers["answers in disorder", outcome] += 1
        server.close()
    return findings


async def _write(writer: asyncio.StreamWriter, data: bytes, random: Random) -> None:
    """In pieces, cut anywhere."""
    while data:
        cut = random.choice((1, 15, 16, 17, 500, len(data)))
        writer.write(data[:cut])
        data = data[cut:]
        await writer.drain()
        await asyncio.sleep(0)


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[Frame]:
    decoder = FrameDecoder(MAX_PAYLOAD_BYTES)
    while data := await reader.read(len(decoder.get_buffer())):
        decoder.get_buffer()[: len(data)] = data
        try:
            for frame in decoder.advance(len(data)):
                yield frame
        except InvalidRequestError as error:
            raise AssertionError(f"the port answered no frame: {error}") from error


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except ConnectionError:
        return
