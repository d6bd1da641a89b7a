# A build: masters in, proven engines out. No Ray, no gRPC. The controller's Jobs run it.
ARG PYTHON_IMAGE

FROM ${PYTHON_IMAGE} AS build
# What loads engines is as in the replica's image: an engine belongs to the libraries that made it.
ARG EXTRAS=compiler,cuda,rtx
ARG TORCH_INDEX_URL=""
WORKDIR /src
COPY pyproject.toml requirements.lock requirements-gpu.lock requirements-dev.lock README.md LICENSE ./
COPY deploy/docker/cuda.lock deploy/docker/
COPY services services
COPY compiler_worker compiler_worker
# The versions alone: pip verifies either all hashes or none, and Smelt itself has none.
RUN grep -hoE '^[a-z][^ ]*==[^ ]+' requirements*.lock deploy/docker/cuda.lock >constraints.txt
ENV PIP_CONSTRAINT=/src/constraints.txt PIP_EXTRA_INDEX_URL=${TORCH_INDEX_URL}
RUN python -m venv /opt/smelt && /opt/smelt/bin/pip install --no-cache-dir ".[${EXTRAS}]"

FROM ${PYTHON_IMAGE}
ARG VERSION=0.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="smelt-compiler" \
      org.opencontainers.image.description="Smelt's compiler" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Inductor compiles C++ for CPUs; Triton compiles its launchers. The base is pinned by its digest
# and Debian keeps one version of each package.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* \
    # torch wants to know a user's name.
    && groupadd --gid 10001 smelt \
    && useradd --uid 10001 --gid 10001 --no-create-home smelt
COPY --from=build /opt/smelt /opt/smelt
ENV PATH=/opt/smelt/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
ENTRYPOINT ["python", "-m", "compiler_worker"]
