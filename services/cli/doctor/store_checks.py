"""The artifact store: whether it is there and safe, and whether its clock is ours."""

import os
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from services.cli.doctor.finding import Finding, Level
from services.cli.doctor.host_checks import nearest_folder
from services.cli.settings import CliSettings
from services.contracts.builds.build_lease import MAX_SKEW_S
from services.contracts.errors import StoreError, UnsafeStoreError
from services.contracts.store.artifact_store import objects_now
from services.contracts.store.object_store import (
    ObstoreArtifactStore,
    open_store,
    verify_conditional_create,
)
from services.contracts.store.store_url import store_folder

_FOLDER: Final = "selftest/"
_CREDENTIALS: Final = "its credentials and endpoint come from AWS_*, GOOGLE_* or AZURE_* variables"
_WRITABLE: Final = "let this user write there and free space on its disk, or --store FOLDER"


def check_store(settings: CliSettings) -> Iterator[Finding]:
    """Reachable, safe, and by the same clock; a store that is not there yet is not made."""
    folder = store_folder(settings.store_url)
    if folder and not folder.is_dir():
        yield _absent(folder)
        return
    yield from store_findings(open_store(settings.store_url, must_exist=True))


def store_findings(store: ObstoreArtifactStore) -> Iterator[Finding]:
    """Of a store that is there: whether it may be trusted, and its clock."""
    try:
        verify_conditional_create(store)
    except UnsafeStoreError as error:
        yield Finding(check="store", level=Level.PROBLEM, found=str(error), fix="--store URL")
        return
    except StoreError as error:
        yield Finding(
            check="store",
            level=Level.PROBLEM,
            found=str(error),
            wanted="a store that can be read and written",
            fix=_CREDENTIALS if "://" in store.url else _WRITABLE,
        )
        return
    yield Finding(check="store", found=f"{store.url}: reachable; create-if-absent works")
    yield clock_finding(clock_skew_s(store))


def clock_skew_s(store: ObstoreArtifactStore) -> float:
    """By how much the store's clock is ahead of ours: from the time of an object just written."""
    key = f"{_FOLDER}clock-{uuid.uuid4().hex}"
    before = datetime.now(UTC)
    _, written = objects_now(store, key)
    after = datetime.now(UTC)
    # A difference within the request's duration says nothing; stores give whole seconds.
    if before <= written <= after:
        return 0.0
    return (written - (after if written > after else before)).total_seconds()


def clock_finding(skew_s: float) -> Finding:
    """Whether leases of other hosts are understood here."""
    direction = "behind" if skew_s > 0 else "ahead of"
    found = f"{abs(skew_s):.0f} s {direction} that of the store"
    if abs(skew_s) < 1:
        found = "that of the store"
    if abs(skew_s) < MAX_SKEW_S:
        return Finding(check="clock", found=found)
    return Finding(
        check="clock",
        level=Level.WARNING,
        found=found,
        wanted=f"less than {MAX_SKEW_S:.0f} s, else two hosts build the same engine",
        fix="timedatectl set-ntp true",
    )


def _absent(folder: Path) -> Finding:
    above = nearest_folder(folder)
    if os.access(above, os.W_OK):
        words = f"{folder} is not there yet; smelt up or smelt models add makes it"
        return Finding(check="store", found=f"{words}; so no clock to compare with")
    return Finding(
        check="store",
        level=Level.PROBLEM,
        found=f"{folder} is not there, and {above} cannot be written",
        fix="--store FOLDER or SMELT_STORE_URL",
    )
