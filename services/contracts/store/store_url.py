"""What a store's URL names, before anything is opened."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from services.contracts.errors import InvalidRequestError

# A drive or scheme without its slashes; taken as a folder it would be made, and never be found.
_SCHEME_LIKE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def store_scheme(url: str) -> str:
    """The scheme of a store's URL; "" for a folder, and for `memory:`."""
    return urlsplit(url).scheme if "://" in url else ""


def store_folder(url: str) -> Path | None:
    """The whole path of the folder that a store is; None where it is none.

    Raises:
        InvalidRequestError: a file:// URL that names no folder of this host.
    """
    scheme = store_scheme(url)
    if scheme == "file":
        return _folder_from_url(url)
    if scheme or _SCHEME_LIKE.match(url):
        return None
    return Path(url).expanduser().absolute()


def _folder_from_url(url: str) -> Path:
    """The folder of a file:// URL; raises InvalidRequestError for what names no folder here."""
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
        raise InvalidRequestError(
            f"store '{url}': expected file:///FOLDER with the whole path, got host "
            f"'{parts.netloc}' and path '{parts.path}'; a folder of this machine can also be "
            "given without file://"
        )
    if parts.query or parts.fragment:
        raise InvalidRequestError(
            f"store '{url}': expected a path alone; in a folder's name say ? as %3F and # as %23"
        )
    return Path(unquote(parts.path))
