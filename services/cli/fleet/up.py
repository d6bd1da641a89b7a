"""`smelt up`: a fleet on this host, with or without the demo."""

import os
import sys

from services.cli.fleet.child_process import spawn
from services.cli.fleet.fleet_file import RunningFleet, find_fleet, make_run_dir, starting_words
from services.cli.fleet.local_fleet import LocalFleet, StopRequested
from services.cli.fleet.up_options import UpOptions
from services.cli.output.progress import Steps
from services.cli.output.show import INTERRUPTED, OUTPUT_FORM, print_line, print_remark, show
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError, NotReadyError
from services.contracts.hardware.facts import Generation
from services.telemetry.child_log import ChildLog
from services.telemetry.ready import announce_ready, wait_ready

# Ray, controller and gateway start one after the other, then models load.
_STARTS_OF_A_FLEET = 15


def run_up(
    settings: CliSettings,
    options: UpOptions,
    *,
    is_demo: bool,
    is_over_after_demo: bool,
    is_detached: bool,
) -> int:
    """Run a fleet until Ctrl-C, which is no failure then.

    Args:
        settings: where store, cache and logs are.
        options: of the fleet.
        is_demo: add the demo's model and send it requests.
        is_over_after_demo: stop after that.
        is_detached: start the fleet in the background, and return once it serves.

    Returns:
        The exit code: 1 when `is_over_after_demo` and a request failed or an answer did not
        match, 130 when Ctrl-C came before anything served. `smelt down` is no failure, but
            where the end of the demo was wanted.

    Raises:
        InvalidRequestError: no such generation.
        SmeltError: something did not start; the message names it and its log.
    """
    # Refused before Ray is started, which takes seconds.
    if options.generation:
        Generation.parse(options.generation)
    if is_detached:
        return _detach(settings)
    code = 0
    as_json = OUTPUT_FORM.get().as_json
    ended: KeyboardInterrupt | None = None
    try:
        with LocalFleet(settings, options) as fleet:
            is_good = _begin(settings, fleet, is_demo=is_demo)
            if is_over_after_demo:
                return 0 if is_good else 1
            announce_ready(settings.ready_fd, fleet.running.model_dump())
            _print_serving(fleet.running, fleet.settings, "Ctrl-C")
            if is_demo and not as_json:
                _print_next_steps()
            try:
                fleet.serve_until_stopped()
            except KeyboardInterrupt as request:
                ended = request
    except KeyboardInterrupt as request:
        ended = request
        if is_over_after_demo or not isinstance(ended, StopRequested):
            code = INTERRUPTED
    if not as_json:
        is_asked = isinstance(ended, StopRequested)
        print_line("stopped: smelt down (SIGTERM) ended it" if is_asked else "stopped")
    return code


def _begin(settings: CliSettings, fleet: LocalFleet, *, is_demo: bool) -> bool:
    """Start the fleet; whether the demo showed what it should, True without a demo."""
    if is_demo:
        from services.cli.demo.demo import run_demo

        return run_demo(fleet)
    steps = Steps()
    with steps.step("Fleet") as line:
        fleet.start(line.begin)
    with steps.step("Models") as line:
        try:
            fleet.wait_settled(settings.start_timeout_s, line.begin)
        except NotReadyError:
            line.summary = "some are still loading: smelt status"
    return True


def _print_next_steps() -> None:
    from services.cli.demo.words import next_steps

    for line in next_steps():
        print_line(line, is_folded=True)


def _print_serving(running: RunningFleet, settings: CliSettings, how_to_stop: str) -> None:
    metrics = f"http://{running.metrics_address}/metrics"
    http = f", over HTTP on {running.http_address}" if running.http_address else ""
    where = f"Serving KServe v2 on {running.grpc_address}{http}, metrics on {metrics}."
    text = [f"{where} {how_to_stop} stops."]
    if page_url := running.page_url(settings):
        text.append(f"What serves, and what is built: {page_url}")
    if running.prometheus_url:
        text.append(f"Prometheus on {running.prometheus_url}, with rules and alerts.")
    if running.grafana_url:
        text.append(f"Grafana on {running.grafana_url}, with the boards.")
    elif running.boards_hint:
        text.append(f"{running.boards_hint}.")
    show(running.model_dump(), text)


def _detach(settings: CliSettings) -> int:
    """Run the same command in a session of its own; return once it serves.

    Raises:
        InvalidRequestError: a fleet runs or starts here already.
        NotReadyError: it did not start; the message holds why, and where its log is.
        KeyboardInterrupt: of Ctrl-C, once what had started has ended.
    """
    existing = find_fleet(settings.run_dir)
    if existing is not None:
        raise InvalidRequestError(
            f"a fleet runs already (gRPC {existing.grpc_address}); stop it: smelt down"
        )
    if words := starting_words(settings.run_dir):
        raise InvalidRequestError(f"{words}; what it does: smelt logs; stop it: smelt down")
    # The same command in the foreground, as a process that outlives this terminal.
    arguments = [a for a in sys.argv[1:] if a != "--detach"]
    make_run_dir(settings.run_dir)
    log_path = settings.run_dir / "up.log"
    # Never begun anew: another start may be writing to it.
    log = ChildLog.from_here(log_path)
    read_fd, write_fd = os.pipe()
    environment = dict(os.environ) | {"SMELT_READY_FD": str(write_fd)}
    command = [sys.executable, "-m", "services.cli.main", *arguments]
    process = spawn(command, environment, log_path, write_fd)
    # Else this end keeps the pipe open, and the child's death would not end the wait.
    os.close(write_fd)
    try:
        with Steps().step(f"Fleet (steps: {log_path})"):
            timeout_s = _STARTS_OF_A_FLEET * settings.start_timeout_s
            announced = wait_ready(read_fd, timeout_s, "smelt up", log)
    except KeyboardInterrupt as interrupt:
        # As in the foreground; a second Ctrl-C leaves it to end alone.
        print_remark("stopping the fleet that was starting")
        process.terminate()
        process.wait()
        interrupt.add_note("the fleet that was starting has ended")
        raise
    # Read again: the fleet has made its token, if there was none.
    known = CliSettings(home=settings.home)
    _print_serving(RunningFleet(**announced), known, "smelt down")
    return 0
