"""Pages of metrics endpoints, and of other HTTP servers, as `smelt` reads them."""

import logging
from http.client import HTTPException
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener, urlopen

logger = logging.getLogger(__name__)

# A gateway collects from all of its workers first.
_METRICS_TIMEOUT_S = 10.0
_PROBE_TIMEOUT_S = 5.0


def metrics_page(address: str) -> str | None:
    """The page of metrics at `host:port`; None where it does not answer."""
    try:
        with urlopen(f"http://{address}/metrics", timeout=_METRICS_TIMEOUT_S) as page:
            # Labels that are not UTF-8 are not of our metrics.
            text: str = page.read().decode(errors="replace")
            return text
    except (OSError, HTTPException) as error:
        logger.warning("metrics endpoint %s does not answer: %s", address, error)
        return None


def is_answered(url: str) -> bool:
    """Whether a server of this host answers with success."""
    # Not through a proxy of the environment, which cannot reach it.
    opener = build_opener(ProxyHandler({}))
    try:
        opener.open(url, timeout=_PROBE_TIMEOUT_S).close()
    except (URLError, ConnectionError, TimeoutError):
        return False
    return True
