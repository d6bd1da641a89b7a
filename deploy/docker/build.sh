#!/usr/bin/env bash
# Builds the four images: deploy/docker/build.sh TAG [IMAGE...]
#   PYTHON_IMAGE   the base, with its digest: python:3.12-slim-bookworm@sha256:<64 hex digits>
#   REGISTRY       a prefix of the images' names, as registry.example.com/smelt/
#   BUILDER        "docker build" (the default), "buildah bud" or the like
#   EXTRAS, TORCH_INDEX_URL   see replica.Dockerfile; for a cluster without GPUs
set -euo pipefail
cd "$(dirname "$0")/../.."

tag="${1:?usage: deploy/docker/build.sh TAG [gateway|controller|replica|compiler ...]}"
shift
[[ "${PYTHON_IMAGE:-}" =~ @sha256:[0-9a-f]{64}$ ]] || {
  echo "PYTHON_IMAGE='${PYTHON_IMAGE:-}': give a Python 3.11 or 3.12 image with its digest," >&2
  echo "python:3.12-slim-bookworm@sha256:...; docker buildx imagetools inspect IMAGE shows it." >&2
  exit 2
}
[ $# -gt 0 ] || set -- gateway controller replica compiler
for name in "$@"; do
  arguments=(--build-arg "PYTHON_IMAGE=$PYTHON_IMAGE" --build-arg "VERSION=$tag")
  arguments+=(--build-arg "REVISION=$(git rev-parse HEAD)")
  if [[ $name == replica || $name == compiler ]]; then
    arguments+=(--build-arg "TORCH_INDEX_URL=${TORCH_INDEX_URL:-}")
    # The compiler needs no Ray.
    extras="${EXTRAS:-}"
    [ $name = compiler ] && extras="${extras#replica,}"
    [ -z "$extras" ] || arguments+=(--build-arg "EXTRAS=$extras")
  fi
  ${BUILDER:-docker build} "${arguments[@]}" --file "deploy/docker/$name.Dockerfile" \
    --tag "${REGISTRY:-}smelt-$name:$tag" .
done
