"""The recipe of the exported model, and what runs commands."""

from collections.abc import Callable

from services.contracts.model.recipe import Recipe

RECIPE = Recipe.from_yaml("""
buckets:
  - dims: {batch: {min: 1, opt: 2, max: 2}, sequence: {min: 1, opt: 8, max: 8}}
  - dims: {batch: {min: 1, opt: 4, max: 4}, sequence: {min: 1, opt: 16, max: 16}}
batching:
  max_delay_ms: 2.5
  max_queue: 50
  priority_levels: 2
  default_priority: 2
  default_queue_policy: {default_timeout_ms: 100}
  queue_policies: {1: {max_queue: 7}}
num_replicas: 2
response_cache: true
labels: [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
""")
Run = Callable[..., str]
