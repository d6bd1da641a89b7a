"""`smelt token`: what it prints is what a gateway's access file takes."""

import json

import yaml
from typer.testing import CliRunner

from services.cli.main import app
from services.gateway.access.access_file import AccessDocument, Grant
from services.gateway.access.static_tokens import StaticTokens
from services.gateway.access.verbs import Verb


def test_the_entry_lets_the_token_in() -> None:
    asked = ["token", "search", "--verb", "infer", "--verb", "load", "--model", "rank-*"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0
    first, _, entry = done.stdout.split("\n", 2)
    tokens = StaticTokens(AccessDocument.from_yaml(entry, "printed").tokens)
    caller = tokens.find(first.removeprefix("token (shown once): "))
    assert caller is not None
    assert caller.name == "search"
    assert caller.grants == (Grant(verbs=(Verb.INFER, Verb.LOAD), models=("rank-*",)),)


def test_json_has_token_and_entry_and_every_token_is_another() -> None:
    runs = [CliRunner().invoke(app, ["token", "ada", "--json"]) for _ in range(2)]
    first, second = (json.loads(run.stdout) for run in runs)
    assert first["token"] != second["token"]
    document = AccessDocument.from_yaml(yaml.safe_dump({"tokens": [first["entry"]]}), "printed")
    assert document.tokens[0].grants == (Grant(verbs=(Verb.INFER,)),)
