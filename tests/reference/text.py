"""Pages and tables of Markdown."""

from collections.abc import Iterable, Sequence

NOTICE = "<!-- Made from the code by `.ci/generate`; edit the code. -->"


def page(title: str, introduction: str, *parts: str) -> str:
    """A whole generated page."""
    return "\n\n".join((NOTICE, f"# {title}", introduction, *filter(None, parts))) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
