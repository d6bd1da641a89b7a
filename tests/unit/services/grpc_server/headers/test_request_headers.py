"""What a call's header fields mean."""

import base64

import pytest
from hpack import Decoder

from services.grpc_server.headers.request_headers import (
    MalformedFieldsError,
    RequestHeaders,
    are_trailers,
    request_headers_from_fields,
)
from services.grpc_server.http2.connection import peer_name

Field = tuple[bytes, bytes]
PSEUDO: list[Field] = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a.B/C"),
    (b":authority", b"here"),
]
GRPC: Field = (b"content-type", b"application/grpc")


def start(*more: Field, limit: int = 1000) -> RequestHeaders:
    """A call with these fields too."""
    return request_headers_from_fields([*PSEUDO, GRPC, *more], limit)


def refusal(call: RequestHeaders) -> dict[str, str]:
    """The fields with which a call is refused; none for one that is taken."""
    return {str(name): str(value) for name, value in Decoder().decode(call.refusal)}


def test_a_plain_call() -> None:
    assert start()._replace(num_bytes=0) == RequestHeaders("/a.B/C")


@pytest.mark.parametrize(
    ("text", "timeout_s"),
    [
        (b"2H", 7200.0),
        (b"3M", 180.0),
        (b"99999999S", 99_999_999.0),
        (b"250m", 0.25),
        (b"7u", 7e-6),
        (b"0n", 0.0),
    ],
)
def test_timeouts(text: bytes, timeout_s: float) -> None:
    assert start((b"grpc-timeout", text)).timeout_s == pytest.approx(timeout_s)


@pytest.mark.parametrize("text", [b"", b"1", b"S", b"-1S", b"1.5S", b"123456789S", b"1 S", b"1s"])
def test_timeouts_that_are_none(text: bytes) -> None:
    assert refusal(start((b"grpc-timeout", text)))["grpc-status"] == "13"


def test_metadata_is_kept_as_it_was_sent() -> None:
    more = [(b"key", b"1"), (b"key", b"2"), (b"user-agent", b"x"), (b"latin", b"\xe9")]
    used_up = [(b"te", b"trailers"), (b"grpc-accept-encoding", b"gzip")]
    kept = (("key", "1"), ("key", "2"), ("user-agent", "x"), ("latin", "é"))
    assert start(*more, *used_up).metadata == kept


@pytest.mark.parametrize("value", [b"", b"a", b"ab", b"abc", bytes(range(256))])
@pytest.mark.parametrize("padding", [b"", b"="])
def test_bytes_with_and_without_padding(value: bytes, padding: bytes) -> None:
    text = base64.b64encode(value)
    text = text if padding else text.rstrip(b"=")
    assert start((b"key-bin", text)).metadata == (("key-bin", value),)


@pytest.mark.parametrize("text", [b"YWJj,eHk", b"YWJj, eHk="])
def test_bytes_that_a_client_joined(text: bytes) -> None:
    joined = start((b"key-bin", text), (b"key-bin", b"")).metadata
    assert joined == (("key-bin", b"abc"), ("key-bin", b"xy"), ("key-bin", b""))


def test_a_path_is_text() -> None:
    for path in (b"/a.\xc3\xa9/B", b"/a.\xe9/B"):
        assert (
            request_headers_from_fields([*PSEUDO[:2], (b":path", path), PSEUDO[3], GRPC], 1000).path
            == "/a.é/B"
        )


@pytest.mark.parametrize("text", [b"a", b"ab!d", b"YWJj,a"])
def test_what_is_no_base64(text: bytes) -> None:
    assert refusal(start((b"key-bin", text)))["grpc-status"] == "13"


@pytest.mark.parametrize(
    ("name", "value", "is_taken"),
    [
        (b"application/grpc+proto", b"", True),
        (b"application/grpc;x=y", b"", True),
        (b"application/grpc-web", b"", False),
        (b"text/html", b"", False),
        (b"", b"", False),
    ],
)
def test_content_types(name: bytes, value: bytes, is_taken: bool) -> None:
    call = request_headers_from_fields([*PSEUDO, (b"content-type", name)], 1000)
    assert refusal(call).get(":status") == (None if is_taken else "415")


