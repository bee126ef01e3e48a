"""Lightning's own demonstration model, trained by its Trainer with the strategy `ddp`."""

import os
import tempfile

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.demos.boring_classes import BoringModel


def main() -> None:
    seed_everything(1)
    model = BoringModel()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu",
            devices=int(os.environ["LOCAL_WORLD_SIZE"]),
            num_nodes=int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"]),
            strategy="ddp",
            max_steps=5,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            default_root_dir=folder,
        )
        trainer.fit(model)
    print("RESULT", os.environ["RANK"], torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()[:8])


if __name__ == "__main__":
    main()
