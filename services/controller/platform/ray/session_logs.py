"""Where the Ray of a fleet writes on this host, for `smelt logs`: also once the fleet has ended."""

import logging
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

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
    kept = run_dir / RAY_LOGS
    partial = run_dir / f"{RAY_LOGS}.partial"
    partial.unlink(missing_ok=True)
    partial.symlink_to(logs)
    if not kept.is_symlink():
        # Those of the fleet before, kept by `end_sessions`.
        shutil.rmtree(kept, ignore_errors=True)
    partial.replace(kept)


def end_sessions(run_dir: Path, sessions: Iterable[Path]) -> None:
    """Remove the folders of sessions that have ended, which this fleet has begun.

    The logs that the fleet's folder leads to are moved there. What cannot be removed is a warning.
    """
    kept = run_dir / RAY_LOGS
    for session in sessions:
        logs = session / "logs"
        latest = session.with_name("session_latest")
        try:
            if kept.is_symlink() and kept.readlink() == logs:
                kept.unlink()
                shutil.move(logs, kept)
            shutil.rmtree(session)
            if latest.is_symlink() and latest.readlink() == session:
                latest.unlink()
        except OSError as error:
            if session.exists():
                logger.warning("%s, of this fleet's Ray, is not removed: %s", session, error)
