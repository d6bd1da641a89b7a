"""Progress of long work: a live line for people, plain lines in a log, nothing with --json."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from services.cli.output.show import error_console


class Steps:
    """Named steps that run one after another; progress goes to standard error."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet

    @contextmanager
    def step(self, title: str) -> Iterator["StepLine"]:
        """Show a step while it runs, and its seconds once it is done."""
        started = time.monotonic()
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            # A builder's output may hold [brackets], which are no markup.
            TextColumn("{task.fields[detail]}", style="dim", markup=False),
            console=error_console,
            transient=True,
            # Without a terminal a bar would fill a log with control characters.
            disable=self._is_quiet or not error_console.is_terminal,
        ) as progress:
            line = StepLine(progress, title, is_quiet=self._is_quiet)
            yield line
        if not self._is_quiet:
            elapsed_s = time.monotonic() - started
            error_console.print(f"[green]done[/] {title} [dim]{elapsed_s:.1f} s {line.summary}[/]")


class StepLine:
    """The line of one step; `update` and `show` are safe to call from any thread.

    Attributes:
        summary: shown behind the step once it is done.
    """

    def __init__(self, progress: Progress, title: str, *, is_quiet: bool) -> None:
        self._progress = progress
        self._title = title
        self._is_quiet, self._is_plain = is_quiet, progress.disable and not is_quiet
        self._task = progress.add_task(title, total=None, detail="")
        self.summary = ""

    def show(self, detail: str) -> None:
        """Show what happens now on a terminal alone; a log would only grow by it."""
        self._progress.update(self._task, detail=detail)

    def keep(self, remark: str) -> None:
        """Show something that stays, whatever the step does next."""
        if not self._is_quiet:
            error_console.print(f"  {remark}", markup=False)

    def update(self, detail: str) -> None:
        """Show what happens now, in a log too."""
        self.show(detail)
        if self._is_plain:
            error_console.print(f"  {self._title}: {detail}", markup=False)
