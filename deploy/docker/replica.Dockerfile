# Ray's head and workers, with everything that loads engines. KubeRay gives the command.
ARG PYTHON_IMAGE

FROM ${PYTHON_IMAGE} AS build
# For a cluster without GPUs: replica,compiler,rtx. The compiler's image has the same libraries.
ARG EXTRAS=replica,compiler,tracing,cuda,rtx
# An index of torch's CPU builds, which are a tenth of the size; "" takes the usual one.
ARG TORCH_INDEX_URL=""
WORKDIR /src
COPY pyproject.toml requirements.lock requirements-gpu.lock requirements-dev.lock README.md LICENSE ./
COPY deploy/docker/cuda.lock deploy/docker/
COPY services services
# A replica without an engine asks the compiler for the master's graph.
COPY compiler_worker compiler_worker
# The versions alone: pip verifies either all hashes or none, and Smelt itself has none.
RUN grep -hoE '^[a-z][^ ]*==[^ ]+' requirements*.lock deploy/docker/cuda.lock >constraints.txt
ENV PIP_CONSTRAINT=/src/constraints.txt PIP_EXTRA_INDEX_URL=${TORCH_INDEX_URL}
RUN python -m venv /opt/smelt && /opt/smelt/bin/pip install --no-cache-dir ".[${EXTRAS}]"

FROM ${PYTHON_IMAGE}
ARG VERSION=0.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="smelt-replica" \
      org.opencontainers.image.description="Smelt's replicas on Ray" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# The fallback compiles: Inductor for a CPU, Triton's launchers for a GPU. The base is pinned by
# its digest and Debian keeps one version of each package.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 smelt \
    && useradd --uid 10001 --gid 10001 --no-create-home smelt \
    # A login shell, as KubeRay may start, forgets PATH.
    && ln -s /opt/smelt/bin/ray /usr/local/bin/ray
COPY --from=build /opt/smelt /opt/smelt
ENV PATH=/opt/smelt/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
ENTRYPOINT ["ray"]
