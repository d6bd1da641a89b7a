"""Advice as text and tables for people."""

from collections.abc import Iterator, Mapping
from typing import Any

from services.cli.output.show import times
from services.contracts.text.text_table import Table
from services.contracts.text.words import readable_ratio

# Far below what a call of any library takes.
_SHOWN_S = 1e-6
_VERDICTS = {True: "right", False: "wrong", None: "not compared yet"}


def advice_text(document: Mapping[str, Any]) -> Iterator[str | Table]:
    """Of one model; the document is that of `model_advice`."""
    by_op = document["flops_by_op"]
    shares = ", ".join(f"{op} {n / max(sum(by_op.values()), 1):.0%}" for op, n in by_op.items())
    yield (
        f"{document['model']} version {document['version']}: {document['num_ops']} ops, "
        f"{document['num_parameters']:,} parameters, {shares or 'no products'}"
    )
    if left := ", ".join(f"{num} {op}" for op, num in document["not_counted"].items()):
        yield f"not counted: {left}"
    for dim, seen in document["traffic"].items():
        yield (
            f"{dim}: {seen['num_different']} different sizes were sampled, half up to "
            f"{seen['p50']}, largest {seen['largest']}; padding to buckets would waste "
            f"{seen['waste']:.0%}: smelt buckets {document['model']}"
        )
    yield from document["remarks"]
    for each in document["generations"]:
        yield from generation_text(each)


def record_text(record: Mapping[str, Any]) -> Iterator[str | Table]:
    """Of all models; the document is that of `record_document`."""
    yield Table(
        "Advice by the proofs of other models, beside the best proven engine, times the fallback",
        ("model", "first choice", "expected", "best proven", "found", "behind", "advice", "on"),
        [
            (
                row["model"],
                _engine(row["first"]),
                _range(row["first"]),
                _engine(row["outcome"]),
                _found(row["outcome"]),
                times(row["outcome"]["behind"]),
                _VERDICTS[row["outcome"]["is_right"]],
                row["generation"],
            )
            for row in record["models"]
        ],
        wide=("on",),
    )
    yield f"right, within 10 % of the best, for {record['num_right']} of {record['num_judged']}"


def generation_text(each: Mapping[str, Any]) -> Iterator[str | Table]:
    """On one of the generations of that document."""
    yield Table(
        f"Least time of a run on {each['generation']} ({each['peak'] or 'peak not known'})",
        ("sizes", "GFLOP", "MB", "limit", *(f"{p} ms" for p in each["runs"][0]["least_s"])),
        [
            (
                f"{name} " + ", ".join(f"{dim} {size}" for dim, size in run["sizes"].items()),
                f"{run['flops'] / 1e9:.3g}",
                f"{run['bytes'] / 1e6:.3g}",
                run["limit"],
                *map(least_ms, run["least_s"].values()),
            )
            for name, run in zip(("usual", "largest"), each["runs"], strict=True)
        ],
    )
    yield Table(
        "Try in this order, times the fallback",
        ("engine", "expected", "by"),
        [(_engine(t), _range(t), _why(t)) for t in each["try"]],
    )
    left_out = [("\n".join(engines), reason) for reason, engines in each["left_out"].items()]
    yield Table("Skipped", ("engine", "why"), left_out)
    yield from each["remarks"]
    if found := each["outcome"]:
        yield _outcome(found)


def _outcome(found: Mapping[str, Any]) -> str:
    speed = f", {_found(found)} the fallback" if found["speed"] else ""
    if found["num_engines"] == 1 and found["is_right"] is None:
        return f"only one is proven, so nothing is compared: {_engine(found)}{speed}"
    behind = f", {times(found['behind'])} its time" if found["behind"] else ""
    return (
        f"best of {found['num_engines']} proven: {_engine(found)}{speed}; "
        f"the first choice is {_VERDICTS[found['is_right']]}{behind}"
    )


def least_ms(seconds: float | None) -> str:
    """Milliseconds of a roofline; "-" where there is none."""
    if seconds is None:
        return "-"
    return f"{1000 * seconds:.3g}" if seconds >= _SHOWN_S else f"< {1000 * _SHOWN_S:g}"


def _engine(each: Mapping[str, Any]) -> str:
    return f"{each['kind']} {each['precision']}"


def _why(each: Mapping[str, Any]) -> str:
    if not each["rounding"]:
        return str(each["why"])
    # What to do about it is for an engine that was refused.
    fault = each["rounding"].partition("; ")[0]
    return f"{each['why']}; expected to be refused, as rounding alone is: {fault}"


def _range(each: Mapping[str, Any]) -> str:
    span = f"{readable_ratio(each['low'])} to {readable_ratio(each['high'])}"
    return span if each["high"] else "not known"


def _found(outcome: Mapping[str, Any]) -> str:
    """A figure of a busy machine is marked."""
    return times(outcome["speed"]) + (" ?" if outcome["is_wild"] else "")
