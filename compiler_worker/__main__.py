"""The compiler's process: `python -m compiler_worker COMMAND`.

build MODEL         build, prove and publish the engines of a model version
plan MODEL          list what there is to build for machines like this one, and store the list
prove DIGEST        prove a published engine on this machine's device
sign [DIGEST]       sign a published engine, or all, with the key in SMELT_SIGNING_KEY
export-graph MODEL  write the graph that a replica without an engine compiles itself
replay KEY          run the worst sample of a failed proof once more
import-one, build-one, ...  their child processes: see `child_jobs`
"""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from compiler_worker.arguments import Arguments, parse_arguments
from compiler_worker.settings import CompilerSettings, settings_from_environment
from services.contracts.errors import InvalidRequestError, SmeltError
from services.contracts.process.lifetime import end_with_parent
from services.engines.torch_runtime.waiting_threads import use_passive_wait_policy

EXIT_ERROR = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code: 0 when everything that was tried succeeded."""
    arguments = parse_arguments(argv)
    end_with_parent(arguments.parent_pid)
    try:
        settings = settings_from_environment(**arguments.settings)
        match arguments.command:
            case name if name.endswith("-one"):
                return _run_as_child(arguments)
            case "build":
                return _build(arguments, settings)
            case "plan":
                return _plan(arguments, settings)
            case "prove":
                return _prove(arguments, settings)
            case "sign":
                return _sign(arguments, settings)
            case "replay":
                return _replay(arguments, settings)
            case _:
                return _export_graph(arguments, settings)
    except SmeltError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return EXIT_ERROR


def _run_as_child(arguments: Arguments) -> int:
    # Before what follows imports torch.
    use_passive_wait_policy()
    from compiler_worker.children.child import Events, configure_crash_handling, run_request
    from compiler_worker.children.child_jobs import CHILD_JOBS

    configure_crash_handling()
    # The parent shows these lines unchanged: no JSON here.
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    assert arguments.request is not None
    job = CHILD_JOBS[arguments.command]
    return run_request(job, arguments.request, Events.on_stdout())


def _build(arguments: Arguments, settings: CompilerSettings) -> int:
    from compiler_worker.building.build_report import report_document, report_lines
    from compiler_worker.building.pipeline import build_model
    from compiler_worker.open_worker import open_worker

    worker = open_worker(settings, is_quiet=arguments.is_json)
    version = worker.registry.model_version(arguments.target, arguments.version)
    report = build_model(version, arguments.wanted, worker)
    _show(arguments, report_document(report), report_lines(report, settings.store_url))
    return 0 if report.is_success else EXIT_ERROR


def _plan(arguments: Arguments, settings: CompilerSettings) -> int:
    from compiler_worker.open_worker import open_worker
    from compiler_worker.plans.plan_document import keep_plans, plan_document, plan_lines

    worker = open_worker(settings, is_quiet=arguments.is_json)
    version = worker.registry.model_version(arguments.target, arguments.version)
    plans = keep_plans(version, arguments.wanted, worker)
    lines = [line for plan in plans for line in plan_lines(plan)]
    _show(arguments, [plan_document(plan) for plan in plans], lines)
    return 0


def _prove(arguments: Arguments, settings: CompilerSettings) -> int:
    from compiler_worker.building.build_report import engine_document, engine_line
    from compiler_worker.open_worker import open_worker
    from compiler_worker.proof.proof_job import prove_published
    from services.contracts.model.manifest import ProofOutcome

    worker = open_worker(settings, is_quiet=arguments.is_json)
    engine = prove_published(arguments.target, worker)
    _show(arguments, engine_document(engine), [engine_line(engine)])
    return 0 if engine.proof.outcome is ProofOutcome.PASSED else EXIT_ERROR


def _sign(arguments: Arguments, settings: CompilerSettings) -> int:
    from compiler_worker.open_worker import opened_registry, opened_signer

    registry = opened_registry(settings)
    signer = opened_signer(settings)
    if signer is None:
        raise InvalidRequestError("nothing to sign with: set SMELT_SIGNING_KEY to a PEM file")
    known = [registry.engine(arguments.target)] if arguments.target else registry.engines()
    for engine in known:
        master = registry.master(engine.manifest.key.master_digest)
        registry.sign(engine.manifest, engine.proof, master, signer)
    signed = [engine.digest for engine in known]
    lines = [f"signed {digest[:12]} with key {signer.keyid[:12]}" for digest in signed]
    _show(arguments, {"keyid": signer.keyid, "signed": signed}, lines or ["no engines to sign"])
    return 0


def _replay(arguments: Arguments, settings: CompilerSettings) -> int:
    from compiler_worker.open_worker import open_worker
    from compiler_worker.proof.replay import replay, replay_document, replay_lines

    worker = open_worker(settings, is_quiet=arguments.is_json)
    done = replay(arguments.target, worker)
    _show(arguments, replay_document(done), replay_lines(done))
    return 0 if done.is_success else EXIT_ERROR


def _export_graph(arguments: Arguments, settings: CompilerSettings) -> int:
    from compiler_worker.builders.exported_program import export_program
    from compiler_worker.open_worker import opened_registry
    from compiler_worker.worker_context import MASTER_FILE

    registry = opened_registry(settings)
    version = registry.model_version(arguments.target, arguments.version)
    target = arguments.output or Path(f"{version.master.digest}.pt2")
    master_path = registry.materialise_master(version.master) / MASTER_FILE
    export_program(master_path, version.buckets, target)
    _show(arguments, {"path": str(target)}, [f"exported {target}"])
    return 0


def _show(arguments: Arguments, document: object, lines: Sequence[str]) -> None:
    from services.contracts.model.document import canonical_json

    text = canonical_json(document).decode() if arguments.is_json else "\n".join(lines)
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
