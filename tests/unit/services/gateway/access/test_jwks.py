"""When an issuer's keys are read, and what is kept when they cannot be."""

import asyncio
import json
from http.client import BadStatusLine, IncompleteRead
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import ECKey, OctKey

from services.contracts.errors import NotReadyError
from services.gateway.access.jwks import IssuerKeys, read_source

PAUSE_S = 11.0
PUBLIC = ECKey.generate_key("P-256").as_dict(private=False)
SECRET = OctKey.generate_key(256, {"kid": "s"}).as_dict(private=True)
# Keys that this library cannot use, or that nobody can.
USELESS: dict[str, Any] = {
    "a curve that is not known": {**PUBLIC, "crv": "brainpoolP256r1", "kid": "s"},
    "a short curve": {**PUBLIC, "crv": "P-224", "kid": "s"},
    "an id that is a number": {**PUBLIC, "kid": 7},
    "a type that is not known": {"kty": "AKP", "alg": "ML-DSA-44", "kid": "s", "pub": "AAAA"},
    "a type that is a list": {"kty": ["EC"]},
    "an empty key": {},
    "a secret": SECRET,
    "a list": [],
    "a number": 7,
}


class Source:
    """Keys that a test changes, with a clock."""

    def __init__(self) -> None:
        self.now_s, self.num_reads = 100.0, 0
        self.data: bytes | None = None
        self.fault: Exception = OSError("no route")
        self.ids("a")
        self.keys = IssuerKeys("there", 300, clock=lambda: self.now_s, read=self.read)

    def ids(self, *ids: str, beside: tuple[Any, ...] = ()) -> None:
        """Let it have these keys, and others."""
        keys = [ECKey.generate_key("P-256", {"kid": each}) for each in ids]
        public = [key.as_dict(private=False) for key in keys]
        self.data = json.dumps({"keys": [*beside, *public]}).encode()

    def read(self, source: str) -> bytes:
        """Give the bytes, or fail."""
        self.num_reads += 1
        if self.data is None:
            raise self.fault
        return self.data

    async def later(self) -> set[str | None]:
        """Ids of the keys that are given once these are old, and read again."""
        self.now_s += 301
        await self.known(None)
        await self.has_read()
        return await self.known(None)

    async def has_read(self) -> None:
        """Returns when a reading that was begun has ended: who asks for an unknown key waits."""
        await self.keys.with_id("nobody's")

    async def known(self, key_id: str | None = "a") -> set[str | None]:
        """Ids of the keys that are given for an id."""
        return {key.kid for key in (await self.keys.with_id(key_id)).keys}


async def test_keys_are_read_once_for_all_who_wait() -> None:
    source = Source()
    known = await asyncio.gather(*(source.known() for _ in range(20)))
    assert known == [{"a"}] * 20
    assert source.num_reads == 1
    assert await source.known(None) == {"a"}
    assert source.num_reads == 1


async def test_an_unknown_id_reads_them_again_but_not_at_anybodys_pace() -> None:
    source = Source()
    await source.known()
    source.ids("a", "b")
    assert await source.known("b") == {"a"}
    source.now_s += PAUSE_S
    assert await source.known("b") == {"a", "b"}
    source.now_s += PAUSE_S
    assert await source.known("c") == {"a", "b"}
    assert await source.known("d") == {"a", "b"}
    assert source.num_reads == 3


async def test_old_keys_are_read_again_and_serve_meanwhile() -> None:
    source = Source()
    await source.known()
    source.ids("b")
    source.now_s += 301
    assert await source.known("a") == {"a"}
    await source.has_read()
    assert source.num_reads == 2
    assert await source.known("b") == {"b"}


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"{}",
        b'{"keys": 7}',
        b"no json",
        b'{"keys": []}',
        *(
            pytest.param(json.dumps({"keys": [each]}).encode(), id=name)
            for name, each in USELESS.items()
        ),
    ],
)
async def test_what_cannot_be_read_leaves_the_keys_as_they_were(data: bytes | None) -> None:
    source = Source()
    await source.known()
    source.data = data
    source.now_s += 301
    await source.known()
    await source.has_read()
    assert await source.known() == {"a"}
    assert source.num_reads == 2


async def test_without_keys_nobody_is_believed() -> None:
    source = Source()
    source.data = None
    with pytest.raises(NotReadyError, match="not available from there"):
        await source.known()


async def test_shared_secrets_are_no_public_keys() -> None:
    source = Source()
    source.ids(beside=(SECRET,))
    with pytest.raises(NotReadyError):
        await source.known("s")


@pytest.mark.parametrize("useless", USELESS.values(), ids=USELESS)
async def test_a_key_that_cannot_be_used_does_not_cost_the_others(useless: Any) -> None:
    source = Source()
    source.ids("a", beside=(useless,))
    assert await source.known() == {"a"}
    source.ids("b", beside=(useless,))
    assert await source.later() == {"b"}


async def test_what_is_skipped_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    source = Source()
    steps = ((0, 0), (1, 1), (1, 1), (1, 1), (2, 2), (0, 2), (2, 3))
    for num_useless, num_said in steps:
        source.ids("a", beside=tuple([*USELESS.values()][:num_useless]))
        await source.later()
        assert caplog.text.count("keys of an issuer are skipped, from there") == num_said
    assert "from there: 2 of 3; first fault: KeyError('brainpoolP256r1')" in caplog.text


def test_a_file_is_a_source_too(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(b"{}")
    assert read_source(str(path)) == b"{}"


@pytest.mark.parametrize(
    "fault", [IncompleteRead(b""), BadStatusLine("x"), RecursionError(), KeyError("x")]
)
async def test_an_answer_that_breaks_off_leaves_the_keys_as_they_were(fault: Exception) -> None:
    source = Source()
    await source.known()
    source.data, source.fault = None, fault
    source.now_s += 301
    assert await source.known("b") == {"a"}
    assert await source.known() == {"a"}
