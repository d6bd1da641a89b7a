"""The loads of `smelt bench`, one after the other, over the served protocol."""

import asyncio
import os
import platform
import shlex
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from typing import Any

import grpc

from services.cli.bench.bench import BenchOptions
from services.cli.bench.bench_report import INTERRUPTION, cell_document
from services.cli.bench.bench_requests import BenchRequests, drawn_requests
from services.cli.bench.closed_loop import run_load
from services.cli.fleet.control_client import CALL_TIMEOUT_S
from services.cli.output.progress import StepLine
from services.cli.registry import open_registry
from services.cli.requests.gateway_client import (
    bearer_metadata,
    gateway_aio_channel,
    gateway_error,
)
from services.cli.requests.infer import CHANNEL_OPTIONS, gateway_rpc, read_inputs, typed_names
from services.cli.requests.json_values import typed_arrays
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError, NotFoundError, SmeltError
from services.contracts.selection.selection import reason_words
from services.pb import open_inference_v2_pb2 as pb

# Else channels to one address share a connection.
_OPTIONS = (*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))


async def run_loads(
    settings: CliSettings, name: str, options: BenchOptions, line: StepLine
) -> dict[str, Any]:
    """Send each load to the model.

    Args:
        settings: where the store is.
        name: of the model.
        options: with an address.
        line: shows the progress.

    Returns:
        What was measured, as a document.

    Raises:
        InvalidRequestError: the gateway refused the first load.
    """
    connect = partial(gateway_aio_channel, settings, options.address, _OPTIONS)
    headers = tuple(bearer_metadata(settings).items())
    numbers = _numbers(options.concurrency)
    async with connect() as channel:
        ask = partial(_config, channel, name, options, headers)
        config = await ask()
        engine = _engine(config)
        loads = [(each, n) for each in _requests(settings, config, options) for n in numbers]
        cells: list[dict[str, Any]] = []
        ended = ""
        try:
            for place, (requests, num) in enumerate(loads, start=1):
                line.update(f"{place} of {len(loads)}: {requests.size}, callers: {num}")
                found = await run_load(connect, requests.bodies, num, options.seconds, headers)
                # An engine may have taken another's place meanwhile.
                before = engine
                engine = await _engine_now(ask)
                engines = dict.fromkeys((before, engine))
                cells.append(cell_document(requests, num, found) | {"served_by": list(engines)})
        except asyncio.CancelledError:  # Ctrl-C: what was measured counts
            ended = INTERRUPTION
        except InvalidRequestError as error:
            ended = f"{requests.size}: gateway {options.address}: {error}"
            if not cells:
                raise InvalidRequestError(ended) from error
    measured = {"num_loads": len(loads), "ended": ended, "cells": cells}
    is_cached = config.response_cache.enable
    return _origin(name, options) | {"is_cached": is_cached} | measured


async def _engine_now(ask: Callable[[], Awaitable[pb.ModelConfig]]) -> str:
    """What serves, or why that is unknown: the figures of the load count all the same."""
    try:
        return _engine(await ask())
    except SmeltError as error:
        return f"unknown: {error}"


async def _config(
    channel: grpc.aio.Channel, name: str, options: BenchOptions, headers: tuple[Any, ...]
) -> pb.ModelConfig:
    """What the gateway knows of the model, with the engines that serve it now."""
    ask = gateway_rpc(channel, "ModelConfig")
    request = pb.ModelConfigRequest(name=name, version=str(options.version or ""))
    try:
        response: pb.ModelConfigResponse = await ask(
            request, timeout=CALL_TIMEOUT_S, metadata=headers
        )
    except grpc.aio.AioRpcError as error:
        raise gateway_error(options.address, error) from error
    return response.config


def _requests(
    settings: CliSettings, config: pb.ModelConfig, options: BenchOptions
) -> list[BenchRequests]:
    version = str(options.version or "")
    if options.inputs:
        if options.sizes:
            raise InvalidRequestError("--sizes is for drawn inputs: leave it out with --input")
        of = {i.name: pb.DataType.Name(i.data_type).removeprefix("TYPE_") for i in config.input}
        arrays = typed_arrays(read_inputs(options.inputs), typed_names(options.inputs), of)
        # Of a model that is batched the first dimension of each input is the rows.
        first = next(iter(arrays.values())).shape[:1] if config.max_batch_size else ()
        rows = first[0] if first else 1
        return [BenchRequests.of(config.name, version, "inputs as given", rows, [arrays])]
    try:
        model = open_registry(settings).model_version(config.name, options.version or None)
    except NotFoundError as error:
        raise NotFoundError(
            f"{error}; inputs are drawn by what the store says of the model: name its store by "
            "--store, or give each input by --input NAME=@FILE.npy"
        ) from error
    return drawn_requests(model, version, options.sizes)


def _engine(config: pb.ModelConfig) -> str:
    """The engine that serves, or the fallback and why; several where replicas differ."""
    known = {key: each.string_value for key, each in config.parameters.items()}
    found = [known.get(f"engine_{each}", "") for each in ("kind", "precision", "generation")]
    reason = reason_words(known.get("fallback_reason", ""))
    return " ".join(filter(None, (*found, reason and f"({reason})"))) or "no replica"


def _origin(name: str, options: BenchOptions) -> dict[str, Any]:
    """Where the figures come from."""
    versions = {each: metadata.version(each) for each in ("smelt", "grpcio")}
    return {
        "model": name,
        "version": options.version or None,
        "address": options.address,
        "seconds": options.seconds,
        "command": shlex.join(["smelt", *sys.argv[1:]]),
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions | {"python": platform.python_version()},
        "client_cpus": os.cpu_count(),
    }


def _numbers(text: str) -> list[int]:
    parts = [each.strip() for each in text.split(",")]
    if not all(each.isdecimal() and int(each) for each in parts):
        raise InvalidRequestError(f"--concurrency {text}: expected numbers from 1 on, as in 1,8,32")
    return list(dict.fromkeys(map(int, parts)))
