"""What requests' sizes are, what the buckets waste on them, and better ones: in words."""

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from services.cli.sizes.best_shapes import Shape
from services.contracts.text.text_table import Table
from services.contracts.text.words import counted


def buckets_text(document: dict[str, Any]) -> Iterator[str | Table]:
    """Sizes, waste and proposal for people; the document is that of `advice_document`."""
    title = f"{document['model']} version {document['version']}"
    waste_now = document["measured_waste"]
    if waste_now is None:
        yield f"{title}: {counted(document['num_requests'], 'sampled request')}"
    else:
        num = counted(document["num_requests"], "request")
        yield f"{title}: {num}, {waste_now:.1%} of what the engines computed was padding"
    if document["caution"]:
        yield f"Caution: {document['caution']}"
    worthwhile = {dim: each for dim, each in document["dimensions"].items() if not each["kept"]}
    if not document["dimensions"]:
        yield "Only the batch is dynamic: there are no other lengths to make buckets for"
    yield from (each["kept"] for each in document["dimensions"].values() if each["kept"])
    yield from _size_tables(document)
    if worthwhile:
        yield _waste_table(worthwhile)
    for dim, each in worthwhile.items():
        yield from _gain_words(dim, each)
    model, before, number = (document[key] for key in ("model", "version", "published"))
    if number == before:
        yield f"Nothing was published: version {before} keeps its buckets"
    elif number:
        yield f"Published as version {number}, see: smelt why {model} --version {number}"
        yield f"Back to version {before}: smelt models remove {model} --version {number}"
    if number or not document["recipe"]:
        return
    yield "For the recipe, or at once with --apply:"
    yield yaml.safe_dump(document["recipe"], sort_keys=False, default_flow_style=None).rstrip()


def _gain_words(dim: str, advice: dict[str, Any]) -> Iterator[str]:
    if advice["measured_on"]:
        before, after = advice["rows_per_s"]
        rates = f"{before:.0f} rows/s now, {after:.0f} proposed: " if before else ""
        times = f"{advice['speedup']:.2f}x the rows/s"
        yield f"{dim}: {rates}{times}, by measurements of {advice['measured_on']}"
    now = advice["shapes_now"]
    proposed = advice["shapes_proposed"]
    if {shape.rows for shape in proposed} - {shape.rows for shape in now}:
        yield (
            f"{dim}: shapes (rows x {dim}) {_shapes_text(proposed)} proposed, "
            f"{_shapes_text(now)} now"
        )


def _shapes_text(shapes: Sequence[Shape]) -> str:
    return ", ".join(f"{shape.rows} x {shape.size}" for shape in shapes)


def _size_tables(document: dict[str, Any]) -> Iterator[Table]:
    sizes = dict(document["dimensions"])
    if rows := document["rows"]:
        sizes[f"{rows['dimension']} (rows of a request)"] = rows
    names = ("p50", "p90", "p99", "largest")
    means = [(dim, f"{a['mean']:.1f}", *(str(a[n]) for n in names)) for dim, a in sizes.items()]
    yield Table("Sizes", ("dimension", "mean", *names), means)
    counts = [
        (dim, bound, str(count), f"{count / sum(a['counts'].values()):.1%}")
        for dim, a in sizes.items()
        for bound, count in a["counts"].items()
    ]
    yield Table("Requests by size", ("dimension", "up to", "requests", "share"), counts)


def _waste_table(advised: dict[str, Any]) -> Table:
    columns = ("dimension", "buckets now", "waste", "proposed", "waste")
    rows = [
        (
            dim,
            _list(a["now"]),
            f"{a['waste_now']:.1%}",
            _list(a["proposed"]),
            f"{a['waste_proposed']:.1%}",
        )
        for dim, a in advised.items()
    ]
    return Table("Waste, each request at the largest size of its bucket", columns, rows)


def _list(edges: Sequence[int]) -> str:
    return ", ".join(map(str, edges)) or "none"
