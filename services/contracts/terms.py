"""What a proof was asked for, as one digest: equal terms, equal meaning of "proven"."""

import hashlib

from services.contracts.hardware.kinds import Precision
from services.contracts.model.document import canonical_json
from services.contracts.model.manifest import BlobRef, ModelVersion
from services.contracts.model.recipe import Recipe


def proof_terms(recipe: Recipe, precision: Precision, samples: BlobRef | None) -> str:
    """Full sha256, in hex, of what decides whether an engine of that precision is proven.

    Two recipes of one master may differ in what they call equal. An engine that was proven
    for the lax one must not serve the strict one, so these terms are part of its build key.

    Args:
        recipe: of the model version.
        precision: of the engine; other precisions' tolerances do not count.
        samples: None when inputs are drawn.
    """
    asked = recipe.model_dump(mode="json", include={"inputs", "outputs", "ranking"})
    for drawn in asked["inputs"].values():
        for limit in ("min", "max"):
            # What a request may hold bounds what is drawn, unless that has a range of its own.
            if drawn["high"] is not None or drawn[limit] is None:
                del drawn[limit]
    tolerance = recipe.tolerances.get(precision)
    asked["tolerance"] = tolerance.model_dump(mode="json") if tolerance else None
    if recipe.tasks:
        asked["tasks"] = [task.model_dump(mode="json") for task in recipe.tasks]
    asked["batch_dim"] = recipe.batching.batch_dim
    asked["samples"] = samples.sha256 if samples else ""
    return hashlib.sha256(canonical_json(asked)).hexdigest()


def calibration_digest(version: ModelVersion, precision: Precision) -> str:
    """Digest of the samples that an engine's scales come from; "" where there are no scales.

    Of traffic with their number, window, and the digest of those that were held out for proofs.
    """
    if not precision.is_calibrated or version.calibration is None:
        return ""
    digest = version.calibration.sha256
    if (traffic := version.traffic) is None:
        return digest
    window = f"{traffic.num_samples} samples from {traffic.begins_at} to {traffic.ends_at}"
    return f"{digest}, {window}, proven with {traffic.held_out.sha256}"
