# The control plane beside a RayService, which does what Ray would be needed for: no Ray, no torch.
ARG PYTHON_IMAGE

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY pyproject.toml requirements.lock requirements-gpu.lock requirements-dev.lock README.md LICENSE ./
COPY services services
# The versions alone: pip verifies either all hashes or none, and Smelt itself has none.
RUN grep -hoE '^[a-z][^ ]*==[^ ]+' requirements*.lock >constraints.txt
ENV PIP_CONSTRAINT=/src/constraints.txt
RUN python -m venv /opt/smelt && /opt/smelt/bin/pip install --no-cache-dir ".[gateway,kubernetes]"

FROM ${PYTHON_IMAGE}
ARG VERSION=0.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="smelt-controller" \
      org.opencontainers.image.description="Smelt's control plane" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/smelt /opt/smelt
ENV PATH=/opt/smelt/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
EXPOSE 8003 8004
ENTRYPOINT ["python", "-m", "services.controller"]
