#!/usr/bin/env bash
# On a GPU machine: builds, proves, publishes, loads in fresh processes, times.
#   run_on_device.sh NAME...     (names of tests/benchmarks/gpu/sources.py)
set -euo pipefail
cd "$(dirname "$0")/../../.."
work=$(mktemp -d)
fresh() { # a process that finds no cache of any compiler
  TORCHINDUCTOR_CACHE_DIR=$(mktemp -d) TRITON_CACHE_DIR=$(mktemp -d) python3 "$@"
}
quiet() { # its last lines when it fails
  "$@" >"$work/log" 2>&1 || { tail -40 "$work/log"; return 1; }
  grep -E '^[a-z0-9-]+(:| built| proven)' "$work/log"
}
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -1
python3 -c 'import torch, triton; print("torch", torch.__version__, "triton", triton.__version__)'
for name in "$@"; do
  echo "== $name: build with empty caches, then the same key on a machine with its caches"
  export TORCHINDUCTOR_CACHE_DIR=$work/inductor TRITON_CACHE_DIR=$work/triton
  quiet python3 -m tests.benchmarks.gpu.engine_build "$work/$name" "$work/cache" "$name"
  quiet python3 -m tests.benchmarks.gpu.engine_build "$work/$name-again" "$work/cache2" "$name"
  for _ in 1 2; do
    fresh -m tests.benchmarks.gpu.first_answer "$work/$name" "$name" "$(date +%s.%N)"
  done
  fresh -m tests.benchmarks.gpu.engine_times "$work/$name" "$name" 2>"$work/err" ||
    { tail -20 "$work/err"; exit 1; }
done
