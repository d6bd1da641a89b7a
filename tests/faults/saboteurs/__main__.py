"""Has saboteurs deceive proofs, and asks the same proofs of right engines.

    python -m tests.faults.saboteurs [--models a,b] [--precisions fp32,bf16] [--only NAME]
                                      [--right [--seeds N]] [--json FILE]

Each sabotage of each model in each precision is refused, or it is told why it is none: the model
has no such part, float64 says that nothing changes, or no more than the precision itself rounds.
The exit code is 1 when one is proven that `zoo.KNOWN` has not; with `--right` when a right engine
is refused.
"""

import argparse
import json
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from services.contracts.hardware.kinds import Precision
from services.engines.torch_runtime.full_precision import use_full_fp32
from tests.faults.saboteurs.right_engines import Right, right_engines
from tests.faults.saboteurs.subject import Subject
from tests.faults.saboteurs.table import rights_table, sabotage_table
from tests.faults.saboteurs.trial import PROVEN, Outcome, Trial, outcomes
from tests.faults.saboteurs.zoo import KNOWN, ZOO, kind_of


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(ZOO))
    parser.add_argument("--precisions", default="fp32,bf16,fp16,int8")
    parser.add_argument("--only", action="append", default=[], help="a sabotage's name; repeat it")
    parser.add_argument("--right", action="store_true")
    parser.add_argument("--seeds", type=int, default=2, help="of right engines' weights")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def all_outcomes(
    models: Sequence[str], precisions: Sequence[Precision], only: Collection[str], folder: Path
) -> Iterator[Outcome]:
    """The sabotages of these models; progress goes to standard error."""
    for name in models:
        subject = Subject.of(name, ZOO[name], 0, folder / name)
        for precision in precisions:
            if precision in ZOO[name].precisions:
                kind = kind_of(name, precision)
                trial = Trial(subject=subject, precision=precision, kind=kind)
                found = list(outcomes(trial, only))
                told = dict(Counter(outcome.what for outcome in found))
                sys.stderr.write(f"{name} {precision}: {told}\n")
                yield from found


def main() -> int:
    """Print the table, and write everything where `--json` says."""
    arguments = _arguments()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    use_full_fp32()
    models = arguments.models.split(",")
    precisions = [Precision(each) for each in arguments.precisions.split(",")]
    found: list[Outcome] | list[Right]
    with TemporaryDirectory() as folder:
        if arguments.right:
            rights = list(right_engines(models, precisions, range(arguments.seeds), Path(folder)))
            found, is_good, table = rights, all(r.is_proven for r in rights), rights_table(rights)
        else:
            tried = list(all_outcomes(models, precisions, arguments.only, Path(folder)))
            is_good = {o.identity for o in tried if o.what == PROVEN} <= KNOWN
            found, table = tried, sabotage_table(tried)
    sys.stdout.write(table)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(each) for each in found], indent=1))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
