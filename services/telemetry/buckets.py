"""The buckets of histograms.

Those of inference start at 0.5 ms because an engine under a CUDA graph answers in less than one;
those of builds reach 30 minutes because TensorRT's do.
"""

from itertools import chain

INFERENCE_BUCKETS_S = (*(0.0005 * 2**n for n in range(11)), 1.0, 2.0, 5.0)
# What a gateway or a replica does beside an engine takes microseconds.
STAGE_BUCKETS_S = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.5)
BUILD_BUCKETS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0)
BATCH_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
# Lengths that engines like to be built for; `smelt buckets` proposes no others.
_STEPS = (range(8, 128, 8), range(128, 256, 16), range(256, 512, 32), range(512, 1024, 64))
_SIZES = (1, 2, 4, *chain.from_iterable(_STEPS), 1024, 2048, 4096, 8192)
SIZE_BUCKETS = tuple(map(float, _SIZES))
