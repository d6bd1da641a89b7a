"""Measures streams of an OpenAI server through a gateway, beside the server's own.

    python -m tests.benchmarks.external_server [--rounds 9] [--tokens 100] [--transformers]

One gateway process stands before a server, and one client process asks both in turn, in a new
order each round; ratios and differences are medians of those within a round, as the machine is
shared. A paced server gives each stream a token every so many milliseconds, however many streams
there are, as one that batches continuously does; with 0 ms nothing but passing on is measured.
Streams begin --apart-ms after each other; 0 has all begin at one instant. With --transformers it
is `transformers serve` with a tiny Llama of seeded weights, which computes one stream after the
other.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

from services.contracts.external.external_model import ExternalModel
from services.telemetry.ready import wait_ready
from tests.benchmarks.dataplane.launch import free_port
from tests.integration.gateway.fleet_controller import Controller

_START_S: Final = 120
_ASK: Final = {"messages": [{"role": "user", "content": "w5 w6"}], "stream": True}
_SERVER: Final = "tests.benchmarks.external_server"
_CHAT: Final = "{% for each in messages %}{{ each['content'] }} {% endfor %}"


class Measured(NamedTuple):
    """Of one load: tokens a second, and the median time to the first token."""

    tokens_per_s: float
    first_ms: float


def paced_app(pace_ms: float) -> Any:
    """An ASGI application that streams as many tokens as are asked for, each after a pause."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, is_more = b"", True
        while is_more:
            event = await receive()
            body += event.get("body", b"")
            is_more = event.get("more_body", False)
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        delta = {"index": 0, "delta": {"content": "token "}, "finish_reason": None}
        chunk = {"id": "1", "object": "chat.completion.chunk", "model": "m", "choices": [delta]}
        event_bytes = b"data: %b\n\n" % json.dumps(chunk).encode()
        for _ in range(json.loads(body)["max_tokens"]):
            if pace_ms:
                await asyncio.sleep(pace_ms / 1000)
            await send({"type": "http.response.body", "body": event_bytes, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    return app


def write_tiny_chat(folder: Path) -> None:
    """A Llama of seeded weights in the layout of Hugging Face's hub, with a tokenizer of words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(["<s>", "</s>", "<unk>"])}
    words |= {f"w{number}": number for number in range(len(words), 512)}
    plain = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.chat_template = _CHAT
    tokenizer.save_pretrained(folder)
    torch.manual_seed(7)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=len(words), num_attention_heads=4, **sizes)
    model = LlamaForCausalLM(config)
    # No answer ends before it is as long as asked.
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)


@contextmanager
def _running(command: list[str], **more: Any) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, **more)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def _gateway(controller: int) -> Iterator[int]:
    """The HTTP port of a gateway."""
    read_fd, write_fd = os.pipe()
    settings = {
        "grpc_port": 0,
        "http_port": 0,
        "metrics_port": 0,
        "ready_fd": write_fd,
        "controller": f"127.0.0.1:{controller}",
        "parent_pid": os.getpid(),
    }
    env = dict(os.environ) | {f"SMELT_GATEWAY_{k.upper()}": str(v) for k, v in settings.items()}
    command = [sys.executable, "-m", "services.gateway"]
    with _running(command, env=env, pass_fds=(write_fd,)):
        os.close(write_fd)
        yield wait_ready(read_fd, 60, "gateway")["http_port"]


@asynccontextmanager
async def _both(port: int, remote_name: str) -> AsyncIterator[dict[str, tuple[str, str]]]:
    """URL and name of the model, at the server and at a gateway before it."""
    controller = Controller()
    await controller.start()
    url = f"openai+http://127.0.0.1:{port}/v1"
    model = ExternalModel(name="chat", version=1, url=url, remote_name=remote_name)
    controller.snapshot.models.add(
        name="chat", version=1, external_json=model.canonical_json(), state="READY"
    )
    # In a thread: it waits for the gateway, which waits for this loop.
    started = _gateway(controller.port)
    gateway = await asyncio.to_thread(started.__enter__)
    try:
        yield {
            "server": (model.http_url, remote_name),
            "gateway": (f"http://127.0.0.1:{gateway}/v1", "chat"),
        }
    finally:
        await asyncio.to_thread(started.__exit__, None, None, None)
        await controller.stop()


async def _stream(
    session: aiohttp.ClientSession, where: tuple[str, str], num: int, after_s: float = 0.0
) -> float:
    """Seconds until the first token; raises RuntimeError for an answer that is not whole."""
    await asyncio.sleep(after_s)
    url, model = where
    begin_s = time.perf_counter()
    first_s = 0.0
    num_events = 0
    asked = _ASK | {"model": model, "max_tokens": num}
    async with session.post(f"{url}/chat/completions", json=asked) as response:
        async for part in response.content.iter_any():
            # Servers begin with an event that has a role and no token.
            if not first_s and b'"content"' in part:
                first_s = time.perf_counter() - begin_s
            num_events += part.count(b"data: ")
    if response.status != 200 or num_events < num // 2:
        raise RuntimeError(f"{url}: {response.status}, {num_events} events")
    return first_s


async def _load(
    where: tuple[str, str], num_streams: int, num_tokens: int, apart_s: float
) -> Measured:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(_stream(session, where, 2) for _ in range(num_streams)))
        begin_s = time.perf_counter()
        each = [_stream(session, where, num_tokens, n * apart_s) for n in range(num_streams)]
        firsts_s = await asyncio.gather(*each)
        took_s = time.perf_counter() - begin_s
    return Measured(num_streams * num_tokens / took_s, 1000 * statistics.median(firsts_s))


async def _until_answers(where: tuple[str, str]) -> None:
    give_up_s = time.monotonic() + _START_S
    async with aiohttp.ClientSession() as session:
        while True:
            try:
                await _stream(session, where, 2)
            except (aiohttp.ClientError, RuntimeError):
                if time.monotonic() > give_up_s:
                    raise
                await asyncio.sleep(0.2)
            else:
                return


async def _measure(name: str, port: int, model: str, given: argparse.Namespace) -> None:
    """Print the lines of one server."""
    await _until_answers((f"http://127.0.0.1:{port}/v1", model))
    async with _both(port, model) as places:
        await _until_answers(places["gateway"])
        for num_streams in given.streams:
            rounds: list[dict[str, Measured]] = []
            for _ in range(given.rounds):
                order = random.sample(list(places), 2)
                load = (num_streams, given.tokens, given.apart_ms / 1000)
                rounds.append({each: await _load(places[each], *load) for each in order})
            print(_line(name, num_streams, rounds), flush=True)


def _line(name: str, num_streams: int, rounds: list[dict[str, Measured]]) -> str:
    median = statistics.median
    own = median(each["server"].tokens_per_s for each in rounds)
    ratio = median(each["gateway"].tokens_per_s / each["server"].tokens_per_s for each in rounds)
    first_ms = median(each["server"].first_ms for each in rounds)
    more_ms = median(each["gateway"].first_ms - each["server"].first_ms for each in rounds)
    return f"| {name} | {num_streams} | {own:.0f} | {ratio:.3f} | {first_ms:.1f} | {more_ms:+.1f} |"


def measure(given: argparse.Namespace) -> None:
    """Print a table."""
    print("| server | streams | tokens a second | through the gateway | first token ms | more ms |")
    print("|---|---:|---:|---:|---:|---:|")
    if not given.transformers:
        for pace_ms in given.pace_ms:
            port = free_port()
            serve = ["--serve", str(port), "--pace-ms", str(pace_ms)]
            with _running([sys.executable, "-m", _SERVER, *serve]):
                asyncio.run(_measure(f"{pace_ms:g} ms per token", port, "m", given))
        return
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "tiny"
        write_tiny_chat(model)
        (Path(folder) / "hub").mkdir()
        port = free_port()
        program = str(Path(sys.executable).parent / "transformers")
        command = [program, "serve", str(model), "--port", str(port), "--device", "cpu"]
        env = dict(os.environ) | {"HF_HOME": folder, "HF_HUB_OFFLINE": "1"}
        with _running(command, env=env, stdout=subprocess.DEVNULL):
            asyncio.run(_measure("transformers serve", port, str(model), given))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--pace-ms", type=float, nargs="*", default=[20, 5, 0])
    parser.add_argument("--apart-ms", type=float, default=10)
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--serve", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.serve:
        import uvicorn

        paced = paced_app(chosen.pace_ms[0])
        uvicorn.run(
            paced, port=chosen.serve, log_level="error", interface="asgi3", http="httptools"
        )
    else:
        measure(chosen)
