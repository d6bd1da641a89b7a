#!/usr/bin/env bash
# Writes requirements.lock: the newest versions that pyproject.toml admits, from a fresh
# environment. torch keeps its plain version, so that every machine takes its own build.
set -euo pipefail
cd "$(dirname "$0")/../.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
"${PYTHON:-python3}" -m venv "$fresh"
"$fresh/bin/python" -m pip install --quiet --upgrade pip
"$fresh/bin/python" -m pip install --progress-bar on torch==2.13.0 ".[dev]"
{
  echo "# Exact versions of everything that make installs (Python 3.11 and 3.12, Linux x86_64)."
  echo "# Written by make lock; torch brings the pins of its own CUDA libraries where it needs them."
  "$fresh/bin/python" -m pip freeze --exclude smelt | sed -e 's/+cpu$//'
} >requirements.lock
