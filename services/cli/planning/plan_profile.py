"""What a plan is asked for: the requests of each model, and the devices that can be had."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from services.contracts.errors import InvalidRequestError
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import Precision
from services.contracts.model.document import Document

HOURS = 24
# Of a generation, as the programme of a plan has them where none is said.
MOST_NODES = 100_000


class _Asked(Document):
    """What a person writes: numbers are finite."""

    model_config = ConfigDict(allow_inf_nan=False)


# Tags in brackets: faults leave them out of the path.
_Rates = Annotated[
    Annotated[float, Tag("[number]")] | Annotated[tuple[float, ...], Tag("[list]")],
    Discriminator(lambda given: "[list]" if isinstance(given, list | tuple) else "[number]"),
]


class ModelDemand(_Asked):
    """The requests of one model.

    Attributes:
        requests_per_s: the mean rate, of all hours or of each.
        p99_ms: that 99 of 100 requests must be answered in, with `overhead_ms`.
        overhead_ms: what clients, network and gateway add to each; `smelt bench` shows a lone
            request's time beside its engine's.
        host_ms: processor time of gateway and replica for each; a replica does one after the
            other. By default what small requests took on two cores (dataplane_cpu_202611.md) and
            on the host of an H200 (gpu/served_speed_h200_202611.md).
        sizes: share of the requests by size, for each dynamic dimension but the rows; the largest
            size of the buckets where none is given.
        rows: of each request.
        version: of the model; by default the newest with timed engines on an offered device.
    """

    requests_per_s: _Rates
    p99_ms: float = Field(gt=0)
    overhead_ms: float = Field(default=1.0, ge=0)
    host_ms: float = Field(default=0.165, ge=0)
    sizes: dict[str, dict[int, float]] = Field(default={})
    rows: int = Field(default=1, ge=1)
    version: int | None = None

    @property
    def rates(self) -> tuple[float, ...]:
        """Requests per second in each hour."""
        given = self.requests_per_s
        return given if isinstance(given, tuple) else (given,) * HOURS

    @property
    def host_s(self) -> float:
        """Seconds of `host_ms`."""
        return self.host_ms / 1000

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if len(self.rates) != HOURS or min(self.rates) < 0 or not max(self.rates):
            raise ValueError(f"requests_per_s: expected a number above 0, or {HOURS} numbers")
        if self.overhead_ms >= self.p99_ms:
            raise ValueError(f"p99_ms: expected more than overhead_ms, {self.overhead_ms:g}")
        for dim, shares in self.sizes.items():
            if not shares or min(shares) < 1 or min(shares.values()) <= 0:
                raise ValueError(f"sizes.{dim}: expected sizes of at least 1 with shares above 0")
        return self


class DeviceOffer(_Asked):
    """Devices of one generation.

    Attributes:
        price_per_h: of one device, in any currency.
        per_node: devices that a node has, and a lost node takes away.
        max_nodes: that can be had; None for any number.
        memory_gib: of a GPU; None for the least of those that proofs ran on.
    """

    price_per_h: float = Field(gt=0)
    per_node: int = Field(default=1, ge=1, le=MOST_NODES)
    max_nodes: int | None = Field(default=None, ge=1, le=MOST_NODES)
    memory_gib: int | None = Field(default=None, ge=1)


class PlanProfile(_Asked):
    """All that a plan is asked for.

    Attributes:
        models: demand by name of the model.
        devices: what can be had, by generation.
        nodes_lost: nodes of each generation that may fail without a model missing its p99.
        max_load: the most that devices are to be asked for, of what keeps the p99: traffic is
            never as even as the mean of an hour.
    """

    models: dict[str, ModelDemand] = Field(min_length=1)
    devices: dict[str, DeviceOffer] = Field(min_length=1)
    nodes_lost: int = Field(default=1, ge=0, le=MOST_NODES)
    max_load: float = Field(default=0.8, gt=0, le=1)

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read a YAML file.

        Raises:
            InvalidRequestError: it cannot be read, or is no profile; with a line for each fault.
        """
        from services.contracts.model.yaml_document import document_from_yaml

        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            found = error.strerror if isinstance(error, OSError) else str(error)
            raise InvalidRequestError(
                f"profile {path}: {found}; expected a YAML text file with models and devices"
            ) from error
        profile = document_from_yaml(cls, text, str(path), InvalidRequestError)
        for generation in profile.devices:
            Generation.parse(generation)
        return profile

    def changed(self, changes: list[str]) -> "tuple[PlanProfile, Precision | None]":
        """With what-ifs: `traffic=2`, `generation=cuda-sm89`, `precision=fp32`, `nodes_lost=0`.

        Returns:
            The profile that they give, and the only precision of engines, if one was named.

        Raises:
            InvalidRequestError: one of them is none of these, or stands there twice.
        """
        profile = self
        precision: Precision | None = None
        keys: set[str] = set()
        for change in changes:
            key, _, value = change.partition("=")
            try:
                if key in keys:
                    raise ValueError(key)
                keys.add(key)
                if key == "traffic":
                    profile = profile._with_traffic(float(value))
                elif key == "generation":
                    only = {value: profile.devices[value]}
                    profile = profile.with_fields(devices=only)
                elif key == "precision":
                    precision = Precision(value)
                elif key == "nodes_lost":
                    profile = profile.with_fields(nodes_lost=int(value))
                else:
                    raise ValueError(key)
            except (KeyError, ValueError) as error:
                generations = ", ".join(self.devices)
                raise InvalidRequestError(
                    f"--what-if {change}: expected traffic=TIMES, generation=ONE of {generations}, "
                    f"precision=ONE of {', '.join(Precision)}, or nodes_lost=NUMBER; each once"
                ) from error
        return profile, precision

    def _with_traffic(self, times: float) -> "PlanProfile":
        models = {
            name: demand.model_dump() | {"requests_per_s": [rate * times for rate in demand.rates]}
            for name, demand in self.models.items()
        }
        return self.with_fields(models=models)

    def with_fields(self, **changes: object) -> "PlanProfile":
        """With other fields, which are checked as those of a file."""
        return PlanProfile.model_validate(self.model_dump() | changes)