def test_only_posts_are_calls() -> None:
    call = request_headers_from_fields([(b":method", b"GET"), *PSEUDO[1:], GRPC], 1000)
    assert refusal(call)[":status"] == "405"


@pytest.mark.parametrize("encoding", [b"identity", b"gzip", b"deflate"])
def test_compressions(encoding: bytes) -> None:
    assert start((b"grpc-encoding", encoding)).encoding == encoding.decode()


def test_a_compression_that_nobody_knows() -> None:
    fields = refusal(start((b"grpc-encoding", b"snappy")))
    assert (fields["grpc-status"], fields["grpc-accept-encoding"]) == (
        "12",
        "identity,deflate,gzip",
    )


@pytest.mark.parametrize(("size", "is_taken"), [(0, True), (1, False)])
def test_metadata_has_a_limit(size: int, is_taken: bool) -> None:
    # RFC 9113, section 6.5.2: 32 for each field.
    limit = sum(len(name) + len(value) + 32 for name, value in [*PSEUDO, GRPC]) + 33
    call = start((b"a", b"x" * size), limit=limit)
    assert refusal(call).get("grpc-status") == (None if is_taken else "8")


WRONG_FIELDS = [
    (b"Key", b""),
    (b"", b"x"),
    (b"a b", b""),
    (b"a", b"x\ny"),
    (b"a", b"\x00"),
    (b"connection", b"close"),
    (b"te", b"gzip"),
    (b"upgrade", b"h2c"),
]


@pytest.mark.parametrize("field", WRONG_FIELDS)
def test_fields_that_are_not_of_http2(field: Field) -> None:
    with pytest.raises(MalformedFieldsError):
        start(field)
    assert not are_trailers([field])


@pytest.mark.parametrize(
    "fields",
    [
        PSEUDO[1:],
        PSEUDO[:2],
        PSEUDO[:3],
        [*PSEUDO[:2], (b":path", b""), PSEUDO[3]],
        [*PSEUDO, PSEUDO[0]],
        [*PSEUDO, (b":status", b"200")],
        [GRPC, *PSEUDO],
    ],
)
def test_pseudo_fields_out_of_place(fields: list[Field]) -> None:
    with pytest.raises(MalformedFieldsError):
        request_headers_from_fields(fields, 1000)


def test_trailers_have_no_pseudo_fields() -> None:
    assert are_trailers([(b"a", b"1")])
    assert not are_trailers(PSEUDO)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (("127.0.0.1", 5), "ipv4:127.0.0.1:5"),
        (("::1", 5, 0, 0), "ipv6:[::1]:5"),
        (("::ffff:10.0.0.1", 5, 0, 0), "ipv4:10.0.0.1:5"),
        (("::ffff:a", 5, 0, 0), "ipv6:[::ffff:a]:5"),
        ("", "unix:"),
    ],
)
def test_peers_have_names(address: object, name: str) -> None:
    assert peer_name(address) == name


WRONG = [
    (b":scheme", b"ht\ntp"),
    (b":scheme", b""),
    (b":path", b"/a b"),
    (b":path", b"/a\x7f"),
    (b":authority", b"he re"),
    (b":authority", b"me@here"),
    (b":method", b"PO ST"),
    (b":method", b""),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_pseudo_fields_have_values_of_their_kind(name: bytes, value: bytes) -> None:
    fields = [(key, value if key == name else good) for key, good in PSEUDO]
    with pytest.raises(MalformedFieldsError):
        request_headers_from_fields([*fields, GRPC], 1000)


def test_a_host_stands_for_an_authority() -> None:
    call = request_headers_from_fields([*PSEUDO[:3], GRPC, (b"host", b"here")], 1000)
    assert call.path == "/a.B/C"


@pytest.mark.parametrize(("values", "length"), [([], -1), ([b"7"], 7), ([b"7", b"7"], 7)])
def test_how_long_a_request_is(values: list[bytes], length: int) -> None:
    assert start(*[(b"content-length", value) for value in values]).content_length == length


@pytest.mark.parametrize("values", [[b"-1"], [b"1", b"2"], [b""], [b"1,1"], [b"9" * 19]])
def test_lengths_that_are_none(values: list[bytes]) -> None:
    with pytest.raises(MalformedFieldsError):
        start(*[(b"content-length", value) for value in values])
