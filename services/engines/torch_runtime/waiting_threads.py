"""How threads of torch wait for work: blocked, in replicas, proofs and benchmarks alike.

torch's wheel brings GNU's OpenMP, whose threads spin between two parallel loops. Where other work
wants the processors too, they take those from the very threads that they wait for.
"""

import os


def use_passive_wait_policy() -> None:
    """Have threads of OpenMP block while they wait, here and in children; before torch is imported.

    OMP_WAIT_POLICY in the environment wins, for a host that does nothing else.
    """
    # OpenMP reads it once, while its library is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
