"""What the scales of quantised activations are taken from: part of a recipe."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from services.contracts.model.document import Document


class TrafficCalibration(Document):
    """Rows that replicas sampled, in place of a file; needs `sampling` of every input.

    Attributes:
        min_samples: with fewer no version is calibrated.
        max_drift: distance (Kolmogorov-Smirnov, 0 to 1) of lengths or values to the rows that were
            calibrated with, beyond which the version asks to be calibrated anew.
        rebuild: a controller then publishes the next version itself, as it does the first that is
            calibrated; False leaves it to `smelt samples calibrate`.
        rebuild_after_h: hours of newer samples before a controller publishes the next version, as
            traffic that comes and goes would have it built over and over.
    """

    min_samples: int = Field(default=64, ge=64)
    max_drift: float = Field(default=0.2, gt=0, le=1)
    rebuild: bool = False
    # Left out where it is not given: older releases do not know it.
    rebuild_after_h: float = Field(
        default=24.0, ge=0, le=8784, exclude_if=lambda hours: hours == 24.0
    )


class Calibration(Document):
    """Real inputs that the scales of quantised activations are taken from: one of the two.

    Attributes:
        path: an .npz or .parquet file with one array or column for each input, a row being a
            sample; relative to the recipe's file. It is read once, when the model is added,
            and kept in the store with the model version.
        traffic: samples of requests; `calibration: traffic` has it as by default.
    """

    # Either is left out where it is not given: older releases know the path alone.
    path: str = Field(default="", exclude_if=lambda path: not path)
    traffic: TrafficCalibration | None = Field(default=None, exclude_if=lambda v: v is None)

    @model_validator(mode="after")
    def _is_of_one(self) -> Self:
        if bool(self.path) is bool(self.traffic):
            raise ValueError("expected `{path: FILE}` or `traffic`, one of the two")
        return self


def _in_full(value: object) -> object:
    return {"traffic": {}} if value == "traffic" else value


CalibrationChoice = Annotated[
    Calibration,
    BeforeValidator(_in_full, json_schema_input_type=Calibration | Literal["traffic"]),
]
