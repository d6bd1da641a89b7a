"""Where the Ray of a fleet writes on this host, for `smelt logs`: also once the fleet has ended."""

import logging
import shutil
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

# In the fleet's folder: /tmp/ray/session_latest may be of another user or of another fleet.
RAY_LOGS: Final = "ray-logs"
# Beside it, links to the sessions that this fleet has begun: a supervisor that is killed removes
# none, so that the next one has to find them.
_BEGUN: Final = "ray-"


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


def note_session(run_dir: Path, session: Path) -> None:
    """Have a fleet's folder lead to a session that the fleet has begun, for `end_sessions`."""
    (run_dir / f"{_BEGUN}{session.name}").symlink_to(session)


def end_sessions(run_dir: Path) -> None:
    """Remove the folders of sessions that this fleet has begun, and that have ended.

    The logs that the fleet's folder leads to are moved there. What cannot be removed is a warning,
    and is tried again by the next call.
    """
    kept = run_dir / RAY_LOGS
    for begun in run_dir.glob(f"{_BEGUN}session_*"):
        session = begun.readlink()
        logs = session / "logs"
        latest = session.with_name("session_latest")
        try:
            if kept.is_symlink() and kept.readlink() == logs and logs.exists():
                kept.unlink()
                shutil.move(logs, kept)
            if session.exists():
                shutil.rmtree(session)
            if latest.is_symlink() and latest.readlink() == session:
                latest.unlink()
            begun.unlink()
        except OSError as error:
            logger.warning("%s, of this fleet's Ray, is not removed: %s", session, error)
