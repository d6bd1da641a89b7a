"""OpenTelemetry traces, for processes that the standard variables configure to send them.

The SDK is imported only then: without OTEL_TRACES_EXPORTER no process needs it. Whether a
request is traced is decided before a span is made, as most are not.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import ConfigDict, Field

from services.contracts.errors import InvalidRequestError
from services.contracts.process.settings import ProcessSettings

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.sdk.trace.sampling import Sampler
    from opentelemetry.trace import Link, Span, SpanKind, Tracer

# Between a client's id of a request and the W3C headers of its trace: no id has it.
_SEPARATOR: Final = "\0"
_FIELDS: Final = ("traceparent", "tracestate")
_EXPORTERS: Final = "opentelemetry_traces_exporter"
# Of samplers that have no ratio.
_SHARES: Final = {
    "always_on": 1.0,
    "always_off": 0.0,
    "parentbased_always_on": 1.0,
    "parentbased_always_off": 0.0,
}
# By protocol, the one first that OpenTelemetry recommends.
_OTLP: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
# What `pip` calls the usual exporter; the SDK itself brings `console`.
_USUAL_EXPORTER: Final = "opentelemetry-exporter-otlp-proto-http"
SamplerName = Literal[
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
]


OtlpProtocol = Literal["", "http/protobuf", "grpc"]


class TracingSettings(ProcessSettings):
    """OpenTelemetry's own variables; exporters read the others of them (OTEL_EXPORTER_OTLP_*).

    Attributes:
        otel_traces_exporter: `otlp`, `console`, or what else is installed; `none` for no traces.
        otel_traces_sampler: which requests are traced.
        otel_traces_sampler_arg: their share, for the samplers with a ratio.
        otel_exporter_otlp_protocol, otel_exporter_otlp_traces_protocol: which of the packages for
            `otlp` is meant, where both are installed; the second wins.
        otel_service_name: what the process is called; smelt-gateway or smelt-replica by default.
        otel_sdk_disabled: no traces, whatever else is set.
    """

    model_config = ConfigDict(frozen=True)

    otel_traces_exporter: str = "none"
    otel_traces_sampler: SamplerName = "parentbased_traceidratio"
    otel_traces_sampler_arg: float = Field(default=0.01, ge=0, le=1)
    otel_exporter_otlp_protocol: OtlpProtocol = ""
    otel_exporter_otlp_traces_protocol: OtlpProtocol = ""
    otel_service_name: str = ""
    otel_sdk_disabled: bool = False

    @property
    def share(self) -> float:
        """The share of requests that begin a trace, by whichever variable it is set."""
        return _SHARES.get(self.otel_traces_sampler, self.otel_traces_sampler_arg)


@dataclass(frozen=True, slots=True)
class CarriedTrace:
    """The trace of a request as it travels from process to process."""

    traceparent: str
    tracestate: str = ""

    def beside(self, request_id: str) -> str:
        """One text of both; `carried_trace` reads it."""
        return _SEPARATOR.join((request_id, self.traceparent, self.tracestate))


def carried_trace(text: str) -> CarriedTrace | None:
    """The trace beside a request id, if there is one."""
    _, separator, rest = text.partition(_SEPARATOR)
    traceparent, _, tracestate = rest.partition(_SEPARATOR)
    return CarriedTrace(traceparent, tracestate) if separator else None


def tracing_from_settings(settings: TracingSettings, service_name: str) -> "Tracing | None":
    """What makes spans; None when none are wanted.

    Raises:
        InvalidRequestError: the packages for it are not installed.
    """
    wanted = settings.otel_traces_exporter
    if settings.otel_sdk_disabled or wanted in ("", "none"):
        return None
    try:
        exporter = _exporter(*_names(wanted, settings))
        sampler = _sampler(settings.otel_traces_sampler, settings.otel_traces_sampler_arg)
    except ImportError as error:
        raise InvalidRequestError(
            f"OTEL_TRACES_EXPORTER={wanted}: {error}; pip install opentelemetry-sdk "
            f"{_USUAL_EXPORTER}, or unset it"
        ) from error
    name = settings.otel_service_name or service_name
    return Tracing(exporter, sampler, name, share=settings.share)


class Tracing:
    """Makes spans and sends them, in the background.

    Attributes:
        share: of the requests without a trace of their own that begin one.
    """

    def __init__(
        self,
        exporter: "SpanExporter",
        sampler: "Sampler",
        service_name: str,
        *,
        share: float = 1.0,
    ) -> None:
        """Begin to send what is finished, from a thread of its own.

        Args:
            exporter: sends spans.
            sampler: decides for requests whose client has a trace.
            service_name: OpenTelemetry's `service.name`.
            share: of the requests without a trace that begin one, 0 to 1.
        """
        from opentelemetry.context import Context
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision
        from opentelemetry.trace import get_current_span
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        # What gets here was sampled before.
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create({SERVICE_NAME: service_name}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._sampler = sampler
        self._ids = RandomIdGenerator()
        self.share = share
        self._propagator = TraceContextTextMapPropagator()
        self._no_parent = Context()
        self._span_in = get_current_span
        self._sampled = Decision.RECORD_AND_SAMPLE
        self._tracer: Tracer = self._provider.get_tracer("smelt")

    def set_share(self, share: float) -> None:
        """Begin traces for another share of requests; those of a client's trace follow that."""
        self.share = share
        self._sampler = _sampler("parentbased_traceidratio", share)

    def is_wanted(self, name: str, parent: "Context") -> bool:
        """Whether a span of this name is to be made, as the sampler decides."""
        # By identity: where there is no parent, `parent_of` returns this very object.
        if parent is self._no_parent:
            # What every sampler decides without a parent, at a tenth of the cost.
            return random.random() < self.share  # noqa: S311 - no secret
        known = self._span_in(parent).get_span_context()
        trace_id = known.trace_id or self._ids.generate_trace_id()
        decision = self._sampler.should_sample(parent, trace_id, name).decision
        return decision is self._sampled

    def parent_of(self, carried: CarriedTrace | None) -> "Context":
        """The context that another process sent; an empty one for none, or for a malformed one."""
        if carried is None:
            return self._no_parent
        texts = dict(zip(_FIELDS, (carried.traceparent, carried.tracestate), strict=True))
        return self._propagator.extract(texts, self._no_parent)

    def carried(self, span: "Span") -> CarriedTrace:
        """A span as the parent of what another process does."""
        from opentelemetry.trace import set_span_in_context

        texts: dict[str, str] = {}
        self._propagator.inject(texts, set_span_in_context(span, self._no_parent))
        return CarriedTrace(*(texts.get(field, "") for field in _FIELDS))

    def span(
        self,
        name: str,
        parent: "Context | Span",
        *,
        kind: "SpanKind | None" = None,
        begin_ns: int | None = None,
        attributes: Mapping[str, Any] | None = None,
        links: "tuple[Link, ...]" = (),
    ) -> "Span":
        """A new span; the caller ends it.

        Args:
            name: of the span.
            parent: a span, or the context that `parent_of` made of another process's.
            kind: None is INTERNAL.
            begin_ns: Unix time; None is now.
            attributes: OpenTelemetry's values by name.
            links: to spans of other traces, as of requests in one batch.
        """
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, set_span_in_context

        context = parent if isinstance(parent, Context) else set_span_in_context(parent, Context())
        return self._tracer.start_span(
            name,
            context,
            kind or SpanKind.INTERNAL,
            attributes,
            links,
            begin_ns,
            record_exception=False,
        )

    def close(self) -> None:
        """Send what is left; waits for it as long as the SDK's own limits say."""
        self._provider.shutdown()


def _names(wanted: str, settings: TracingSettings) -> tuple[str, ...]:
    """What packages call an exporter: there is one for each protocol of OTLP."""
    if wanted != "otlp":
        return (wanted,)
    protocol = settings.otel_exporter_otlp_traces_protocol or settings.otel_exporter_otlp_protocol
    return (_OTLP[protocol],) if protocol else tuple(_OTLP.values())


def _exporter(*names: str) -> "SpanExporter":
    for name in names:
        for found in entry_points(group=_EXPORTERS, name=name):
            exporter: SpanExporter = found.load()()
            return exporter
    raise ImportError(f"no package offers the exporter '{names[0]}'")


def _sampler(name: SamplerName, share: float) -> "Sampler":
    from opentelemetry.sdk.trace import sampling

    root = {
        "always_on": sampling.ALWAYS_ON,
        "always_off": sampling.ALWAYS_OFF,
        "traceidratio": sampling.TraceIdRatioBased(share),
    }[name.removeprefix("parentbased_")]
    return sampling.ParentBased(root) if name.startswith("parentbased_") else root
