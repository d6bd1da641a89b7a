"""The arguments of `python -m compiler_worker` for a build task."""

from services.controller.interfaces import BuildTask


def worker_arguments(task: BuildTask) -> list[str]:
    """The command and what it is about; where store and cache are the launcher adds."""
    arguments = ["build", task.model, "--version", str(task.version)]
    arguments += ["--generation", task.node_class.generation]
    if task.is_anywhere:
        arguments.append("--elsewhere")
    if task.compiler:
        arguments += ["--compiler", task.compiler]
    for digest in task.key_digests:
        arguments += ["--key", digest]
    if task.is_first:
        arguments.append("--first")
    # What failed is tried again when its time has come, by its key.
    return arguments if task.key_digests else [*arguments, "--untried"]
