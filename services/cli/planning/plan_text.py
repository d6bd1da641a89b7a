"""A plan as tables and sentences; the document is that of `sizing_document`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from services.contracts.text.text_table import Table
from services.contracts.text.words import counted


def plan_text(document: dict[str, Any]) -> Iterator[str | Table]:
    """The plan as tables and sentences."""
    what_if = " and ".join(document["what_if"])
    yield Table(
        f"Devices, with capacity for the nodes that may be lost{what_if and f', if {what_if}'}",
        ("generation", "nodes", "devices", "shared", "load", "memory", "a day"),
        [
            (
                each["generation"],
                str(each["nodes"]),
                str(each["num_devices"]),
                str(each["num_shared"]),
                f"{each['load']:.0%}",
                f"{each['memory']:.0%}" if each["memory"] else "-",
                f"{each['currency_per_day']:,.2f}",
            )
            for each in document["devices"]
        ],
    )
    columns = ("model", "generation", "computes", "req/s each", "devices", "replicas", "p99 ms")
    wide = ("wanted ms", "req/s of a replica", "GiB each", "busy", "rows of a batch")
    rows = [_model_row(each) for each in document["models"]]
    yield Table("Models", (*columns, *wide), rows, wide)
    if document["shared"]:
        yield _shared_table(document["shared"])
    if len(document["by_hour"]) > 1:
        yield _hours_table(document["by_hour"])
    yield (
        f"A day costs {document['currency_per_day']:,.2f}; "
        f"{document['currency_per_day_by_hour']:,.2f} if nodes come and go with each hour"
    )
    for each in document["without_engines"]:
        if each["num_devices"] is None:
            yield f"With {each['computes']} it is not possible: {each['reason']}"
        else:
            yield (
                f"With {each['computes']} it takes {counted(each['num_devices'], 'device')} "
                f"and {each['currency_per_day']:,.2f} a day"
            )
    if any(each["is_wild"] for each in document["models"]):
        yield "?: timed while its machine was busy, so it may be far off: smelt why MODEL"
    for each in document["too_large"]:
        yield f"{each['model']} does not fit on {each['generation']}: {each['reason']}"
    for each in document["not_measured"]:
        yield f"{each['model']} was not measured on {each['generation']}, which is skipped for it"


def _shared_table(shared: Sequence[Mapping[str, Any]]) -> Table:
    """Devices of several models: with how many replicas, and for which part of a device."""
    rows = [
        (
            each["generation"],
            f"{each['load']:.0%}",
            f"{each['memory']:.0%}" if each["memory"] else "-",
            ", ".join(f"{m['model']} {m['part']:.2f} ({m['replicas']})" for m in each["models"]),
        )
        for each in shared
    ]
    return Table("Shared devices", ("generation", "load", "memory", "part (replicas)"), rows)


def _hours_table(hours: Sequence[Mapping[str, Any]]) -> Table:
    """Nodes in each hour, and what each model takes of devices."""
    generations = list(hours[0]["nodes"])
    rows = [
        (
            str(number),
            *(str(hour["nodes"][generation]) for generation in generations),
            f"{hour['currency_per_h']:,.2f}",
            ", ".join(
                f"{each['model']} {each['devices']:.2f} ({each['replicas']})"
                for each in hour["devices"]
            ),
        )
        for number, hour in enumerate(hours)
    ]
    of_models = "devices (replicas) of models"
    return Table("Nodes by hour", ("hour", *generations, "an hour", of_models), rows, (of_models,))


def _model_row(each: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        each["model"],
        each["generation"],
        each["computes"] + " ?" * each["is_wild"],
        f"{each['requests_per_s_of_a_device']:,.0f}",
        f"{each['devices']:.2f}",
        str(each["replicas"]),
        "-" if each["p99_s"] is None else f"{each['p99_s'] * 1000:.1f}",
        f"{each['p99_wanted_s'] * 1000:.1f}",
        f"{each['requests_per_s_of_a_replica']:,.0f}",
        "-" if each["memory_gib"] is None else f"{each['memory_gib']:.1f}",
        "-" if each["busy"] is None else f"{each['busy']:.0%}",
        "-" if each["rows_of_a_batch"] is None else f"{each['rows_of_a_batch']:.1f}",
    )
