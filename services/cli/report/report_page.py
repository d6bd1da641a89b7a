"""The report as one HTML page, and where each of its figures is from."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from services.cli.advise.advice_text import advice_text, generation_text
from services.cli.output.html_page import Chart, Element, Part, html_page
from services.cli.why.why import case_text
from services.contracts.model.manifest import ModelVersion
from services.contracts.text.durations import readable_duration
from services.contracts.text.text_table import Table
from services.contracts.text.words import readable_ratio, readable_size, readable_time

_SHORT = 12
_MILLION = 1e6
_HOUR_S = 3600
_Side = Mapping[str, Any]


def report_page(document: Mapping[str, Any], version: ModelVersion) -> str:
    """The page of a `report_document`; the version is its own."""
    title = f"{document['model']} version {document['version']}: report"
    return html_page(title, _parts(document, version))


def _parts(document: Mapping[str, Any], version: ModelVersion) -> Iterator[Part]:
    yield (
        f"Master {document['master'][:_SHORT]} of {document['source']}, published "
        f"{readable_time(document['created_at'])}."
    )
    yield from advice_text(document["advice"])
    yield Element("code", document["command"])
    yield Element("p", f"Written {readable_time(document['reported_at'])}.", "note")
    for each in document["generations"]:
        model = shlex.quote(document["model"])
        again = f"{model} --generation {each['generation']}"
        proven_again = f"again: smelt rebuild {again} --version {document['version']}"
        yield Element("h2", each["generation"])
        yield from _ladder(each, version, proven_again)
        yield from _accuracy(each, proven_again)
        yield from _builds(each, again)
        yield from _cost(each, has_prices=document["has_prices"])
        yield from _roofline(each)
        if each["advice"]:
            yield Element("h3", "Advice and outcome")
            yield from generation_text(each["advice"])
            yield Element(
                "p",
                f"From the graph and all proofs of the store; again: smelt advise {again}",
                "note",
            )


def _ladder(each: Mapping[str, Any], version: ModelVersion, again: str) -> Iterator[Part]:
    yield Element("h3", "Which engine serves, and why")
    if each["why"]:
        yield from case_text(each["why"], version, has_proofs=False)
        yield Element("p", f"From plans, proofs and fleet; again: smelt why {version.name}", "note")
    else:
        yield f"Nothing is planned there; smelt build {version.name} builds what is missing."
    sides = [side for side in each["sides"] if side["shapes"]]
    if not sides:
        yield "No engine was timed there."
        return
    yield Element("h3", "Latency, throughput and memory")
    yield f"The fallback: {sides[0]['fallback']}." if sides[0]["fallback"] else ""
    shapes = [shape for side in sides for shape in side["shapes"]]
    labels = list(dict.fromkeys(map(_label, shapes)))
    dims = " x ".join(shapes[0]["sizes"]) or "bucket"
    for title, key, times in (
        ("Latency by size, p50 in ms", "p50_s", 1000),
        ("Rows per second by size", "throughput", 1),
    ):
        lines = {_name(side, sides): _line(side, labels, key, times) for side in sides}
        yield Chart(title, dims, lines, labels, is_log=True)
    yield Table(
        "Eager, fallback and engines by size",
        ("what", "precision", "size", "p50 ms", "p95 ms", "rows/s", "peak memory"),
        [_shape_row(_name(side, sides), side, s) for side in sides for s in side["shapes"]],
    )
    yield Element("p", f"{_sources(sides)}; {again}", "note")


def _name(side: _Side, sides: Sequence[_Side]) -> str:
    """With its digest where there are several of a kind and precision."""
    is_only = sum(each["name"] == side["name"] for each in sides) == 1
    return side["name"] if is_only else f"{side['name']} {side['digest'][:_SHORT]}"


def _line(side: _Side, labels: Sequence[str], key: str, times: float) -> list[float | None]:
    found = {_label(shape): times * shape[key] for shape in side["shapes"]}
    return [found.get(label) for label in labels]


def _size(shape: Mapping[str, Any]) -> str:
    return ", ".join(f"{dim}={size}" for dim, size in shape["sizes"].items()) or shape["bucket"]


def _label(shape: Mapping[str, Any]) -> str:
    """Of an axis, which says the dimensions once."""
    return " x ".join(map(str, shape["sizes"].values())) or str(shape["bucket"])


def _shape_row(name: str, side: _Side, shape: Mapping[str, Any]) -> tuple[str, ...]:
    num_bytes = shape["peak_memory_bytes"]
    return (
        name,
        side["precision"],
        _size(shape),
        f"{1000 * shape['p50_s']:.2f}",
        f"{1000 * shape['p95_s']:.2f}",
        f"{shape['throughput']:,.1f}",
        "-" if num_bytes is None else readable_size(num_bytes),
    )


def _sources(sides: Sequence[_Side]) -> str:
    """`openvino fp32: proof of TIME on DEVICE`; of what was measured together, once."""
    names: dict[str, list[str]] = {}
    for side in sides:
        at = readable_time(side["measured_at"])
        where = f"{side['measured_by']} of {at} on {side['device'] or 'no known device'}"
        names.setdefault(where, []).append(_name(side, sides))
    return "; ".join(f"{', '.join(each)}: {where}" for where, each in names.items())


def _accuracy(each: Mapping[str, Any], again: str) -> Iterator[Part]:
    yield Element("h3", "Accuracy")
    for proof in each["proofs"]:
        if proof["outcome"] != "passed":
            words = (
                f"{proof['name']}: proof {proof['outcome'].replace('_', ' ')}: {proof['reason']}"
            )
            yield Element("p", words, "warning")
    yield Table(
        "Distances to the reference beside their limits",
        ("engine", "output or task", "measure", "found", "limit", "verdict"),
        [
            (
                proof["name"],
                check["what"],
                check["measure"],
                f"{check['found']:.3g}",
                f"{check['limit']:.3g}",
                check["fault"] or "passed",
            )
            for proof in each["proofs"]
            for check in proof["checks"]
        ],
    )
    for proof in each["proofs"]:
        yield f"{proof['name']}: {proof['words']}" if proof["words"] else ""
    if each["proofs"]:
        found = "; ".join(
            f"{proof['name']} {proof['digest'][:_SHORT]}: proof of "
            f"{readable_time(proof['created_at'])} on {proof['device'] or 'no device'}"
            for proof in each["proofs"]
        )
        yield Element("p", f"{found}; {again}", "note")


def _builds(each: Mapping[str, Any], again: str) -> Iterator[Part]:
    yield Element("h3", "Builds and proofs")
    yield Table(
        "Attempts",
        ("engine", "began", "outcome", "stages", "device", "toolchain", "reason"),
        [
            (
                build["name"],
                readable_time(build["started_at"]),
                build["outcome"].replace("_", " "),
                "\n".join(
                    f"{stage} {readable_duration(seconds)}"
                    for stage, seconds in build["stage_durations_s"].items()
                ),
                build["device"] or "-",
                "\n".join(f"{name} {number}" for name, number in build["toolchain"].items()),
                build["reason"] or "-",
            )
            for build in each["builds"]
        ],
    )
    yield Element("p", f"From the compiler's records; what is missing: smelt build {again}", "note")


def _cost(each: Mapping[str, Any], *, has_prices: bool) -> Iterator[Part]:
    if not has_prices:
        return
    yield Element("h3", "Cost of a million rows")
    price = each["price_per_h"]
    if price is None:
        yield f"The prices have none for {each['generation']}."
        return
    sides = [side for side in each["sides"] if side["shapes"]]
    rows = [
        (_name(side, sides), _size(shape), f"{rate:,.1f}", readable_ratio(cost))
        for side in sides
        for shape in side["shapes"]
        if (rate := shape["throughput"]) and (cost := price / _HOUR_S / rate * _MILLION)
    ]
    yield Table("By size", ("what", "size", "rows/s", "cost"), rows)
    yield Element("p", f"A device costs {price:g} an hour, and is busy all the time.", "note")


def _roofline(each: Mapping[str, Any]) -> Iterator[Part]:
    if not (found := each["roofline"]):
        return
    yield Element("h3", "Roofline")
    roofs = {f"roof in {name}": line for name, line in found["roofs"].items()}
    points = {name: dots for name, dots in found["points"].items() if dots}
    title = "GFLOP/s by FLOPs of a byte, as bytes are in fp32"
    yield Chart(title, "FLOPs of a byte", points | roofs, dots=list(points))
    yield Element("p", f"Peak: {found['peak']}; {_sources(each['sides'])}", "note")
