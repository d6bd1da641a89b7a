"""What a fleet promises, and from which values on a person should hear of it.

The latency objective is a bucket bound, so that its quantile is exact there.
"""

from services.telemetry.catalog import INFERENCE_BUCKETS_S

AVAILABILITY = 0.999
ERROR_BUDGET = 1 - AVAILABILITY
LATENCY_P99_S = 0.512
assert LATENCY_P99_S in INFERENCE_BUCKETS_S

# Answers that are our fault. What a client did wrong, or gave up on, costs no budget.
SERVER_FAULTS = (
    "DATA_LOSS", "DEADLINE_EXCEEDED", "INTERNAL", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "UNKNOWN",
)  # fmt: skip

# (long window, short window, times the budget's even burn): 2 % of a 30-day budget in an
# hour, 5 % in six, 10 % in a day or in three. The short window ends the alert soon after
# the burning ends.
FAST_BURNS = (("1h", "5m", 14.4), ("6h", "30m", 6.0))
SLOW_BURNS = (("1d", "2h", 3.0), ("3d", "6h", 1.0))

FALLBACK_SHARE = 0.25
QUEUE_SATURATION = 0.8
REFUSED_SHARE = 0.01
STORE_ERROR_SHARE = 0.05
