"""The time now, and as documents write it. Of its own, so that to read a clock costs no import."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    """The time now, with its zone."""
    return datetime.now(UTC)


def timestamp(moment: datetime | None = None) -> str:
    """A time as documents write it, by default now: ISO 8601, milliseconds."""
    return (moment or utc_now()).isoformat(timespec="milliseconds")
