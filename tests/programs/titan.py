"""torchtitan's own training program on its Llama 3 `debugmodel`, with sentences of this file: torchtitan would download
its own.

Usage: titan.py [torchtitan's options...]. It requests GPUs; without GPUs this program substitutes `torch.cpu`, so that
the results can be compared with Gloo's.
"""

import os
import sys
import tempfile
from types import SimpleNamespace

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers

FOLDER = tempfile.mkdtemp()

# torchtitan reads its options when it is imported.
sys.argv[1:1] = [
    *("--model.name", "llama3", "--model.flavor", "debugmodel", "--model.hf_assets_path", FOLDER),
    *("--job.dump_folder", FOLDER, "--training.dataset", "sentences", "--training.seq_len", "32"),
    *("--training.local_batch_size", "4", "--training.steps", "4", "--metrics.log_freq", "1"),
]


def use_cpu():
    """Lets `torch.cpu` answer torchtitan's queries of an accelerator; torchtitan looks for one when it is imported."""
    torch._utils._get_available_device_type = lambda: "cpu"
    torch.cpu.empty_cache = torch.cpu.reset_peak_memory_stats = lambda: None
    torch.cpu.get_device_name = lambda device: "cpu"
    torch.cpu.get_device_properties = lambda device: SimpleNamespace(total_memory=1)
    torch.cpu.memory_stats = lambda device: {}
    # torchtitan numbers its devices by this variable.
    os.environ["LOCAL_RANK"] = "0"


if not torch.cuda.is_available():
    use_cpu()

from torchtitan.components.metrics import MetricsProcessor  # noqa: E402
from torchtitan.distributed import utils as distributed  # noqa: E402
from torchtitan.hf_datasets import DatasetConfig  # noqa: E402
from torchtitan.hf_datasets.text_datasets import DATASETS  # noqa: E402
from torchtitan.train import Trainer, main  # noqa: E402

SENTENCES = [
    f"{a} {b} {c}" for a in ("some", "all", "no") for b in ("ranks", "links") for c in ("wait", "send", "fail")
]


def write_tokenizer():
    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    vocabulary = {word: number for number, word in enumerate(["<unk>", "<s>", "</s>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(os.path.join(FOLDER, "tokenizer.json"))
    with open(os.path.join(FOLDER, "tokenizer_config.json"), "w") as file:
        file.write('{"bos_token": "<s>", "eos_token": "</s>"}')


def print_losses():
    """Prints the metrics that torchtitan logs, unrounded."""
    log = MetricsProcessor.log

    def printing(self, step, global_avg_loss, global_max_loss, grad_norm, *args, **kwargs):
        print("RESULT", os.environ["RANK"], step, global_avg_loss, global_max_loss, grad_norm)
        return log(self, step, global_avg_loss, global_max_loss, grad_norm, *args, **kwargs)

    MetricsProcessor.log = printing


if __name__ == "__main__":
    DATASETS["sentences"] = DatasetConfig(
        path="none",
        loader=lambda _: Dataset.from_dict({"text": SENTENCES * 20}),
        sample_processor=lambda sample: sample["text"],
    )
    if not torch.cuda.is_available():
        # This function starts with a barrier on GPUs.
        distributed.set_pg_timeouts = lambda timeout, parallel_dims: None
    print_losses()
    write_tokenizer()
    main(Trainer)
