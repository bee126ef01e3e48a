"""Training of a GPT by Megatron-core's own model, schedules, DistributedDataParallel and distributed optimizer, in any
layout.

Usage: megatron_gpt.py [--tp N] [--sp] [--pp N] [--virtual N] [--ep N] [--experts N] [more options, see --help]. The
remaining factor of the ranks is data parallel. Weights of the tiny model are drawn by their names, and micro-batches
are numbered across data-parallel ranks, so every layout trains the same model on the same tokens: the losses equal
those of one GPU, except for rounding.
"""

import argparse
import os
import time
import zlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

# The router looks for this name, which it has not imported if Transformer Engine is not installed.
moe_utils.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)

SIZES = {
    "tiny": {
        "num_layers": 4,
        "hidden_size": 32,
        "ffn_hidden_size": 64,
        "num_attention_heads": 4,
        "num_query_groups": 2,
    },
    "8b": {
        "num_layers": 32,
        "hidden_size": 4096,
        "ffn_hidden_size": 14336,
        "num_attention_heads": 32,
        "num_query_groups": 8,
    },
}
VOCABULARY = {"tiny": 64, "8b": 128256}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--layers", type=int, help="another number of layers")
    parser.add_argument("--tp", type=int, default=1, help="tensor parallel")
    parser.add_argument("--sp", action="store_true", help="sequence parallel")
    parser.add_argument("--pp", type=int, default=1, help="stages of the pipeline")
    parser.add_argument("--virtual", type=int, help="chunks of layers that a stage has: an interleaved schedule")
    parser.add_argument("--ep", type=int, default=1, help="expert parallel")
    parser.add_argument("--experts", type=int, help="experts of each layer, of which a token takes two")
    parser.add_argument(
        "--capacity", type=float, help="each expert takes so many times its share of the tokens, padded"
    )
    parser.add_argument("--dispatcher", default="alltoall", help="how tokens come to their experts")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--overlap", action="store_true", help="of gradients and parameters with compute")
    parser.add_argument("--fusions", action="store_true", help="what Megatron-core compiles with torch.compile")
    parser.add_argument("--recompute", choices=("selective", "full"))
    parser.add_argument("--sequence", type=int, default=16)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, default=4, help="of all data-parallel ranks together, in a step")
    parser.add_argument("--steps", type=int, default=3)
    return parser.parse_args()


def configure(wanted: argparse.Namespace) -> TransformerConfig:
    sizes = SIZES[wanted.size] | ({"num_layers": wanted.layers} if wanted.layers else {})
    experts = {}
    if wanted.experts:
        experts = {
            "num_moe_experts": wanted.experts,
            "moe_ffn_hidden_size": sizes["ffn_hidden_size"],
            "moe_token_dispatcher_type": wanted.dispatcher,
            "moe_aux_loss_coeff": 0.01,
            "moe_expert_capacity_factor": wanted.capacity,
            "moe_pad_expert_input_to_capacity": wanted.capacity is not None,
        }
    recompute = {}
    if wanted.recompute:
        recompute = {"recompute_granularity": wanted.recompute}
    if wanted.recompute == "full":
        recompute |= {"recompute_method": "uniform", "recompute_num_layers": 1}
    kind = torch.bfloat16 if wanted.bf16 else torch.float32
    interleaved = wanted.virtual is not None
    return TransformerConfig(
        **sizes,
        **experts,
        **recompute,
        tensor_model_parallel_size=wanted.tp,
        sequence_parallel=wanted.sp,
        pipeline_model_parallel_size=wanted.pp,
        virtual_pipeline_model_parallel_size=wanted.virtual,
        expert_model_parallel_size=wanted.ep,
        # Experts are not sharded by tensor parallelism.
        expert_tensor_parallel_size=1 if wanted.experts else None,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        bias_activation_fusion=wanted.fusions,
        bias_dropout_fusion=wanted.fusions,
        cross_entropy_loss_fusion=wanted.fusions,
        params_dtype=kind,
        pipeline_dtype=kind,
        bf16=wanted.bf16,
        # With two stages each is the predecessor and the successor of the other: in one batch, NCCL would confuse their
        # messages.
        overlap_p2p_comm=interleaved,
        batch_p2p_comm=not interleaved,
        deallocate_pipeline_outputs=True,
    )


