"""A replica process that dies: every request on its connection learns so at once."""

import asyncio
from pathlib import Path

import pytest

from services.contracts.errors import ConnectionLostError
from services.gateway.upstream.replica_connection import connect
from tests.faults.data_port.replica_process import replica_process


@pytest.mark.parametrize("family", ["tcp", "unix"])
async def test_killing_a_replica_fails_its_requests_at_once(tmp_path: Path, family: str) -> None:
    async with replica_process(tmp_path) as replica:
        connection = await connect(replica.addresses[family])
        assert await connection.infer(b"alive") == b"alive"
        tasks = [asyncio.create_task(connection.infer(b"hang")) for _ in range(50)]
        await connection.ping()
        await replica.kill()
        errors = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
        assert all(isinstance(error, ConnectionLostError) for error in errors)
        assert all(error.may_have_run for error in errors)
        with pytest.raises(ConnectionLostError, match="no connection"):
            await connect(replica.addresses[family])
