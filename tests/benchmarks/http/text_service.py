"""Embedding texts over HTTP: a fleet beside a plain service of FastAPI and sentence-transformers.

    HF_HUB_OFFLINE=1 python -m tests.benchmarks.http.text_service [--rounds 5] [--seconds 5]

The real MiniLM, added to a fleet of its own from a folder, without a recipe; `plain_service.py`
with torch's own number of threads. Both are asked for `/v1/embeddings`, one text a request, by the
same client, and take turns; the other one idles meanwhile. The fleet's engines are built, proven
and timed before it starts. Ratios are medians of the ratios of rounds.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from urllib.request import Request, urlopen

import numpy as np
from tokenizers import Tokenizer

from tests.benchmarks.http.http_load import load
from tests.benchmarks.joint_runs import print_machine
from tests.benchmarks.newcomers import COMMAND_EACH_S, PORT, PROVEN_WITHIN_S, smelt
from tests.minilm_folder import MODEL_DIR, write_minilm_folder

_HTTP_PORT = 18010
_PLAIN_PORT = 18011
_NAMES = {"fleet": _HTTP_PORT, "plain": _PLAIN_PORT}
_TOKENS = (10, 200)
_CALLERS = (1, 32)
_NUM_TEXTS = 64
_WORDS = ("the", "old", "harbour", "town", "met", "again", "in", "may", "near", "water", "stone")


def texts(num_tokens: int) -> list[str]:
    """Texts of so many tokens, special ones included, that differ in their words."""
    rng = np.random.default_rng(num_tokens)
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    found = [" ".join(rng.choice(_WORDS, num_tokens - 2)) for _ in range(_NUM_TEXTS)]
    assert {len(tokenizer.encode(text).ids) for text in found} == {num_tokens}
    return found


def body(text: str) -> bytes:
    """What is asked of either."""
    return json.dumps({"model": "minilm", "input": [text]}).encode()


def request(text: str) -> bytes:
    """A whole request."""
    content = body(text)
    head = (
        "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def vector(port: int, text: str) -> np.ndarray:
    """The answer of one of them."""
    asked = Request(
        f"http://127.0.0.1:{port}/v1/embeddings", body(text), {"Content-Type": "application/json"}
    )
    with urlopen(asked) as answer:
        return np.array(json.load(answer)["data"][0]["embedding"])


def until_ready() -> None:
    """Wait for the replica: what is in the store for it, it loads before it is ready."""
    until_s = time.monotonic() + PROVEN_WITHIN_S
    while "READY" not in {each["state"] for each in _replicas()}:
        assert time.monotonic() < until_s, smelt("why", "minilm")
        time.sleep(COMMAND_EACH_S)


def until_listening(port: int) -> None:
    """Wait for the plain service, which reads its model first."""
    until_s = time.monotonic() + PROVEN_WITHIN_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < until_s, f"nothing listens on {port}"
            time.sleep(COMMAND_EACH_S)
        else:
            return


def _replicas() -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(smelt("status", "--json"))["replicas"]
    return found


async def measure(rounds: int, seconds: float) -> None:
    """Print a line for each length and number of callers."""
    for text in texts(10)[:3]:
        ours, theirs = (vector(port, text) for port in _NAMES.values())
        print(f"1 - cosine {1 - ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs):.1e}")
    print("| tokens | callers | fleet/s | plain/s | ratio | of rounds |\n|---|---|---|---|---|---|")
    for num_tokens in _TOKENS:
        asked = [request(text) for text in texts(num_tokens)]
        for callers in _CALLERS:
            rates = defaultdict[str, list[float]](list)
            for _ in range(rounds):
                for name, port in _NAMES.items():
                    rates[name].append(await load(port, asked, callers, seconds))
            ratios = [a / b for a, b in zip(rates["fleet"], rates["plain"], strict=True)]
            fleet, plain = (median(rates[name]) for name in _NAMES)
            print(
                f"| {num_tokens} | {callers} | {fleet:.0f} | {plain:.0f} "
                f"| **{median(ratios):.2f}** | {min(ratios):.2f} to {max(ratios):.2f} |",
                flush=True,
            )


def main() -> None:
    """Start both, wait, measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory() as home:
        os.environ["SMELT_HOME"] = home
        folder = write_minilm_folder(Path(home) / "minilm")
        smelt("models", "add", "minilm", str(folder))
        smelt("build", "minilm")
        smelt("up", "--detach", "--grpc-port", str(PORT), "--http-port", str(_HTTP_PORT))
        command = [sys.executable, "-m", "tests.benchmarks.http.plain_service", str(_PLAIN_PORT)]
        try:
            until_ready()
            print(smelt("why", "minilm"), flush=True)
            with subprocess.Popen(command) as plain:
                try:
                    until_listening(_PLAIN_PORT)
                    asyncio.run(measure(options.rounds, options.seconds))
                finally:
                    plain.terminate()
        finally:
            smelt("down")


if __name__ == "__main__":
    main()
