"""`smelt logs`: what the processes of this host's fleet wrote."""

from collections.abc import Iterable
from typing import Any

from services.cli.logs.log_files import RAYS_OWN, LogFile, LogPlaces, log_places
from services.cli.logs.log_lines import LogLine, LogReader
from services.cli.output.show import show, show_entry
from services.cli.settings import CliSettings
from services.cli.why.stop_signals import stop_signals
from services.contracts.errors import NotFoundError
from services.contracts.text.nearest import nearest

# New replicas have new files, in a folder that Ray writes to all the time.
_FOLLOW_PERIOD_S = 1.0


def run_logs(
    settings: CliSettings, component: str, *, num_lines: int, is_followed: bool, is_rays: bool
) -> None:
    """Print the last lines of all logs in the order of time, and with `is_followed` what comes.

    Args:
        settings: of the command line.
        component: only of this; "" for all but what Ray writes itself.
        num_lines: at most so many, of all files together.
        is_followed: until Ctrl-C or SIGTERM.
        is_rays: what Ray writes itself too, where it is not what was asked for.

    Raises:
        NotFoundError: there are no logs, or none of that component.
    """
    places = log_places(settings.run_dir)
    files = _files(places, component, is_rays=is_rays)
    is_rays = is_rays or component in RAYS_OWN
    reader = LogReader()
    # Of all components together, one with many lines would hide the others.
    is_detailed = bool(component)
    last = reader.read(files, is_detailed=is_detailed, is_rays=is_rays)[-num_lines:]
    if not is_followed:
        document = {"files": [_file(file) for file in files], "lines": [_line(x) for x in last]}
        show(document, (line.words() for line in last), is_wide=True)
        return
    with stop_signals() as is_stopped:
        _print(last)
        while not is_stopped(_FOLLOW_PERIOD_S):
            found = _matching(places, component, is_rays=is_rays)
            new = reader.read(found, is_detailed=is_detailed, is_rays=is_rays)
            _print(new)


def run_log_files(settings: CliSettings, component: str, *, is_rays: bool) -> None:
    """Print where the log files are.

    Args:
        settings: name the folder of this host's fleet.
        component: "" for all.
        is_rays: what Ray writes itself too.

    Raises:
        NotFoundError: as `run_logs`.
    """
    files = _files(log_places(settings.run_dir), component, is_rays=is_rays)
    text = (f"{file.component:<13} {file.path}" for file in files)
    show({"files": [_file(file) for file in files]}, text, is_wide=True)


def _matching(places: LogPlaces, component: str, *, is_rays: bool) -> list[LogFile]:
    return [file for file in places.files() if file.is_of(component, is_rays=is_rays)]


def _files(places: LogPlaces, component: str, *, is_rays: bool) -> list[LogFile]:
    """Those of a component; raises NotFoundError for none."""
    if found := _matching(places, component, is_rays=is_rays):
        return found
    where = f"those of smelt up are in {places.run_dir}, those of Ray in {places.ray_dir.resolve()}"
    known = sorted({file.component for file in places.files()})
    if not known:
        raise NotFoundError(f"no logs are here yet: {where}; start a fleet: smelt up")
    if not component:
        raise NotFoundError(f"no logs of Smelt are here yet: {where}")
    raise NotFoundError(
        f"no log of '{component}'{nearest(component, known)}; there are {', '.join(known)}: {where}"
    )


def _print(lines: Iterable[LogLine]) -> None:
    for line in lines:
        show_entry(_line(line), line.words())


def _line(line: LogLine) -> dict[str, Any]:
    return {**(line.record or {"message": line.text}), "component": line.component, "time": line.at}


def _file(file: LogFile) -> dict[str, str]:
    return {"component": file.component, "path": str(file.path)}
