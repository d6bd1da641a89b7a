"""Bearer tokens for external servers: files of a folder that the process's settings name."""

from pathlib import Path
from typing import Final

from pydantic_settings import BaseSettings

from services.contracts.errors import ExternalServerError
from services.contracts.external.external_model import ExternalModel
from services.contracts.security.watched_file import WatchedFile

_HEADER: Final = "authorization"


class ExternalTokenSettings(BaseSettings):
    """The part of a process's settings that tells it where tokens for external servers are.

    Attributes:
        external_token_dir: folder with a file for each token, by the name that `smelt models add
            --token` gave it. Files are read again when they change.
    """

    external_token_dir: Path | None = None


class ExternalToken:
    """The token of one external model, read again when its file changes."""

    def __init__(self, model: ExternalModel, folder: Path | None) -> None:
        """Read nothing yet; `folder` is that of the process's settings."""
        self._model = model
        # The store names a file of this folder and no path: who may write it must not have this
        # process send any file of its host to a server.
        self._file = WatchedFile(folder / model.token) if model.token and folder else None
        self._value = ""

    def headers(self) -> dict[str, str]:
        """What a request is sent with.

        Raises:
            ExternalServerError: the file cannot be read, or no folder is set.
        """
        if not self._model.token:
            return {}
        if self._file is None:
            raise self._missing("no folder of tokens is set")
        if not self._value or self._file.has_changed():
            try:
                self._value = self._file.read().decode("ascii").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise self._missing(str(error)) from error
        return {_HEADER: f"Bearer {self._value}"}

    def _missing(self, why: str) -> ExternalServerError:
        return ExternalServerError(
            f"model '{self._model.name}': token '{self._model.token}' cannot be had: {why}; name a "
            "folder that has it: SMELT_GATEWAY_EXTERNAL_TOKEN_DIR, and the same for the controller"
        )
