"""A few lines for each library that ships no program of its own: two or three training steps, as in the beginning of
its documentation.

Usage: libraries.py NAME.
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn

CUDA = torch.cuda.is_available()
RANK, LOCAL, SIZE = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
DEVICE = torch.device("cuda", LOCAL) if CUDA else torch.device("cpu")


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(DEVICE)


def batch(step):
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(10 * step + RANK)).to(DEVICE)


def start():
    if CUDA:
        torch.cuda.set_device(LOCAL)
    dist.init_process_group("nccl" if CUDA else "gloo")


def steps(net, optimizer, backward=torch.Tensor.backward):
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        loss = net(batch(step)).pow(2).mean()
        backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def transformers_trainer():
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    net = LlamaForCausalLM(LlamaConfig(vocab_size=100, num_key_value_heads=4, **sizes))
    rows = [{"input_ids": (row := (torch.arange(8) * n) % 100), "labels": row} for n in range(1, 17)]
    with tempfile.TemporaryDirectory() as folder:
        options = {"report_to": [], "save_strategy": "no", "logging_steps": 1, "max_steps": 3, "seed": 1}
        arguments = TrainingArguments(folder, per_device_train_batch_size=2, use_cpu=not CUDA, **options)
        trainer = Trainer(net, arguments, train_dataset=rows)
        trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def accelerate_loop():
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    accelerator = Accelerator(gradient_accumulation_steps=2)
    data = DataLoader(torch.randn(24, 8, generator=torch.Generator().manual_seed(5)), batch_size=3)
    net = model()
    net, optimizer, data = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=0.01), data)
    losses = []
    for rows in data:
        with accelerator.accumulate(net):
            loss = net(rows).pow(2).mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).tolist())
    return losses


def lightning_fabric():
    from lightning.fabric import Fabric

    nodes = SIZE // int(os.environ["LOCAL_WORLD_SIZE"])
    options = {"devices": SIZE // nodes, "num_nodes": nodes}
    fabric = Fabric(accelerator="cuda" if CUDA else "cpu", strategy="ddp", **options)
    fabric.launch()
    net = model()
    net, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    return steps(net, optimizer, fabric.backward), fabric.all_gather(torch.tensor(fabric.global_rank)).tolist()


def ignite_trainer():
    import ignite.distributed as idist
    from ignite.engine import Engine

    backend = "nccl" if CUDA else "gloo"

    def training(local_rank):
        net = idist.auto_model(model())
        optimizer = idist.auto_optim(torch.optim.SGD(net.parameters(), lr=0.1))

        def update(engine, step):
            optimizer.zero_grad()
            loss = net(batch(step)).pow(2).mean()
            loss.backward()
            optimizer.step()
            return idist.all_reduce(loss.item())

        engine, seen = Engine(update), []
        engine.run(range(3))
        seen.append(engine.state.output)
        return [*seen, idist.all_gather(idist.get_rank())]

    with idist.Parallel(backend=backend) as parallel:
        results = []
        parallel.run(lambda local_rank: results.append(training(local_rank)))
    return results


def fairscale_sharded():
    from fairscale.nn import ShardedDataParallel
    from fairscale.optim import OSS

    start()
    net = model()
    optimizer = OSS(net.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    return steps(ShardedDataParallel(net, optimizer), optimizer)


def torchvision_resnet():
    from torchvision.models import resnet18

    start()
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(resnet18(num_classes=10).to(DEVICE), device_ids=[LOCAL] if CUDA else None)
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), []
    for step in range(2):
        images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(10 * step + RANK)).to(DEVICE)
        loss = nn.functional.cross_entropy(net(images), torch.arange(2, device=DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def peft_adapters():
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    start()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    net = LlamaForCausalLM(LlamaConfig(vocab_size=100, num_key_value_heads=4, **sizes)).to(DEVICE)
    net = get_peft_model(net, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    net = nn.parallel.DistributedDataParallel(net, device_ids=[LOCAL] if CUDA else None)
    optimizer, losses = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=0.01), []
    for step in range(3):
        tokens = ((torch.arange(8) + step) * (RANK + 2) % 100).unsqueeze(0).to(DEVICE)
        loss = net(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def megatron_layers():
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.model_parallel_config import ModelParallelConfig

    start()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=SIZE)
    tensor_parallel.model_parallel_cuda_manual_seed(1) if CUDA else None
    config = ModelParallelConfig(
        tensor_model_parallel_size=SIZE, use_cpu_initialization=True, params_dtype=torch.float32
    )
    options = {"config": config, "init_method": lambda weight: nn.init.constant_(weight, 0.1), "bias": True}
    up = tensor_parallel.ColumnParallelLinear(8, 16, gather_output=False, **options).to(DEVICE)
    down = tensor_parallel.RowParallelLinear(16, 4, input_is_parallel=True, skip_bias_add=False, **options).to(DEVICE)
    same = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    output, _ = down(torch.tanh(up(same)[0]))
    output.sum().backward()
    return output.flatten().tolist(), up.weight.grad.flatten().tolist()


def deepspeed_zero():
    import deepspeed

    losses = []
    for stage in (1, 2, 3):
        net = model()
        config = {
            "train_micro_batch_size_per_gpu": 6,
            "gradient_clipping": 1.0,
            "zero_optimization": {"stage": stage},
            # DeepSpeed's own optimizer would have to be compiled first.
            "zero_allow_untested_optimizer": True,
        }
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
        for step in range(3):
            loss = engine(batch(step)).pow(2).mean()
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    return losses


def deepspeed_offload():
    """ZeRO 3 with parameters and optimizer in host memory between their uses."""
    import deepspeed

    kept = {"device": "cpu", "pin_memory": CUDA}
    net = model()
    config = {
        "train_micro_batch_size_per_gpu": 6,
        "zero_optimization": {
            "stage": 3,
            "offload_param": kept,
            "offload_optimizer": kept,
            "stage3_param_persistence_threshold": 0,
        },
        # DeepSpeed's own optimizer would have to be compiled first.
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = deepspeed.initialize(model=net, optimizer=torch.optim.AdamW(net.parameters(), lr=0.01), config=config)
    losses = []
    for step in range(3):
        loss = engine(batch(step)).pow(2).mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def transformers_batches():
    """Continuous batching: requests of unequal lengths share batches, and pages of one cache."""
    from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=200, num_key_value_heads=4, attn_implementation="paged|sdpa", **sizes)
    net = LlamaForCausalLM(config).to(DEVICE).eval()
    prompts = [list(range(1 + RANK, 5 + 3 * number)) for number in range(1, 6)]
    wanted = GenerationConfig(max_new_tokens=8, do_sample=False, eos_token_id=-1, pad_token_id=0)
    limits = ContinuousBatchingConfig(page_size=16, num_blocks=32, max_batch_tokens=64)
    outputs = net.generate_batch(prompts, generation_config=wanted, continuous_batching_config=limits)
    return [outputs[name].generated_tokens for name in sorted(outputs)]


def torchrec_sharded():
    from torch.distributed.optim import _apply_optimizer_in_backward
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.distributed.planner.types import ParameterConstraints

    start()
    torch.manual_seed(0)
    kinds = ("table_wise", "column_wise", "data_parallel")
    sizes = {"embedding_dim": 8, "num_embeddings": 50}
    tables = [EmbeddingBagConfig(name=kind, feature_names=[kind], **sizes) for kind in kinds]
    net = nn.Sequential()
    net.bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    # Sharded tables are updated in the backward pass.
    _apply_optimizer_in_backward(torch.optim.SGD, net.bags.parameters(), {"lr": 0.1})
    constraints = {kind: ParameterConstraints(sharding_types=[kind], min_partition=4) for kind in kinds}
    planner = EmbeddingShardingPlanner(topology=Topology(SIZE, DEVICE.type), constraints=constraints)
    sharders = [EmbeddingBagCollectionSharder()]
    plan = planner.collective_plan(net, sharders, dist.group.WORLD)
    net = DistributedModelParallel(net, device=DEVICE, plan=plan, sharders=sharders)
    losses = []
    for step in range(3):
        numbers = torch.Generator().manual_seed(10 * step + RANK)
        lengths = torch.randint(4, (4 * len(kinds),), generator=numbers)
        values = torch.randint(50, (int(lengths.sum()),), generator=numbers)
        features = KeyedJaggedTensor.from_lengths_sync(list(kinds), values, lengths).to(DEVICE)
        loss = net.module.bags(features).values().pow(2).mean()
        loss.backward()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    results = globals()[sys.argv[1]]()
    print("RESULT", RANK, results)
    if dist.is_initialized():
        dist.destroy_process_group()
