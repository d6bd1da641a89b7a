"""The command line of `python -m compiler_worker`, as one value."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compiler_worker.children.child_jobs import CHILD_JOBS
from compiler_worker.plans.build_keys import Wanted
from services.contracts.errors import InvalidRequestError
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import EngineKind, Precision

_SETTINGS = (
    "store_url",
    "cache_dir",
    "num_threads",
    "benchmark_s",
    "benchmark_iterations",
    "device_generation",
)


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What was asked for.

    Attributes:
        target: model name or engine digest.
        version: number of the model version; None means the newest.
        settings: settings given on the command line; they replace those of the environment.
        request: a child's request file.
        parent_pid: this process ends when that one does; 0 for none.
        output: where export-graph writes.
    """

    command: str
    target: str = ""
    version: int | None = None
    wanted: Wanted = field(default_factory=Wanted)
    settings: dict[str, str] = field(default_factory=dict)
    is_json: bool = False
    request: Path | None = None
    parent_pid: int = 0
    output: Path | None = None


def parse_arguments(argv: Sequence[str] | None) -> Arguments:
    """Read the command line; a wrong one ends the process with its usage, as argparse does."""
    given = _parser().parse_args(argv)
    settings = {name: getattr(given, name, None) for name in _SETTINGS}
    return Arguments(
        command=given.command,
        target=getattr(given, "target", ""),
        version=getattr(given, "version", None),
        wanted=Wanted(
            generations=tuple(getattr(given, "generation", None) or ()),
            kinds=tuple(getattr(given, "kind", None) or ()),
            precisions=tuple(getattr(given, "precision", None) or ()),
            keys=tuple(getattr(given, "key", None) or ()),
            is_first=getattr(given, "first", False),
            is_untried=getattr(given, "untried", False),
            is_elsewhere=getattr(given, "elsewhere", False),
            compiler=getattr(given, "compiler", ""),
        ),
        settings={name: value for name, value in settings.items() if value is not None},
        is_json=getattr(given, "json", False),
        request=getattr(given, "request", None),
        parent_pid=getattr(given, "parent_pid", 0),
        output=getattr(given, "output", None),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m compiler_worker", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="build, prove and publish engines of a model")
    plan = commands.add_parser("plan", help="write the build plan of this node class")
    for command in (build, plan):
        _add_model(command)
        command.add_argument("--generation", action="append", type=_generation, metavar="G")
        command.add_argument("--elsewhere", action="store_true", help="for nodes still to come")
        command.add_argument(
            "--compiler", default="", metavar="NAME", help="what the launcher calls this compiler"
        )
    build.add_argument("--kind", action="append", type=EngineKind, choices=list(EngineKind))
    build.add_argument("--precision", action="append", type=Precision, choices=list(Precision))
    build.add_argument(
        "--key", action="append", type=_digest, metavar="DIGEST", help="build or prove this one"
    )
    build.add_argument("--first", action="store_true", help="stop once one engine is proven")
    build.add_argument("--untried", action="store_true", help="skip keys that failed before")
    prove = commands.add_parser("prove", help="prove a published engine on this machine")
    prove.add_argument("target", metavar="DIGEST")
    sign = commands.add_parser("sign", help="sign published engines with SMELT_SIGNING_KEY")
    sign.add_argument("target", metavar="DIGEST", nargs="?", default="", help="else all engines")
    replay = commands.add_parser("replay", help="run the worst sample of a failed proof again")
    replay.add_argument("target", metavar="KEY", help="of an engine or a build that failed")
    replay.add_argument("--num-threads", metavar="N")
    for command in (build, prove):
        command.add_argument("--num-threads", metavar="N")
        command.add_argument("--benchmark-s", metavar="SECONDS")
        command.add_argument("--benchmark-iterations", metavar="N")
    export = commands.add_parser("export-graph", help="write the graph that a fallback compiles")
    _add_model(export)
    export.add_argument("--output", type=Path, metavar="FILE")
    for command in (build, plan, prove, replay):
        # A simulation: what is built, proven and recorded here is recorded as of that generation.
        command.add_argument("--device-generation", metavar="G")
    for command in (build, plan, export):
        command.add_argument("--parent-pid", type=int, default=0, metavar="PID")
    for command in (build, plan, prove, replay, sign, export):
        command.add_argument("--store-url", metavar="URL")
        command.add_argument("--cache-dir", metavar="DIR")
        command.add_argument("--json", action="store_true")
    # Commands of their own, so that `ps` shows what a child does.
    for name in CHILD_JOBS:
        child = commands.add_parser(name, help="internal: child process")
        child.add_argument("--request", type=Path, required=True, metavar="FILE")
        child.add_argument("--parent-pid", type=int, required=True, metavar="PID")
    return parser


def _add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument("target", metavar="MODEL")
    command.add_argument("--version", type=int, metavar="N")


def _digest(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise argparse.ArgumentTypeError(f"'{text}': expected a build key's 64 hex digits")
    return text


def _generation(text: str) -> Generation:
    try:
        return Generation.parse(text)
    except InvalidRequestError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
