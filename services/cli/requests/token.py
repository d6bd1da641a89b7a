"""`smelt token`: a new bearer token and its entry for the gateway's access file."""

import yaml

from services.cli.output.show import show
from services.gateway.access.access_file import Grant, StaticToken
from services.gateway.access.static_tokens import new_token, token_hash
from services.gateway.access.verbs import Verb


def run_token(name: str, verbs: list[Verb], models: list[str]) -> None:
    """Make and print a token, and its entry for the access file; the token is stored nowhere.

    Args:
        name: of the caller in logs.
        verbs: that it may use.
        models: names of models that it may use them on; `*` stands for any characters.
    """
    secret = new_token()
    grants = (Grant(verbs=tuple(verbs), models=tuple(models)),)
    entry = StaticToken(name=name, sha256=token_hash(secret), grants=grants)
    plain = entry.model_dump(mode="json")
    text = [
        f"token (shown once): {secret}",
        "add to the file that SMELT_GATEWAY_ACCESS_FILE names:",
        yaml.safe_dump({"tokens": [plain]}, sort_keys=False).rstrip(),
    ]
    show({"token": secret, "entry": plain}, text, is_wide=True)
