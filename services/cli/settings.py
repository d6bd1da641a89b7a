"""Settings of the command line, read once in `main`."""

from pathlib import Path

from pydantic_settings import BaseSettings, SettingsConfigDict


class CliSettings(BaseSettings):
    """Environment variables with the prefix SMELT_.

    Attributes:
        home: folder of the local store, caches, logs and the running fleet's file.
        store: artifact store; empty means the folder `store` in home.
        start_timeout_s: longest wait for controller or gateway to say that it is ready.
        ready_fd: inherited pipe that `smelt up --detach` waits on; -1 for none.
    """

    model_config = SettingsConfigDict(env_prefix="SMELT_")

    home: Path = Path("~/.smelt")
    store: str = ""
    start_timeout_s: float = 120.0
    ready_fd: int = -1

    @property
    def root(self) -> Path:
        """Home, absolute; made when absent."""
        root = self.home.expanduser().absolute()
        root.mkdir(parents=True, exist_ok=True)
        return root

    @property
    def store_url(self) -> str:
        """Where artifacts are."""
        return self.store or str(self.root / "store")

    @property
    def cache_dir(self) -> Path:
        """Verified local copies of masters and engines."""
        return self.root / "cache"

    @property
    def run_dir(self) -> Path:
        """Logs, sockets and the running fleet's file."""
        path = self.root / "run"
        path.mkdir(exist_ok=True)
        return path
