"""What a browser would read of a page."""

from html.parser import HTMLParser

LOADING = {"src", "href", "xlink:href", "srcset", "data", "poster", "action"}


class Loads(HTMLParser):
    """Attributes by which a page loads or runs something, its tags, and the words that it shows."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.loading: list[tuple[str, str | None]] = []
        self.tags: set[str] = set()
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loading += [each for each in attrs if each[0] in LOADING or each[0].startswith("on")]
        self.tags.add(tag)
        assert tag not in {"link", "iframe", "object", "embed", "img", "script"}

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())
