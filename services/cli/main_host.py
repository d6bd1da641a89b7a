"""The commands that look at this host: its means, and the logs of its fleet."""

from typing import Annotated

import typer

from services.cli.main_options import Store, settings_for

host_app = typer.Typer()


@host_app.command(epilog="Example: smelt doctor --store s3://bucket/smelt")
def doctor(store: Store = "") -> None:
    """Check this host: devices, engines, ports, disk, store, Ray; exit code 1 for a problem."""
    from services.cli.doctor.doctor import run_doctor

    raise typer.Exit(run_doctor(settings_for(store)))


@host_app.command(epilog="Example: smelt logs replica:ranker --follow")
def logs(
    component: Annotated[
        str,
        typer.Argument(
            help="Only of this: gateway, controller, ray, up, build, replica, replica:MODEL, "
            "replica:MODEL:VERSION; raylet, gcs_server and serve are Ray's own."
        ),
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", help="Follow until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 50,
    files: Annotated[bool, typer.Option("--files", help="List the files instead.")] = False,
    ray: Annotated[
        bool, typer.Option("--ray", help="Include Ray's informational log lines.")
    ] = False,
) -> None:
    """Show the logs of this host's fleet, of all its processes in the order of time."""
    from services.cli.logs.logs import run_log_files, run_logs

    if files:
        run_log_files(settings_for(), component, is_rays=ray)
        return
    run_logs(settings_for(), component, num_lines=lines, is_followed=follow, is_rays=ray)
