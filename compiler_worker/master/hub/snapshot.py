"""Brings what is needed of a repository of the hub to this machine, by the hub's own library.

HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE mean here what they mean to it.
"""

import io
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compiler_worker.master.hub.folder import (
    MODEL_FILES,
    WEIGHTS,
    HubFolder,
    read_hub_folder,
    refuse_writer,
)
from compiler_worker.master.source import HubModel
from compiler_worker.progress import Progress
from services.contracts.errors import InvalidModelError

# Some kilobytes, and the tokenizer.
_DESCRIPTION = (
    "config.json",
    "config_sentence_transformers.json",
    "modules.json",
    "*_Pooling/config.json",
    "preprocessor_config.json",
    "sentence_bert_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
_NUM_NAMES = 8


@contextmanager
def fetched(source: HubModel, progress: Progress) -> Iterator[HubFolder]:
    """A folder with what is needed of a repository, while this is open.

    Args:
        source: which one, and at what revision.
        progress: called with what was brought so far.

    Raises:
        InvalidModelError: it cannot be brought here, or has nothing that can be served.
    """
    snapshot = _snapshot(source, progress)
    exact = HubModel(repository=source.repository, revision=snapshot.name, file=source.file)
    # Files of that library's cache are links, and ONNX's checker refuses links, hard ones too.
    parent = snapshot.parents[1]
    place = parent if os.access(parent, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix=".smelt-", dir=place) as folder:
        _put_files(snapshot, Path(folder), (source.file,) if source.file else MODEL_FILES)
        found = read_hub_folder(Path(folder), str(exact), source.file)
        if found is None:
            raise InvalidModelError(_nothing(source, snapshot))
        yield found


def _snapshot(source: HubModel, progress: Progress) -> Path:
    """The folder of a commit in the library's cache, in which our files are."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils import logging
    except ImportError as error:
        raise InvalidModelError(
            f"{source}: huggingface_hub brings models of the hub, and is missing ({error}): "
            "pip install 'smelt[hub]'"
        ) from error
    logging.set_verbosity_error()
    bar = _bar(progress)

    def bring(patterns: Sequence[str], revision: str | None) -> Path:
        return Path(
            snapshot_download(
                source.repository,
                revision=revision,
                allow_patterns=list(patterns),
                tqdm_class=bar,
            )
        )

    try:
        folder = bring(_DESCRIPTION, source.revision or None)
        if not source.file and (folder / "config.json").is_file():
            # Before gigabytes of weights come.
            refuse_writer(folder, str(source))
        for name in (source.file,) if source.file else (*MODEL_FILES, WEIGHTS):
            bring((name, f"{name}_data*", f"{name}.data", f"{name}.index.json"), folder.name)
            if any(folder.glob(name)):
                break
    except InvalidModelError:
        raise
    except Exception as error:  # those of its HTTP library differ from release to release
        raise InvalidModelError(f"{source}: {_why(source, error)}") from error
    return folder


def _bar(progress: Progress) -> Any:
    """The library's bar, whose words are progress and not on the terminal."""
    from huggingface_hub.utils import tqdm

    def begin(bar: Any, *args: Any, **options: Any) -> None:
        tqdm.__init__(bar, *args, **options | {"file": io.StringIO()})

    def display(bar: Any, *_: Any, **__: Any) -> None:
        if bar.n:
            progress(" ".join(str(bar).split()))

    return type("ProgressBar", (tqdm,), {"__init__": begin, "display": display})


def _put_files(snapshot: Path, folder: Path, models: Sequence[str]) -> None:
    for link in filter(Path.is_file, snapshot.rglob("*")):
        name = link.relative_to(snapshot)
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if ".onnx" not in link.name:
            target.symlink_to(link.resolve())
        elif str(name).startswith(tuple(models)):
            shutil.copyfile(link, target)


def _why(source: HubModel, error: Exception) -> str:
    from huggingface_hub import constants, errors

    place = f"{constants.ENDPOINT}/{source.repository}"
    match error:
        case errors.GatedRepoError():
            return f"{place} is gated: ask for access there, and set HF_TOKEN to a token of yours"
        case errors.RepositoryNotFoundError():
            return f"no {place} found, or it is private: correct ORG/MODEL, or set HF_TOKEN"
        case errors.RevisionNotFoundError():
            return f"{place} has no branch, tag or commit '{source.revision}'"
        case errors.LocalEntryNotFoundError() if constants.HF_HUB_OFFLINE:
            return (
                f"HF_HUB_OFFLINE is set, and the cache {constants.HF_HUB_CACHE} has not all of it: "
                f"unset that, or copy the cache of a machine that ran hf download "
                f"{source.repository}"
            )
        case errors.LocalEntryNotFoundError():
            cause = error.__cause__ or error
            return (
                f"{constants.ENDPOINT} cannot be reached ({cause!r}), and the cache "
                f"{constants.HF_HUB_CACHE} has not all of it: check the network, or HF_ENDPOINT"
            )
        case _:
            return f"{constants.ENDPOINT} failed: {error}; the next try goes on where this ended"


def _nothing(source: HubModel, snapshot: Path) -> str:
    from huggingface_hub import HfApi

    try:
        names = sorted(HfApi().list_repo_files(source.repository, revision=snapshot.name))
    except Exception:  # without a network
        names = sorted(str(p.relative_to(snapshot)) for p in snapshot.rglob("*") if p.is_file())
    wanted = source.file or f"{' or '.join(MODEL_FILES)} or {WEIGHTS}"
    others = [name for name in names if name.endswith(".onnx") and name != source.file]
    way = (
        f"name the file: {HubModel(repository=source.repository, file=others[0])}"
        if others
        else "export it from what is there, and add the file"
    )
    more = f" and {len(names) - _NUM_NAMES} more" if len(names) > _NUM_NAMES else ""
    return (
        f"{source}: {', '.join(names[:_NUM_NAMES]) or 'nothing'}{more} found, config.json with "
        f"{wanted} wanted: {way}"
    )
