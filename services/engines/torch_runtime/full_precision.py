"""What fp32 means on a GPU: fp32, in the process that proves and in the one that serves."""

import torch


def use_full_fp32() -> None:
    """Switch TF32 off in this process, for matrix products and for cuDNN.

    cuDNN takes TF32 for fp32 convolutions by default, so an engine with them would
    serve other numbers than were proven. Less than fp32 is chosen in the
    recipe, where it is proven.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
