"""The picture of the loop, drawn from loop.yml."""

from pathlib import Path
from typing import NamedTuple

import yaml

_HEIGHT = 70
# Between the head of an arrow and its box.
_GAP = 3
# All text stands on a fill of its own, and lines are of a middle grey: it reads on light and on
# dark pages.
_HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 400" role="img" \
aria-labelledby="title description">
  <!-- Drawn from tests/reference/loop.yml by .ci/generate. -->
  <title id="title">{title}</title>
  <desc id="description">{description}</desc>
  <style>
    text {{ font: 15px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #ffffff; text-anchor: middle }}
    .name {{ font-weight: 600 }}
    .small {{ font-size: 12.5px }}
    rect {{ rx: 8px }}
    .given {{ fill: #57606a }}
    .build {{ fill: #9a3412 }}
    .store {{ fill: #1e40af }}
    .serve {{ fill: #166534 }}
    .watch {{ fill: #6b21a8 }}
    path.line {{ stroke: #848d97; stroke-width: 2.5; fill: none; marker-end: url(#head) }}
  </style>
  <defs>
    <marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">
      <path d="M0,0 L10,5 L0,10 z" fill="#848d97"/>
    </marker>
  </defs>
"""  # noqa: E501 - lines of the picture


class Box(NamedTuple):
    """A box, in pixels."""

    words: str
    part: str
    left: int
    top: int
    width: int

    def drawn(self, name: str) -> str:
        """Its elements."""
        x = self.left + self.width // 2
        return (
            f'  <rect class="{self.part}" x="{self.left}" y="{self.top}" width="{self.width}" '
            f'height="{_HEIGHT}"/>\n'
            f'  <text class="name" x="{x}" y="{self.top + 30}">{name}</text>\n'
            f'  <text class="small" x="{x}" y="{self.top + 52}">{self.words}</text>\n'
        )

    def line_to(self, other: "Box", *bend: int) -> str:
        """The path of an arrow: along the row, or else up or down from the middle."""
        middle = self.top + _HEIGHT // 2
        if bend:
            x, y = bend
            below = other.top + _HEIGHT + _GAP
            return f"M{self.left},{middle} H{x} V{y} H{other.left + other.width // 2} V{below}"
        if self.top == other.top and self.left < other.left:
            return f"M{self.left + self.width},{middle} H{other.left - _GAP}"
        if self.top == other.top:
            return f"M{self.left},{middle} H{other.left + other.width + _GAP}"
        x = self.left + self.width // 2
        if self.top < other.top:
            return f"M{x},{self.top + _HEIGHT} V{other.top - _GAP}"
        return f"M{x},{self.top} V{other.top + _HEIGHT + _GAP}"


def loop_picture() -> str:
    """The SVG's text."""
    source = yaml.safe_load(Path(__file__).with_name("loop.yml").read_text())
    boxes = {name: Box(*fields) for name, fields in source["boxes"].items()}
    drawn = "".join(box.drawn(name) for name, box in boxes.items())
    lines = "".join(
        f'  <path class="line" d="{boxes[start].line_to(boxes[end], *bend)}"/>\n'
        for start, end, *bend in source["arrows"]
    )
    return _HEAD.format(**source) + drawn + lines + "</svg>\n"
