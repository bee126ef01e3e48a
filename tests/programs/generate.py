"""A language model of `transformers` with random weights generates a few tokens, replicated on every rank or sharded
(`--tensor-parallel`)."""

import sys
import tempfile

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=200, num_key_value_heads=4, **sizes)
    model = LlamaForCausalLM(config)
    if "--tensor-parallel" in sys.argv:
        # Rank 0 writes the weights, and all ranks read them.
        folder = [tempfile.mkdtemp()]
        dist.broadcast_object_list(folder, src=0)
        model.save_pretrained(folder[0])
        dist.barrier()
        model = LlamaForCausalLM.from_pretrained(folder[0], tp_plan="auto", dtype=torch.float32)
    prompt = torch.arange(1, 9).unsqueeze(0)
    tokens = model.eval().generate(prompt, max_new_tokens=12, do_sample=False, pad_token_id=0)
    parts = [torch.empty_like(tokens) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tokens)
    print("RESULT", dist.get_rank(), [part.tolist() for part in parts])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
