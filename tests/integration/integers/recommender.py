"""A model of ids in many tables: fields of a row, a history of items, and their kinds."""

import torch

from compiler_worker.master.pytorch_source import DimLimits, PyTorchModel
from services.contracts.hardware.kinds import EngineKind
from services.contracts.model.recipe import Bucket, DimRange, Recipe

FIELD_ROWS = (10, 200, 3000)
NUM_ITEMS, NUM_KINDS = 500, 400
FIRST_ITEM = 2  # rows below are special ones, that no request names
WIDTH = 8


class Recommender(torch.nn.Module):
    """Scores of rows: tables of fields, and the mean of what a history names."""

    def __init__(self) -> None:
        """Random tables, always the same."""
        super().__init__()
        torch.manual_seed(0)
        self.fields = torch.nn.ModuleList(torch.nn.Embedding(n, WIDTH) for n in FIELD_ROWS)
        self.items = torch.nn.Embedding(NUM_ITEMS, WIDTH)
        self.kinds = torch.nn.Embedding(NUM_KINDS, WIDTH)
        self.head = torch.nn.Linear(2 * WIDTH, 1)

    def forward(
        self, fields_BF: torch.Tensor, history_BT: torch.Tensor, mask_BT: torch.Tensor
    ) -> torch.Tensor:
        """Scores, float32 [B]; an id of the history names an item and, moved, a kind."""
        known_BD = torch.stack([t(fields_BF[:, i]) for i, t in enumerate(self.fields)]).sum(0)
        moved = history_BT.to(torch.int32).reshape(-1) + FIRST_ITEM
        items_BTD = self.items(moved).reshape(*history_BT.shape, WIDTH) + self.kinds(history_BT)
        valid_BT1 = mask_BT.to(torch.bool).unsqueeze(-1)
        seen_BTD = torch.where(valid_BT1, items_BTD, torch.zeros(()))
        mean_BD = seen_BTD.sum(1) / valid_BT1.to(torch.float32).sum(1)
        scores: torch.Tensor = self.head(torch.cat([known_BD, mean_BD], 1)).squeeze(1)
        return scores


def recommender() -> PyTorchModel:
    """The model with a recipe that says nothing of its inputs."""
    history = torch.randint(0, NUM_KINDS, (2, 5))
    return PyTorchModel(
        module=Recommender().eval(),
        example_inputs={
            "fields": torch.tensor([[9, 199, 2999], [0, 1, 2]]),
            "history": history,
            "mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]),
        },
        dynamic_dims={
            "fields": {0: "batch"},
            "history": {0: "batch", 1: "sequence"},
            "mask": {0: "batch", 1: "sequence"},
        },
        dim_limits={
            "batch": DimLimits(min=1, max=64),
            "sequence": DimLimits(min=1, max=64),
        },
        output_names=("scores",),
        recipe=Recipe(
            kinds=(EngineKind.ONNXRUNTIME,),
            buckets=(
                Bucket(
                    dims={
                        "batch": DimRange(min=1, opt=4, max=8),
                        "sequence": DimRange(min=1, opt=8, max=16),
                    }
                ),
            ),
        ),
    )
