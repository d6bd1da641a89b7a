"""Where the Ray of a fleet writes on this host, for `smelt logs`: also once the fleet has ended."""

from pathlib import Path
from typing import Final

# In the fleet's folder: /tmp/ray/session_latest may be of another user or of another fleet.
RAY_LOGS: Final = "ray-logs"


def session_logs() -> Path:
    """The log folder of the session that this process has joined."""
    import ray

    context = ray.get_runtime_context()
    return Path(context.get_temp_dir(), context.get_session_name(), "logs")


def link_logs(run_dir: Path, logs: Path) -> None:
    """Have a fleet's folder lead to the logs of its Ray."""
    run_dir.mkdir(parents=True, exist_ok=True)
    partial = run_dir / f"{RAY_LOGS}.partial"
    partial.unlink(missing_ok=True)
    partial.symlink_to(logs)
    partial.replace(run_dir / RAY_LOGS)
