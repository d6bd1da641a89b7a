"""What Google-style docstrings say of a class and its fields."""

import inspect
import re

_SECTION = re.compile(r"^(?:Args|Attributes|Raises|Returns):$", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\w+(?:, \w+)*): ", re.MULTILINE)


def description(documented: object) -> str:
    """What stands before the first section of a docstring, a paragraph a line."""
    text = _SECTION.split(inspect.getdoc(documented) or "")[0]
    return "\n\n".join(" ".join(part.split()) for part in text.strip().split("\n\n"))


def attributes(documented: object) -> dict[str, str]:
    """By name, the entries of its section Attributes; names may share one."""
    _, _, section = (inspect.getdoc(documented) or "").partition("Attributes:\n")
    section = _SECTION.split(section)[0]
    found: dict[str, str] = {}
    entries = list(_ENTRY.finditer(section))
    ends = [*(entry.start() for entry in entries[1:]), len(section)]
    for entry, end in zip(entries, ends, strict=False):
        text = " ".join(section[entry.end() : end].split())
        found |= dict.fromkeys(entry[1].split(", "), text)
    return found


def sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    text = text[:1].upper() + text[1:]
    return text if not text or text.endswith((".", "`", "!", "?")) else f"{text}."
