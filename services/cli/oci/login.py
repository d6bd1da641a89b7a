"""What Docker's configuration says of a registry: after `docker login`, or by a helper's word."""

import base64
import json
import subprocess
from pathlib import Path

from services.contracts.errors import InvalidRequestError
from services.contracts.process.settings import ProcessSettings

_HELPER_TIMEOUT_S = 60.0


class _DockerEnvironment(ProcessSettings):
    docker_config: Path = Path("~/.docker")


def login_of(registry: str) -> str:
    """`USER:PASSWORD` for a registry; "" where there is none.

    Raises:
        InvalidRequestError: the configuration or its helper cannot be read.
    """
    path = _DockerEnvironment().docker_config.expanduser() / "config.json"
    try:
        config = json.loads(path.read_bytes()) if path.exists() else {}
        auth = config.get("auths", {}).get(registry, {}).get("auth")
        helper = config.get("credHelpers", {}).get(registry) or config.get("credsStore")
        if auth or not helper:
            return base64.b64decode(auth or "").decode()
        done = subprocess.run(
            [f"docker-credential-{helper}", "get"],
            input=registry.encode(),
            capture_output=True,
            timeout=_HELPER_TIMEOUT_S,
            check=False,
        )
        found = json.loads(done.stdout if done.returncode == 0 else "{}")  # it knows none
        return f"{found['Username']}:{found['Secret']}" if found else ""
    except (OSError, ValueError, KeyError, AttributeError, subprocess.SubprocessError) as error:
        # Neither its words nor where it comes from: they may hold what is secret.
        raise InvalidRequestError(
            f"{path}, or the credential helper that it names, cannot be read "
            f"({type(error).__name__}); write it anew: docker login {registry}"
        ) from None
