"""COVERAGE.md: how much of the suite passes, and every refusal under its reason."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import onnx

from services.contracts.errors import UnsupportedGraphError
from tests.onnx_coverage.cases import KINDS, SuiteCase
from tests.onnx_coverage.outcomes import Outcome

# Where the table stands, from the repository's root.
COVERAGE_FILE = "compiler_worker/onnx_to_fx/COVERAGE.md"
_HEAD = "<!-- Written by `python -m tests.onnx_coverage`; a test compares the two. -->"
Outcomes = Mapping[str, Outcome]


def coverage_text(cases: Sequence[SuiteCase], fixed: Outcomes, dynamic: Outcomes) -> str:
    """Return the file's text.

    Args:
        cases: of the suite, in its order.
        fixed: outcomes by case name, with sizes as declared.
        dynamic: the same with every size of an input left open.
    """
    version = f"onnx {onnx.__version__}, opset {onnx.defs.onnx_opset_version()}"
    passed = sum(outcome.verdict == "pass" for outcome in fixed.values())
    lines = [
        _HEAD,
        "# ONNX's backend test suite through onnx_to_fx",
        "",
        f"{version}: {passed} of {len(cases)} cases pass, {len(cases) - passed} are refused while",
        "importing, none gives a wrong answer. Most models have dynamic sizes: the second column",
        "of passes is with the size of every input axis left open.",
        "",
        *_table(cases, fixed, dynamic),
        "",
        "## Refusals, by reason",
        *_refusals(cases, fixed),
    ]
    return "\n".join(lines) + "\n"


def _table(cases: Sequence[SuiteCase], fixed: Outcomes, dynamic: Outcomes) -> list[str]:
    rows = ["| kind | cases | pass | pass, sizes open | refused |", "|---|---|---|---|---|"]
    for kind in KINDS:
        names = [case.name for case in cases if case.kind == kind]
        counts = Counter(fixed[name].verdict for name in names)
        opened = sum(dynamic[name].verdict == "pass" for name in names)
        rows.append(
            f"| {kind} | {len(names)} | {counts['pass']} | {opened} | {counts['refused']} |"
        )
    return rows


def _refusals(cases: Sequence[SuiteCase], fixed: Outcomes) -> list[str]:
    by_reason: defaultdict[str, list[tuple[str, UnsupportedGraphError]]] = defaultdict(list)
    for case in cases:
        refusal = fixed[case.name].refusal
        if refusal is not None:
            by_reason[refusal.reason].append((case.name, refusal))
    lines = []
    for reason, refused in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        lines += ["", f"### {reason} ({len(refused)})", "", *_cases(refused)]
    return lines


def _cases(refused: list[tuple[str, UnsupportedGraphError]]) -> list[str]:
    rows = [_row(name, refusal) for name, refusal in sorted(refused, key=lambda pair: pair[0])]
    return ["| case | op | domain | opset | node |", "|---|---|---|---|---|", *rows]


def _row(name: str, refusal: UnsupportedGraphError) -> str:
    domain, _, op_type = refusal.op_type.rpartition("::")
    where = (domain or "ai.onnx") if op_type else ""
    return f"| {name} | {op_type} | {where} | {refusal.opset or ''} | {refusal.node} |"
