"""`smelt report`: one HTML file about a model version, from what the store holds."""

import shlex
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from pydantic import Field

from services.cli.advise.advice_text import advice_text, generation_text
from services.cli.advise.advise import Advised, devices_of, model_advice, other_models
from services.cli.models.version_states import fleet_or_why_not
from services.cli.output.html_page import Element, Part, html_page
from services.cli.output.show import show
from services.cli.planning.measured_version import measured_version
from services.cli.planning.plan_profile import DeviceOffer, ModelDemand, PlanProfile
from services.cli.registry import open_registry
from services.cli.report import report_parts
from services.cli.report.engine_entries import engine_entries, timed_sides
from services.cli.settings import CliSettings
from services.cli.why.why import case_text, model_cases
from services.contracts.errors import InvalidRequestError
from services.contracts.model.manifest import ModelVersion
from services.contracts.registry.registry import Registry
from services.contracts.selection.own_engines import own_engines
from services.contracts.text.words import readable_time
from services.controller.explain.proof_words import proof_words


class Prices(PlanProfile):
    """The devices of a profile of `smelt plan`; models may stand beside them."""

    models: dict[str, ModelDemand] = Field(default={})


def run_report(
    settings: CliSettings,
    name: str,
    number: int | None = None,
    *,
    output: Path | None,
    prices: Path | None,
) -> None:
    """Write the file and say where it is.

    Args:
        settings: of the command line.
        name: of the model.
        number: of its version; by default the newest with timed engines.
        output: the file; None names one after the model, in the current folder.
        prices: profile of `smelt plan`, or its devices alone; None shows hours for prices.

    Raises:
        NotFoundError: no such model or version.
        InvalidRequestError: the prices cannot be read, or the file cannot be written.
        StoreError: samples are not what their window names.
    """
    offers = Prices.from_file(prices).devices if prices else {}
    registry = open_registry(settings)
    version, note = measured_version(registry, name, number)
    path = output or Path(f"{name}-v{version.version}.html")
    title = f"{version.name} version {version.version}: report"
    page = html_page(title, chain([note], _parts(settings, registry, version, offers)))
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InvalidRequestError(f"{path}: cannot be written: {error.strerror}") from error
    document = {"model": name, "version": version.version, "file": str(path), "note": note}
    show(document, [note, f"{name} version {version.version}: {path}"])


def _parts(
    settings: CliSettings, registry: Registry, version: ModelVersion, offers: dict[str, DeviceOffer]
) -> Iterator[Part]:
    """A section for each generation that is planned, serves or has engines; else of this host."""
    own = Advised(registry, version, is_sampled=True)
    models = [own, *other_models(registry, version.name)]
    proven = [speed for each in models for speed in each.proofs.speeds(each.graph)]
    snapshot, why_not = fleet_or_why_not(settings)
    found = model_cases(settings, registry, version, snapshot)
    cases = {case["generation"]: case for case in found}
    engines = own_engines(registry, version)
    used = {e.proof.device.generation: e.proof.device for e in engines if e.proof.device}
    planned = devices_of([own], "") if own.plans or not used else {}
    # An engine of a lesser class of processors may have been proven on a higher one.
    keyed = [engine.manifest.key.generation for engine in engines]
    devices = dict.fromkeys([*cases, *keyed]) | planned | used
    advice = model_advice(own, devices, proven)
    at = readable_time(version.created_at)
    yield f"Master {version.master.digest[:12]} of {version.source}, published {at}."
    yield from advice_text(advice | {"generations": []})
    yield Element("p", why_not, "note")
    yield Element("code", shlex.join(["smelt", *sys.argv[1:]]))
    yield Element("p", f"Written {readable_time(datetime.now(UTC).isoformat())}.", "note")
    runs = registry.joint_runs(version.master.digest)
    for each in advice["generations"]:
        generation = each["generation"]
        of = f"{shlex.quote(version.name)} --generation {generation}"
        again = f"again: smelt rebuild {of} --version {version.version}"
        case = cases.get(generation)
        here = [e for e in engines if e.manifest.key.generation == generation]
        entries = engine_entries(registry, here, case)
        sides = timed_sides(entries, runs)
        yield Element("h2", generation)
        # What proofs compared stands under accuracy.
        words = [f"{e.name}: {proof_words(e.proof)}" for e in entries if e.proof]
        yield from (part for part in case_text(case, version) if part not in words) if case else ()
        yield Element("p", f"From plans, proofs and fleet; again: smelt why {of}", "note")
        yield from report_parts.ladder_parts(sides, offers.get(generation))
        yield Element("p", f"{report_parts.sources(sides)}; {again}" if sides else "", "note")
        yield from report_parts.accuracy_parts(entries, version.recipe)
        yield Element("p", f"Proofs {again}", "note")
        yield report_parts.attempts_table(entries)
        yield Element("p", f"Missing ones: smelt build {of}", "note")
        device = used.get(generation)
        if device and (chart := report_parts.roofline_chart(own, sides, device)):
            yield chart
            source = f"Device: {each['peak']}; {report_parts.sources(sides)}; {again}"
            yield Element("p", source, "note")
        yield Element("h3", "Advice and outcome")
        yield from generation_text(each)
        yield Element("p", f"From all proofs of the store; again: smelt advise {of}", "note")
