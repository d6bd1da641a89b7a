"""The health check of a replica's own data port."""

import asyncio

from services.contracts.errors import EngineError
from services.contracts.transport.frames import CONNECTION_ID, HEADER, Kind, encode_hello, header

# Two thirds of the 30 s that Serve waits for a health check, so that a data port that is dead
# gets a readable error. Not less: a live swap may hold loop and cores for seconds (a library that
# keeps the interpreter to itself while it loads), and a failed check has gateways turn away from
# a replica that serves. Nothing is found later by it: a port that closed refuses at once.
CHECK_TIMEOUT_S = 20.0


async def check_data_port(path: str, token: bytes) -> None:
    """Connect to a data port and wait for its HELLO.

    Args:
        path: of its unix socket.
        token: that gateways send to it.

    Raises:
        EngineError: nothing listens there, no answer came in time, or the token was refused.
    """
    meta = encode_hello(token)
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(header(Kind.HELLO, CONNECTION_ID, len(meta), 0) + meta)
                # A refusal would be a frame too, but of another kind.
                found = HEADER.unpack(await reader.readexactly(HEADER.size))[0]
            finally:
                writer.close()
    except (OSError, EOFError, TimeoutError) as error:
        raise EngineError(f"data port {path} does not answer: {error!r}") from error
    if found != Kind.HELLO:
        raise EngineError(f"data port {path} refuses its own replica: frame kind {found}")
