#!/usr/bin/env bash
# On a GPU machine: builds, proves, saves, loads in a fresh process, times, tests.
#   run_on_device.sh STORE MODEL OUT     (STORE holds MODEL with its master)
set -euo pipefail
cd "$(dirname "$0")/../../.."
store=$1 model=$2 out=$3
work=$(mktemp -d)
fresh() { # a process that finds no cache of any compiler
  TORCHINDUCTOR_CACHE_DIR=$(mktemp -d) TRITON_CACHE_DIR=$(mktemp -d) python3 "$@"
}
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
python3 -c 'import torch, triton; print("torch", torch.__version__, "triton", triton.__version__)'
fresh -m tests.benchmarks.gpu.engine_build "$store" "$work/cache" "$model" >"$out/build.log" 2>&1 ||
  { tail -60 "$out/build.log"; exit 1; }
grep -E '"(outcome|reason)"' "$out/build.log" | head -4
fresh -m tests.benchmarks.gpu.engine_times "$store" "$work/cache" "$model" "$out/times.json"
