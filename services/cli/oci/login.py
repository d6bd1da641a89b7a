"""What Docker's configuration says of a registry: after `docker login`, or by a helper's word."""

import base64
import json
import subprocess
from pathlib import Path

from pydantic_settings import BaseSettings

from services.contracts.errors import InvalidRequestError

_HELPER_TIMEOUT_S = 60.0


class _DockerEnvironment(BaseSettings):
    docker_config: Path = Path("~/.docker")


def login_file() -> Path:
    """Docker's configuration of this user; it may be missing."""
    return _DockerEnvironment().docker_config.expanduser() / "config.json"


def login_of(registry: str) -> str | None:
    """`USER:PASSWORD` for a registry; None where there is none.

    Raises:
        InvalidRequestError: the configuration or its helper cannot be read.
    """
    path = login_file()
    try:
        config = json.loads(path.read_bytes()) if path.exists() else {}
        if auth := config.get("auths", {}).get(registry, {}).get("auth"):
            return base64.b64decode(auth).decode()
        helper = config.get("credHelpers", {}).get(registry) or config.get("credsStore")
        if not helper:
            return None
        command = [f"docker-credential-{helper}", "get"]
        given = registry.encode()
        done = subprocess.run(
            command, input=given, capture_output=True, timeout=_HELPER_TIMEOUT_S, check=False
        )
        if done.returncode != 0:  # as it ends where it knows none
            return None
        found = json.loads(done.stdout)
        return f"{found['Username']}:{found['Secret']}"
    except (OSError, ValueError, KeyError, AttributeError, subprocess.SubprocessError) as error:
        # Neither its words nor where it comes from: they may hold what is secret.
        raise InvalidRequestError(
            f"{path}, or the credential helper that it names, cannot be read "
            f"({type(error).__name__}); write it anew: docker login {registry}"
        ) from None
