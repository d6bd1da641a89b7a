"""Where the logs of this host's fleet lie, and of what each is.

`smelt up` writes one file for each of its processes to the folder `run` of SMELT_HOME. Replicas and
build tasks are workers of Ray, whose standard error is a file in the folder of Ray's session.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from services.cli.logs.rotation import own_logs
from services.controller.platform.ray.session_logs import RAY_LOGS

# What Ray itself writes: many lines about nothing that Smelt did.
RAYS_OWN: Final = ("raylet", "gcs_server", "serve")
_ACTOR: Final = ":actor_name:"
# A worker that was started ahead may have warned of something before it got to know its actor.
_FIRST_LINES: Final = 20


@dataclass(frozen=True, kw_only=True)
class LogFile:
    """One file; `component` is for example `gateway`, `build`, or `replica:ranker:1`."""

    component: str
    path: Path

    def is_of(self, wanted: str, *, is_rays: bool = False) -> bool:
        """Whether it is of a component: `replica` is all of `replica:ranker:1`.

        "" is all but what Ray itself writes, and with `is_rays` that too.
        """
        if not wanted:
            return is_rays or self.component not in RAYS_OWN
        return self.component == wanted or self.component.startswith(f"{wanted}:")


@dataclass(frozen=True, kw_only=True)
class LogPlaces:
    """The folders with logs; either may be absent.

    Attributes:
        run_dir: of the processes of `smelt up`.
        ray_dir: of a session of Ray; a link may lead to another one later.
    """

    run_dir: Path
    ray_dir: Path
    _components: dict[Path, str] = field(default_factory=dict, init=False)

    def files(self) -> list[LogFile]:
        """Every file that is there now."""
        own = [LogFile(component=path.stem, path=path) for path in own_logs(self.run_dir)]
        return sorted([*own, *self._rays()], key=lambda file: (file.component, file.path))

    def _rays(self) -> Iterator[LogFile]:
        ray_dir = self.ray_dir.resolve()
        for name in ("raylet", "gcs_server"):
            if (path := ray_dir / f"{name}.out").exists():
                yield LogFile(component=name, path=path)
        for path in ray_dir.glob("worker-*.err"):
            # What a worker runs never changes, and a session may have had thousands.
            component = self._components.get(path) or _component_of(path)
            if component:
                self._components[path] = component
                yield LogFile(component=component, path=path)


def log_places(run_dir: Path) -> LogPlaces:
    """Of the fleet that runs here, else of the last one that ran here."""
    return LogPlaces(run_dir=run_dir, ray_dir=run_dir / RAY_LOGS)


def _component_of(path: Path) -> str:
    """What a worker of Ray runs, by the first lines of its file; "" before it runs anything."""
    with path.open(encoding="utf-8", errors="replace") as file:
        named = [line for line in islice(file, _FIRST_LINES) if line.startswith(_ACTOR)]
    actor = named[0].removeprefix(_ACTOR).strip() if named else ""
    if actor.startswith("BuildActor"):
        return "build"
    if not actor.startswith("ServeReplica:"):
        return "serve" if actor else ""
    # ServeReplica:smelt:MODEL:VERSION:GENERATION:replica
    _, _, *words = actor.split(":")
    return ":".join(["replica", *words[:2]])
