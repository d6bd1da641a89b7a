"""Runs a model that is added as it is to be served, with a deadline."""

from dataclasses import replace

from compiler_worker.children.child import Events
from compiler_worker.children.child_jobs import CHECK
from compiler_worker.children.deadline import run_check
from compiler_worker.children.requests import CheckRequest, ServedShapes
from compiler_worker.model_checks.file_check import check_file
from compiler_worker.model_checks.served_shapes import served_shapes
from compiler_worker.model_checks.varied_check import check_varied
from compiler_worker.settings import CompilerSettings
from services.contracts.errors import InvalidModelError, InvalidRecipeError


def run_model(request: CheckRequest, settings: CompilerSettings) -> ServedShapes:
    """Make all checks that run a model; in this process with a deadline of 0.

    Args:
        request: the model, and what is asked of it.
        settings: deadline and memory.

    Raises:
        InvalidModelError: there is no answer within the deadline, or the process crashed; or the
            master computes something else than its file.
        InvalidRecipeError: the model fails at what the owner says of it.
    """
    return run_check(
        CHECK,
        request,
        settings,
        "the model cannot be run in ONNX Runtime at the sizes that it is to be served at",
        "smaller buckets in its recipe, or a Loop that ends, take less",
        InvalidModelError,
        InvalidRecipeError,
    )


def check_one(request: CheckRequest, _: Events | None = None) -> ServedShapes:
    """The inside of the child: run the master as it is to be served, and beside its file."""
    master = request.master_path, request.master
    served = served_shapes(master, request.recipe, request.limits, request.unnamed)
    if (own := request.file) is not None:
        check_file(own.path, replace(served, path=own.master_path, record=own.master), own.classes)
    unvaried = check_varied(served) if request.is_drawn else ()
    return ServedShapes(
        recipe=served.recipe, buckets=served.buckets, remarks=(*served.remarks, *unvaried)
    )
