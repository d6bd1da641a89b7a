"""Headless Chromium for tests, driven by the DevTools protocol over a pipe."""

import base64
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self
from urllib.parse import urljoin

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
# Reads frames on descriptor 3 and writes them to 4, whatever numbers they have here.
_PIPED = 'exec "$0" "$@" 3<&"$READ_FD" 4>&"$WRITE_FD"'
_OPTIONS = (
    "--headless",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-dev-shm-usage",
)
SHOWN = """new Promise(done => {
  const look = () => performance.getEntriesByName('shown').length
    ? done(performance.getEntriesByName('shown')[0].startTime) : setTimeout(look, 5);
  look();
})"""


class Browser:
    """One tab."""

    def __init__(self, read: Any, write: Any) -> None:
        self._read, self._write = read, write
        self._numbers = itertools.count(1)
        self._events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """The result of a method."""
        number = next(self._numbers)
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": number, "method": method, "params": params, **session}
        self._write.write(json.dumps(message).encode() + b"\0")
        self._write.flush()
        while (found := self._next()).get("id") != number:
            self._events.append(found)
        assert "error" not in found, found
        return found["result"]

    def open(
        self, url: str, *, width: int = 1180, height: int = 900, scheme: str = "light"
    ) -> Self:
        """Load a page in a window of that size, and wait for the end of its load."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=media)
        # Else an address that differs after the # alone is no new page. Not a blank one: for each
        # change of the site Chromium starts a process.
        self.call("Page.navigate", url=urljoin(url, "/nothing"))
        self._events.clear()
        self.call("Page.navigate", url=url)
        while not any(
            event.get("method") == "Page.loadEventFired" and self.here() for event in self._events
        ):
            self._events.append(self._next())
        return self

    def here(self) -> bool:
        """Whether it is at the page, and not before it."""
        return bool(self.run("location.pathname === '/'"))

    def run(self, script: str) -> Any:
        """The value of an expression, or of what it promises."""
        done = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def until(self, condition: str) -> None:
        """Return once an expression is true in the page."""
        look = f"const look = () => ({condition}) ? done() : setTimeout(look, 5);"
        self.run(f"new Promise(done => {{ {look} look(); }})")

    @property
    def complaints(self) -> list[str]:
        """What the page logged: refused by its policy, or thrown."""
        logged = [e["params"]["entry"] for e in self._events if e.get("method") == "Log.entryAdded"]
        # Where each load begins, nothing is.
        entries = [e["text"] for e in logged if not e.get("url", "").endswith("/nothing")]
        thrown = [
            str(e["params"]) for e in self._events if e.get("method") == "Runtime.exceptionThrown"
        ]
        return entries + thrown

    def picture(self, path: Path) -> None:
        """Write what is seen as PNG."""
        data = self.call("Page.captureScreenshot", format="png", optimizeForSpeed=False)["data"]
        path.write_bytes(base64.b64decode(data))

    def _next(self) -> dict[str, Any]:
        frame = bytearray()
        while (byte := self._read.read(1)) != b"\0":
            assert byte, "Chromium has ended"
            frame += byte
        found: dict[str, Any] = json.loads(frame)
        return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a profile of its own."""
    # Root has no sandbox.
    options = [*_OPTIONS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    theirs_read, ours_write = os.pipe()
    ours_read, theirs_write = os.pipe()
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            ["bash", "-c", _PIPED, CHROMIUM, *options, f"--user-data-dir={profile}"],
            env=os.environ | {"READ_FD": str(theirs_read), "WRITE_FD": str(theirs_write)},
            pass_fds=(theirs_read, theirs_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_read)
        os.close(theirs_write)
        with os.fdopen(ours_read, "rb") as read, os.fdopen(ours_write, "wb") as write:
            try:
                browser = Browser(read, write)
                yield browser
                browser.call("Browser.close")
            finally:
                process.terminate()
                process.wait()
