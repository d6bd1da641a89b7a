"""An identity provider for tests: signs tokens, and serves its public keys over HTTP."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Self

from joserfc import jws
from joserfc.jwk import ECKey


class Issuer:
    """Use as a context manager.

    Attributes:
        url: where the keys are.
        num_reads: how often they were read.
        is_broken: answers 500 instead of the keys.
    """

    def __init__(self) -> None:
        self.num_reads, self.is_broken = 0, False
        self.rotate("first")

    def rotate(self, key_id: str) -> None:
        """Sign with a new key, and forget the old one."""
        self._key = ECKey.generate_key("P-256", {"kid": key_id})

    def token(self, **claims: Any) -> str:
        """A good token, but for the claims given; None leaves a claim out."""
        good = {
            "iss": "https://issuer.test",
            "aud": ["smelt", "others"],
            "exp": int(time.time()) + 600,
            "sub": "ada",
            "roles": ["reader"],
        }
        kept = {name: value for name, value in (good | claims).items() if value is not None}
        # Not jwt.encode: it writes no half surrogates, which JSON's escapes may name.
        header = {"alg": "ES256", "typ": "JWT", "kid": self._key.kid}
        return jws.serialize_compact(header, json.dumps(kept).encode(), self._key)

    def __enter__(self) -> Self:
        issuer = self

        class Keys(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.num_reads += 1
                public = {"keys": [issuer._key.as_dict(private=False)]}
                self.send_response(500 if issuer.is_broken else 200)
                self.end_headers()
                self.wfile.write(json.dumps(public).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Keys)
        self.url = f"http://127.0.0.1:{self._server.server_port}/jwks"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