class Norm(torch.nn.RMSNorm):
    """A norm of a part of the sequence: without Apex and Transformer Engine, Megatron-core has only norms of the full
    sequence."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float):
        super().__init__(hidden_size, eps)
        # Sums the gradients over tensor-parallel ranks.
        self.weight.sequence_parallel = config.sequence_parallel


def layers(config: TransformerConfig, stage: int | None) -> TransformerBlockSubmodules:
    pp_rank = parallel_state.get_pipeline_model_parallel_rank()
    block = get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization="RMSNorm", vp_stage=stage, pp_rank=pp_rank
    )
    block.layer_norm = Norm
    for layer in block.layer_specs:
        layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
    return block


def draw_weights(chunk: GPTModel) -> None:
    """Draws each rank's part of matrices that depend only on their names, as given by Megatron-core's checkpoints."""
    parts = chunk.sharded_state_dict()
    apply_factories(parts)
    for part in nested_values(parts):
        if not isinstance(part, ShardedTensor) or part.data is None or part.data.dim() < 2:
            continue
        # The first dimensions number layers and experts; this rank's part has only one of each.
        leading = part.prepend_axis_num
        numbers = torch.Generator().manual_seed(zlib.crc32(repr((part.key, part.global_offset[:leading])).encode()))
        whole = torch.randn(part.global_shape[leading:], generator=numbers) / part.global_shape[-1] ** 0.5
        begins = part.global_offset[leading:]
        cut = tuple(slice(begin, begin + length) for begin, length in zip(begins, part.data.shape, strict=True))
        part.data.copy_(whole[cut])


def build(config: TransformerConfig, wanted: argparse.Namespace) -> list[DistributedDataParallel]:
    """This rank's part of the model: one chunk, or as many as its stage has."""
    chunks = []
    for number in range(wanted.virtual or 1):
        stage = number if wanted.virtual else None
        chunk = GPTModel(
            config,
            layers(config, stage),
            vocab_size=VOCABULARY[wanted.size],
            max_sequence_length=wanted.sequence,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
            position_embedding_type="rope",
            vp_stage=stage,
        ).cuda()
        if wanted.size == "tiny":
            with torch.no_grad():
                draw_weights(chunk)
        chunks.append(chunk.bfloat16() if wanted.bf16 else chunk)
    reducing = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=True,
        overlap_grad_reduce=wanted.overlap,
        overlap_param_gather=wanted.overlap,
    )
    return [
        DistributedDataParallel(config, reducing, chunk, disable_bucketing=number > 0)
        for number, chunk in enumerate(chunks)
    ]


def micro_batches(wanted: argparse.Namespace) -> Iterator[torch.Tensor]:
    """Micro-batches of this data-parallel rank, the same in each step."""
    rank, size = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
    shape = (wanted.micro_batch, wanted.sequence + 1)
    for number in range(rank, wanted.micro_batches, size):
        numbers = torch.Generator().manual_seed(number)
        yield torch.randint(VOCABULARY[wanted.size], shape, generator=numbers).cuda()


def forward(batches: Iterator[torch.Tensor], model: DistributedDataParallel):
    """A forward step, as the schedules of Megatron-core call it."""
    rows = next(batches)
    tokens, labels = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
    positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    output = model(tokens, positions, attention_mask=None, labels=labels)

    def loss_of(losses: torch.Tensor):
        loss = losses.float().mean()
        # The clone is necessary because the schedule divides the first value in place.
        return loss, {"loss": loss.detach().clone()}

    return output, loss_of


def train(wanted: argparse.Namespace) -> list[list[float]]:
    """The mean loss of each step, on the last stage of the pipeline, and the norm of its gradients."""
    config = configure(wanted)
    model = build(config, wanted)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=0.01,
            weight_decay=0.1,
            clip_grad=1.0,
            bf16=wanted.bf16,
            params_dtype=config.params_dtype,
            use_distributed_optimizer=True,
            overlap_param_gather=wanted.overlap,
        ),
        model,
    )
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    if wanted.overlap:
        no_sync = [chunk.no_sync for chunk in model]
        config.no_sync_func = no_sync if len(model) > 1 else no_sync[0]
    schedule = get_forward_backward_func()
    results = []
    for step in range(wanted.steps):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for chunk in model:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        batches = [micro_batches(wanted) for _ in model]
        found = schedule(
            forward_step_func=forward,
            data_iterator=batches if len(model) > 1 else batches[0],
            model=model,
            num_microbatches=wanted.micro_batches // parallel_state.get_data_parallel_world_size(),
            seq_length=wanted.sequence,
            micro_batch_size=wanted.micro_batch,
        )
        succeeded, norm, _ = optimizer.step()
        assert succeeded
        torch.cuda.synchronize()
        took = time.perf_counter() - began
        if found:
            loss = torch.stack([each["loss"] for each in found]).mean()
            dist.all_reduce(loss, dist.ReduceOp.AVG, parallel_state.get_data_parallel_group())
            results.append([loss.item(), float(norm)])
        if dist.get_rank() == dist.get_world_size() - 1:
            held = torch.cuda.max_memory_allocated() / 2**30
            print(f"step {step}: {took * 1e3:.3f} ms, at most {held:.2f} GiB allocated", flush=True)
    return results


if __name__ == "__main__":
    wanted = options()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    parallel_state.initialize_model_parallel(
        wanted.tp,
        wanted.pp,
        wanted.virtual,
        expert_model_parallel_size=wanted.ep,
        expert_tensor_parallel_size=1 if wanted.experts else None,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    results = train(wanted)
    # As in Megatron-LM, the last rank belongs to the last stage.
    if dist.get_rank() == dist.get_world_size() - 1:
        print("RESULT", results, flush=True)
    dist.destroy_process_group()
