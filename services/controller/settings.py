"""Settings of the controller process, read once in `__main__` and passed down."""

from pathlib import Path

from pydantic_settings import BaseSettings, SettingsConfigDict


class ControllerSettings(BaseSettings):
    """Environment variables with the prefix SMELT_CONTROLLER_, or keyword arguments.

    Attributes:
        store_url: artifact store: a folder, or s3://, gs://, az://.
        cache_dir: local copies of masters and engines, shared by replicas of this host.
        run_dir: sockets of this fleet; short, because a socket path holds 107 bytes.
        listen: `host:port` of FleetControl; port 0 takes a free one.
        ready_fd: inherited pipe that gets one JSON line once FleetControl listens; -1 for none.
        parent_pid: this process ends when that parent does; 0 for none.
        ray_address: `local` starts a Ray of our own, else the cluster to join.
        ray_num_cpus: logical CPUs of our own Ray; placement only, 0 counts the cores.
        replica_app: import path of the function that makes a Serve application, as in a
            Ray Serve config file; the controller never imports the replica's code itself.
        generation_override: serve as this generation (simulation in tests); "" detects.
        replica_num_threads: threads of a CPU engine in each replica; 0 leaves it to the engine.
        resync_s: seconds after which the store is read again without being told.
    """

    model_config = SettingsConfigDict(env_prefix="SMELT_CONTROLLER_")

    store_url: str
    cache_dir: Path
    run_dir: Path
    listen: str = "127.0.0.1:0"
    ready_fd: int = -1
    parent_pid: int = 0
    ray_address: str = "local"
    ray_num_cpus: int = 0
    replica_app: str = "services.replica.app:application"
    generation_override: str = ""
    replica_num_threads: int = 0
    resync_s: float = 15.0
