"""The Markdown of this repository as its readers' programs see it: links, headings, code."""

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?)#*$", re.MULTILINE)
_MARKUP = re.compile(r"\[([^\]]*)\]\([^)]*\)|[`*]")


@dataclass(frozen=True)
class Block:
    """A fenced block; `words` are what stands behind its fence, `sh skip` say."""

    words: str
    text: str


def pages() -> list[Path]:
    """Every page of the repository, new ones too."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for name in listed.stdout.splitlines() if (path := ROOT / name).exists()]


def blocks(page: Path) -> list[Block]:
    return [
        Block(words, re.sub(rf"^{indent}", "", text, flags=re.MULTILINE))
        for indent, words, text in _FENCE.findall(page.read_text())
    ]


def prose(page: Path) -> str:
    """All but its code."""
    return _CODE.sub("", _FENCE.sub("", page.read_text()))


def links(page: Path) -> list[str]:
    """Targets of its links and pictures that are not on another site."""
    # Code inside a link's text is no reason to miss the link.
    text = _FENCE.sub("", page.read_text()).replace("`", "")
    return [target for target in _LINK.findall(text) if "://" not in target]


def anchors(page: Path) -> set[str]:
    """What GitHub makes of its headings."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in _HEADING.findall(_FENCE.sub("", page.read_text())):
        plain = _MARKUP.sub(lambda match: match[1] or "", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found
