"""What clients do in a soak: requests of all sizes, and everything that goes wrong with them."""

import asyncio
from collections import Counter
from random import Random

import grpc
from grpc import StatusCode

from tests.benchmarks.soak.fleet import MAX_LENGTH, MAX_ROWS
from tests.faults.fuzz.cases import spoilt_case
from tests.faults.fuzz.requests import HANG_S, wrong_in_answer
from tests.integration.replica.published import ids_of, request_of

_INFER = "/inference.GRPCInferenceService/ModelInfer"
# A text's length: half are below 40 tokens, and one in hundreds has thousands.
_MEDIAN_TOKENS, _SPREAD = 40.0, 1.6
# What a gateway or replica may say while one is restarted, and of a deadline that passed.
_ALLOWED = (StatusCode.OK, StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED)


class Load:
    """A closed loop of clients.

    Attributes:
        outcomes: how many of what ended how.
        faults: wrong answers, wrong codes and hangs.
    """

    def __init__(self, address: str, seed: int = 0) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.faults: list[str] = []
        self._address, self._seed = address, seed

    async def run(self, num_clients: int, stop: asyncio.Event) -> None:
        """Until `stop` is set; each request that is out then still ends."""
        seeds = range(self._seed, self._seed + num_clients)
        await asyncio.gather(*(self._client(Random(seed), stop) for seed in seeds))

    async def _client(self, random: Random, stop: asyncio.Event) -> None:
        async with grpc.aio.insecure_channel(
            self._address, options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            ask = channel.unary_unary(_INFER)
            while not stop.is_set():
                what = random.choices(("answered", "cancelled", "late", "hostile"), (84, 6, 5, 5))[
                    0
                ]
                await self._one(what, ask, random)

    async def _one(
        self, what: str, ask: "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]", random: Random
    ) -> None:
        if what == "hostile":
            case = spoilt_case(random)
            await self._asked(what, ask(case.body, timeout=HANG_S), case.body, case.codes)
            return
        body = _request(random)
        if what == "late":
            call = ask(body, timeout=random.choice((0.0005, 0.002, 0.01)))
            await self._asked(what, call, body, (*_ALLOWED, StatusCode.DEADLINE_EXCEEDED))
        elif what == "cancelled":
            call = ask(body, timeout=HANG_S)
            asyncio.get_running_loop().call_later(random.uniform(0, 0.02), call.cancel)
            await self._asked(what, call, body, (*_ALLOWED, StatusCode.CANCELLED))
        else:
            await self._asked(what, ask(body, timeout=HANG_S), body, _ALLOWED)

    async def _asked(
        self,
        what: str,
        call: "grpc.aio.UnaryUnaryCall[bytes, bytes]",
        body: bytes,
        codes: "tuple[StatusCode, ...] | frozenset[StatusCode]",
    ) -> None:
        words = ""
        try:
            wrong = wrong_in_answer(body, await call)
            if wrong:
                self.faults.append(f"{what}: wrong answer: {wrong}")
        except grpc.aio.AioRpcError as error:
            words = error.details() or ""
        except asyncio.CancelledError:
            if not call.cancelled():
                raise
        code = await call.code()
        self.outcomes[what, code.name] += 1
        # A hostile request may also meet a replica that is being restarted.
        if code not in codes and code is not StatusCode.UNAVAILABLE:
            self.faults.append(f"{what}: {code.name}: {words}")


def _request(random: Random) -> bytes:
    length = min(int(random.lognormvariate(0, _SPREAD) * _MEDIAN_TOKENS) + 1, MAX_LENGTH)
    return request_of(ids_of(random.randint(1, MAX_ROWS), length, random.randrange(100)))
