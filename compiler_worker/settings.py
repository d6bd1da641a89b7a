"""Settings of the compiler, read once in `__main__` and passed down."""

from pathlib import Path

from pydantic import ConfigDict, Field

from services.contracts.process.settings import ProcessSettings, read_settings


class CompilerSettings(ProcessSettings):
    """Environment variables with the prefix SMELT_, or keyword arguments.

    Attributes:
        home: folder of the local store and cache, the command line's own.
        store_url: artifact store: a folder, or s3://, gs://, az://.
        cache_dir: local copies of masters and engines, reference outputs, workspaces.
        build_time_limit_s: a build that takes longer is ended and recorded as failed; its waits for
            other builds on the host do not count. A fleet's build on Ray ends after 4 hours, and
            one more for each further engine, whatever this is.
        proof_time_limit_s: as the other, for a proof with its benchmark.
        check_time_limit_s: as the others, for each process that runs a model when it is added: at
            small sizes where dimensions have no name, then at those that it is to be served at. 0
            runs it without a deadline.
        verdict_time_limit_s: as the others, for comparing a fallback's graph with ONNX Runtime when
            a model is added; an eighth of it is for samples. 0 adds models without a verdict.
        memory_limit_gib: resident memory of a build or proof with all its children; by default
            most of what others leave of the host's, or of the container's, while it runs.
        num_threads: threads of CPU engines and of eager; 0 leaves it to each library.
        benchmark_s: seconds for which each side is timed at each shape; up to three times as long
            where that leaves open which engine is fastest, or faster than the fallback; up to
            twelve times for three times the calls, where a call is slow.
        benchmark_fallback: whether the fallback is timed too, which has to be compiled once;
            without its figures no engine is passed over for being slower.
        benchmark_together: whether proofs time an engine beside the best one so far; without it
            engines are compared by the figures of proofs of different hours.
        benchmark_iterations: calls of each side that are timed at least.
        build_lease_s: a worker that does not renew its lease for so long no longer holds the key
            that it builds; others then build it.
        is_compile_cache_shared: what compilers may use again is kept in the store for all machines
            of a generation; False keeps it on this machine alone.
        signing_key: PEM file with the private key that signs engines and proofs; None signs none.
        sample_key: file of the key of encrypted samples, as the replicas have it.
        log_level: least level that is logged.
        device_generation: the generation that this machine reports (simulation in tests and
            on nodes that are labelled so); "" detects.
    """

    model_config = ConfigDict(frozen=True)
    env_prefix = "SMELT_"

    home: Path = Path("~/.smelt")
    store_url: str = Field(default_factory=lambda given: str(given["home"].expanduser() / "store"))
    cache_dir: Path = Field(default_factory=lambda given: given["home"].expanduser() / "cache")
    build_time_limit_s: float = Field(default=1800.0, gt=0)
    proof_time_limit_s: float = Field(default=1800.0, gt=0)
    check_time_limit_s: float = Field(default=300.0, ge=0)
    verdict_time_limit_s: float = Field(default=120.0, ge=0)
    memory_limit_gib: float | None = Field(default=None, gt=0)
    num_threads: int = Field(default=0, ge=0)
    benchmark_s: float = Field(default=0.5, ge=0)
    benchmark_iterations: int = Field(default=10, ge=1)
    benchmark_fallback: bool = True
    benchmark_together: bool = True
    build_lease_s: float = Field(default=30.0, gt=0)
    is_compile_cache_shared: bool = True
    signing_key: Path | None = None
    sample_key: Path | None = None
    log_level: str = Field(default="INFO", pattern="(?i)^(debug|info|warning|error)$")
    device_generation: str = ""

    @property
    def memory_limit_bytes(self) -> int | None:
        """The memory limit in bytes; None by default."""
        return None if self.memory_limit_gib is None else int(self.memory_limit_gib * 2**30)


def settings_from_environment(**given: object) -> CompilerSettings:
    """Read the settings; `given` replaces the environment.

    Raises:
        InvalidRequestError: a value is wrong; has key, value and what was expected.
    """
    return read_settings(CompilerSettings, **given)
