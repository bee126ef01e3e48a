"""torchtune's own recipe for full models on several ranks, with a small Llama 3 and sentences of this file: torchtune
has none of its own.

Usage: tune.py [torchtune's options, as `tensor_parallel_dim=2`...].
"""

import os
import runpy
import sys
import tempfile
from pathlib import Path

import torch
import torchtune
import torchtune.training
from torchtune.models.llama3 import llama3

RECIPE = Path(torchtune.__file__).parent.parent / "recipes" / "full_finetune_distributed.py"

SIZES = {"vocab_size": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "embed_dim": 32, "max_seq_len": 32}

CONFIG = """
output_dir: {folder}/out
tokenizer: {{_component_: tune.Tokenizer}}
dataset: {{_component_: tune.sentences}}
model: {{_component_: torchtune.models.llama3.llama3, {sizes}}}
checkpointer:
  _component_: torchtune.training.FullModelTorchTuneCheckpointer
  checkpoint_dir: {folder}/model
  checkpoint_files: [model.pt]
  output_dir: {folder}/out
  model_type: LLAMA3
resume_from_checkpoint: False
seed: 1
shuffle: True
batch_size: 2
epochs: 1
max_steps_per_epoch: 4
gradient_accumulation_steps: 1
clip_grad_norm: 1.0
optimizer: {{_component_: torch.optim.AdamW, lr: 0.01}}
loss: {{_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}}
lr_scheduler: {{_component_: torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup, num_warmup_steps: 1}}
enable_activation_checkpointing: True
tensor_parallel_plan: {{_component_: torchtune.models.llama3.base_llama_tp_plan}}
device: {device}
dtype: fp32
metric_logger: {{_component_: tune.Printer}}
"""


class Tokenizer:
    """The methods of a tokenizer that the recipe calls: the dataset has tokens already."""

    pad_id = 0


class Printer:
    """Prints the recipe's metrics, except its speed."""

    def log_config(self, config):
        pass

    def log_dict(self, entries, step):
        values = [float(value) for name, value in entries.items() if "per_second" not in name]
        print("RESULT", os.environ["RANK"], step, *values)

    def close(self):
        pass


def sentences(tokenizer):
    rows = [[1 + (start * step) % 63 for step in range(1, 8 + start % 5)] for start in range(1, 33)]
    return [{"tokens": row, "labels": row} for row in rows]


def write_model(folder):
    torch.manual_seed(0)
    (folder / "model").mkdir()
    torch.save(llama3(**SIZES).state_dict(), folder / "model/model.pt")


def leave_memory_alone():
    """Disables the recipe's reports and cleanup of GPU memory, the only functions for which it needs a GPU."""
    torchtune.training.cleanup_before_training = lambda: None
    torchtune.training.get_memory_stats = lambda device: {}
    torchtune.training.log_memory_stats = lambda stats: None


def main():
    folder = Path(tempfile.mkdtemp())
    write_model(folder)
    sizes = ", ".join(f"{name}: {size}" for name, size in SIZES.items())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        leave_memory_alone()
    (folder / "config.yaml").write_text(CONFIG.format(folder=folder, sizes=sizes, device=device))
    sys.argv[:] = [str(RECIPE), "--config", f"{folder}/config.yaml", *sys.argv[1:]]
    runpy.run_path(str(RECIPE), run_name="__main__")


if __name__ == "__main__":
    main()
