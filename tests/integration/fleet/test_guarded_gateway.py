"""`smelt infer` through a gateway that wants TLS and a token, before a real fleet."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.certificates import Authority
from tests.integration.fleet.conftest import Served
from tests.integration.fleet.gateways import gateway_of
from tests.integration.fleet.local_fleet import SMELT, WAIT_S


@dataclass(frozen=True)
class Guarded:
    """A gateway, whom to trust, and a token that may infer on `linear`."""

    address: str
    authority: Path
    token: str

    def smelt(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run the command with more of an environment."""
        return subprocess.run(
            [SMELT, *arguments],
            env=dict(os.environ) | environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )


@pytest.fixture(scope="module")
def guarded(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    authority = Authority(folder)
    files = authority.sign("gateway")
    made = served.fleet.smelt("token", "ada", "--model", "lin*")
    (folder / "access.yaml").write_text(yaml.safe_dump({"tokens": [made["entry"]]}))
    settings = {
        "access_file": folder / "access.yaml",
        "tls_cert_file": files.cert,
        "tls_key_file": files.key,
    }
    with gateway_of(served.fleet, folder, authority=authority.cert, **settings) as address:
        yield Guarded(address, authority.cert, made["token"])


@pytest.fixture
def question(tmp_path: Path) -> list[str]:
    """Of `smelt infer`, but for the model's name."""
    np.save(tmp_path / "x.npy", np.ones((2, 8), np.float32))
    return ["--input", f"x=@{tmp_path / 'x.npy'}", "--json", "--address"]


def test_with_authority_and_token_the_answer_comes(guarded: Guarded, question: list[str]) -> None:
    known = {"SMELT_TLS_CA_FILE": str(guarded.authority), "SMELT_TOKEN": guarded.token}
    done = guarded.smelt("infer", "linear", *question, guarded.address, **known)
    assert done.returncode == 0, done.stderr
    assert '"model_name": "linear"' in done.stdout


@pytest.mark.parametrize(
    ("model", "token", "words"),
    [
        ("linear", "", "UNAUTHENTICATED: the request has no token"),
        ("linear", "wrong", "UNAUTHENTICATED: the token is neither a known one"),
        ("noop", None, "PERMISSION_DENIED: 'ada' may not do this: it needs 'infer' on model"),
    ],
)
def test_without_the_permission_the_reason_comes(
    guarded: Guarded, question: list[str], model: str, token: str | None, words: str
) -> None:
    known = {"SMELT_TLS_CA_FILE": str(guarded.authority)}
    known["SMELT_TOKEN"] = guarded.token if token is None else token
    done = guarded.smelt("infer", model, *question, guarded.address, **known)
    assert done.returncode == 1
    assert words in done.stderr


def test_in_the_clear_nobody_answers(guarded: Guarded, question: list[str]) -> None:
    done = guarded.smelt("infer", "linear", *question, guarded.address)
    assert done.returncode == 1
    assert "UNAVAILABLE" in done.stderr
