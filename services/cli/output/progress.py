"""Progress of long work: a live line for people, plain lines in a log, nothing with --json."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from services.cli.output.show import OUTPUT_FORM, error_console, print_remark
from services.contracts.text.durations import readable_duration

# In a log, details come at most so often.
_LOG_PERIOD_S = 10.0
# Silent for longer, a log looks as if nothing went on.
SILENT_S = 30.0
BEAT_S = 5.0


@contextmanager
def beating(say_still: Callable[[], None]) -> Iterator[None]:
    """Meanwhile a thread looks again and again whether a log was silent for long."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(BEAT_S):
            say_still()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class Steps:
    """Named steps that run one after another; progress goes to standard error."""

    def __init__(
        self, *, is_quiet: bool | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._is_quiet = OUTPUT_FORM.get().as_json if is_quiet is None else is_quiet
        self._clock = clock

    @contextmanager
    def step(self, title: str, ago_s: float = 0.0) -> Iterator["StepLine"]:
        """Show a step while it runs, and how long it took once it is done.

        Args:
            title: what it does.
            ago_s: how long before this call it began.
        """
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            _Elapsed(),
            # A builder's output may hold [brackets], which are no markup.
            TextColumn("{task.fields[detail]}", style="dim", markup=False, table_column=_rest()),
            console=error_console(),
            expand=True,
            transient=True,
            # Without a terminal a bar would fill a log with control characters.
            disable=self._is_quiet or not error_console().is_terminal,
        ) as progress:
            line = StepLine(progress, title, self._clock, ago_s, is_quiet=self._is_quiet)
            with beating(line.say_still):
                yield line
        if not self._is_quiet:
            words = f"{line.elapsed} {line.summary}"
            error_console().print(f"[green]done[/] {title} [dim]{words}[/]", soft_wrap=True)


class StepLine:
    """The line of one step; all its methods are safe to call from any thread.

    Attributes:
        summary: shown behind the step once it is done.
    """

    def __init__(
        self,
        progress: Progress,
        title: str,
        clock: Callable[[], float],
        ago_s: float = 0.0,
        *,
        is_quiet: bool,
    ) -> None:
        """Begin the step, and its time.

        Args:
            progress: shows the line; disabled without a terminal.
            title: what the step does.
            clock: seconds.
            ago_s: how long before this call it began.
            is_quiet: with --json: nothing is shown.
        """
        self._progress = progress
        self._title = title
        self._clock = clock
        self._started = clock() - ago_s
        self._is_quiet = is_quiet
        self._is_plain = progress.disable and not is_quiet
        self._logged = clock()
        self._place = ""
        self._task = progress.add_task(title, total=None, detail="", ago_s=ago_s)
        self.summary = ""

    @property
    def elapsed(self) -> str:
        """How long the step has taken, in words."""
        return readable_duration(self._clock() - self._started)

    def begin(self, place: int, total: int, detail: str = "") -> None:
        """Show which of several parts begins.

        Args:
            place: from 1.
            total: number of parts.
            detail: name of the part; "" shows none.
        """
        self._place = f"{place} of {total}"
        self._progress.update(self._task, description=f"{self._title}: {self._place}")
        if detail:
            self.update(detail)

    def show(self, detail: str) -> None:
        """Show what happens now; of several within some seconds, a log has the first alone."""
        self._progress.update(self._task, detail=detail)
        if self._clock() - self._logged >= _LOG_PERIOD_S:
            self._log(detail)

    def wait(self, detail: str) -> None:
        """Show what is awaited; a log has it only once it was silent for long."""
        self._progress.update(self._task, detail=detail)

    def keep(self, remark: str) -> None:
        """Show something that stays, whatever the step does next."""
        if not self._is_quiet:
            print_remark(f"  {remark}")

    def event(self, words: str, at: float | None = None) -> float:
        """Keep what happened, with how many seconds after the start of the step; returns those.

        Args:
            words: one line.
            at: when, in seconds since the epoch; None is now.
        """
        ago_s = 0.0 if at is None else time.time() - at
        since_s = self._clock() - self._started - ago_s
        self.keep(f"[{since_s:6.1f} s] {words}")
        return since_s

    def update(self, detail: str) -> None:
        """Show what happens now, in a log too."""
        self._progress.update(self._task, detail=detail)
        self._log(detail)

    def say_still(self) -> None:
        """In a log that has been silent for long, that the step goes on."""
        if self._clock() - self._logged >= SILENT_S:
            (task,) = self._progress.tasks
            self._log(": ".join(filter(None, ("still at it", task.fields["detail"]))))

    def _log(self, detail: str) -> None:
        if not self._is_plain:
            return
        self._logged = self._clock()
        where = ", ".join(filter(None, (self._place, self.elapsed)))
        line = f"  {self._title} ({where}): {detail}"
        error_console().print(line, markup=False, soft_wrap=True)


def _rest() -> Column:
    """What the other columns leave: a long detail is cut, not the time before it."""
    return Column(ratio=1, no_wrap=True, overflow="ellipsis")


class _Elapsed(ProgressColumn):
    """The time since a step began, as its log has it."""

    def render(self, task: Task) -> Text:
        return Text(
            readable_duration((task.elapsed or 0.0) + task.fields["ago_s"]),
            style="progress.elapsed",
        )
