"""The controller's end of the control line, as a test needs it: a real gRPC server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Self

import grpc.aio

from services.pb import fleet_v1_pb2 as fleet


class TestController:
    """Keeps all reports and sends commands.

    Attributes:
        reports: everything heard, oldest first.
        num_attached: lines that are open now.
    """

    __test__ = False

    def __init__(self) -> None:
        self.reports: list[fleet.ReplicaReport] = []
        self.num_attached = 0
        self.address = "127.0.0.1:0"
        self._changed = asyncio.Condition()
        self._commands: list[asyncio.Queue[fleet.ReplicaCommand | None]] = []
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listen, after a `stop` on the same port again."""
        self._server = grpc.aio.server()
        handlers = {
            "Attach": grpc.stream_stream_rpc_method_handler(
                self._attach,
                fleet.ReplicaReport.FromString,
                fleet.ReplicaCommand.SerializeToString,
            )
        }
        generic = grpc.method_handlers_generic_handler("smelt.fleet.v1.FleetControl", handlers)
        self._server.add_generic_rpc_handlers((generic,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port(self.address)}"
        await self._server.start()

    async def __aenter__(self) -> Self:
        """Listen until the block ends."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Vanish."""
        await self.stop()

    async def stop(self) -> None:
        """Vanish."""
        assert self._server
        await self._server.stop(grace=None)

    async def send(self, command: fleet.ReplicaCommand) -> None:
        """Command every replica that is attached."""
        for commands in self._commands:
            await commands.put(command)

    async def report_where(
        self, is_wanted: Callable[[fleet.ReplicaReport], bool], *, skip: int = 0
    ) -> fleet.ReplicaReport:
        """The first report that is wanted, past the first `skip` ones; waits for it."""
        async with self._changed:
            while True:
                for report in self.reports[skip:]:
                    if is_wanted(report):
                        return report
                await self._changed.wait()

    async def detached(self) -> None:
        """Wait until no line is open."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.num_attached == 0)

    async def _attach(
        self, reports: AsyncIterator[fleet.ReplicaReport], context: object
    ) -> AsyncIterator[fleet.ReplicaCommand]:
        commands: asyncio.Queue[fleet.ReplicaCommand | None] = asyncio.Queue()
        self._commands.append(commands)
        await self._count(1)
        taking = asyncio.create_task(self._take(reports))
        taking.add_done_callback(lambda _: commands.put_nowait(None))
        try:
            while (command := await commands.get()) is not None:
                yield command
        finally:
            taking.cancel()
            self._commands.remove(commands)
            await self._count(-1)

    async def _take(self, reports: AsyncIterator[fleet.ReplicaReport]) -> None:
        async for report in reports:
            async with self._changed:
                self.reports.append(report)
                self._changed.notify_all()

    async def _count(self, change: int) -> None:
        async with self._changed:
            self.num_attached += change
            self._changed.notify_all()
