"""Large tensors without values: programs run to their end, small tensors have values, and uncomputed values read as
zero."""

import re
from pathlib import Path

import pytest
from harness import run_script, uniference

SETUP = "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\nrank = dist.get_rank()\n"
LARGE = Path(__file__).parent / "large_model.py"


def test_small_tensors_are_real_and_large_ones_are_zero(tmp_path: Path) -> None:
    source = SETUP + (
        "small, large = torch.arange(8.0) + rank, torch.randn(1 << 20)\n"
        "dist.all_reduce(small)\n"
        "assert small.tolist() == [2.0 * i + 1 for i in range(8)]\n"
        "dist.all_reduce(large)\n"
        "assert float(large.sum()) == 0 and large[:3].tolist() == [0, 0, 0]\n"
        "scores = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))\n"
        "assert scores.topk(2).indices.tolist() == scores.sort(descending=True).indices[:, :2].tolist()\n"
        "assert scores.abs().min() > 0\n"
        "assert large.nonzero().shape == (0, 1) and large[large > 0].numel() == 0\n"
        "assert torch.unique(large).tolist() == [0] and torch.equal(large, large)\n"
        "rows = torch.zeros(1000, 1000)\n"
        "rows[3, 5] = 7\n"
        "assert float(rows[3, 5]) == 7\n"
    )
    done = run_script(tmp_path, source, "--values", "small")
    assert done.code == 0, done.err


def test_communication_moves_sizes(tmp_path: Path) -> None:
    source = SETUP + (
        "large = torch.randn(1 << 20)\n"
        "if rank == 0:\n    dist.send(large, 1)\nelse:\n    dist.recv(large, 0)\n"
        "parts = [torch.full((1 << 19,), 5.0) for _ in range(2)]\n"
        "dist.all_gather(parts, large[: 1 << 19])\n"
        "dist.reduce_scatter(parts[0], list(large.chunk(2)))\n"
        "dist.all_to_all_single(parts[0], parts[1])\n"
        "dist.broadcast(large, 1)\n"
        "objects = [None, None]\n"
        "dist.all_gather_object(objects, {'rank': rank, 'text': 'x' * 100000})\n"
        "assert objects[1]['rank'] == 1 and len(objects[0]['text']) == 100000\n"
    )
    with_values = run_script(tmp_path, source)
    assert with_values.code == 0, with_values.err
    without = run_script(tmp_path, source, "--values", "small")
    assert without.code == 0, without.err
    tables = [re.findall(r"^ (\w+) +0 +(\d+) +(\S+ \S+) +(\S+ \S+)", done.out, re.M) for done in (with_values, without)]
    assert tables[0] == tables[1]
    assert len(tables[0]) >= 6


def test_no_tensor_has_values(tmp_path: Path) -> None:
    source = SETUP + (
        "three = torch.ones(3)\ndist.all_reduce(three)\nassert three.tolist() == [0, 0, 0]\n"
        "assert not torch.randn(3).any() and (torch.eye(3) @ torch.ones(3)).tolist() == [0, 0, 0]\n"
    )
    done = run_script(tmp_path, source, "--values", "none")
    assert done.code == 0, done.err


@pytest.mark.parametrize("values", ["none", "small"])
def test_the_step_by_which_an_optimizer_divides_is_real(values: str, tmp_path: Path) -> None:
    source = SETUP + (
        "weights = torch.nn.Parameter(torch.ones(1 << 20))\n"
        "for optimizer in (torch.optim.Adam([weights], foreach=False), torch.optim.AdamW([weights], foreach=True)):\n"
        "    for _ in range(2):\n"
        "        weights.grad = torch.ones(1 << 20)\n"
        "        optimizer.step()\n"
        "    assert optimizer.state[weights]['step'].item() == 2\n"
        "assert torch.tensor(3.0).item() == 3 and weights[:2].tolist() == [0, 0]\n"
    )
    done = run_script(tmp_path, source, "--values", values)
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("dtype", "most"),
    [("uint8", 1 << 26), ("int8", 1 << 16), ("int64", 1 << 16), ("bool", 1 << 16), ("float32", 2), ("complex64", 1)],
)
def test_large_tensors_of_all_types_move_as_sizes(dtype: str, most: int, tmp_path: Path) -> None:
    """Tensors up to the limit of their type arrive with their values; larger tensors arrive as sizes, without the element that was set."""
    source = SETUP + (
        f"for elements, moves in (({most}, True), ({most + 1}, False)):\n"
        f"    for call in (lambda x: dist.send(x, 1) if rank == 0 else dist.recv(x, 0), lambda x: dist.broadcast(x, 0)):\n"
        f"        x = torch.empty(elements, dtype=torch.{dtype})\n"
        "        x[0] = 1 - rank\n"
        "        call(x)\n"
        "        assert rank == 0 or x[0].item() == (1 if moves else 0), (elements, x[0])\n"
    )
    done = run_script(tmp_path, source, "--values", "none")
    assert done.code == 0, done.err


def test_objects_that_ranks_send_each_other_are_whole(tmp_path: Path) -> None:
    """PyTorch packs each object into bytes, and concatenates the bytes of several."""
    source = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
sent = [[5] * 100_000, ["six"] * 100_000]
objects = list(sent) if dist.get_rank() == 0 else [None, None]
dist.broadcast_object_list(objects, src=0)
assert objects == sent
"""
    done = run_script(tmp_path, source, "--values", "small")
    assert done.code == 0, done.err


@pytest.mark.parametrize("values", ["none", "small"])
def test_what_steers_a_program_has_values(values: str, tmp_path: Path) -> None:
    """Meshes, generator states and object collectives have values; tensors on `meta` are not computed."""
    source = SETUP + (
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "mesh = init_device_mesh('cpu', (2, 1), mesh_dim_names=('rows', 'columns'))\n"
        "assert mesh['rows'].get_local_rank() == rank and mesh['columns'].size() == 1\n"
        "torch.set_rng_state(torch.get_rng_state().clone())\n"
        "objects = [None, None]\ndist.all_gather_object(objects, 'x' * (rank + 1))\nassert objects == ['x', 'xx']\n"
        "with torch.device('meta'):\n    rows = torch.arange(8192)\n"
        "assert torch.outer(rows, torch.zeros(64, device='meta')).is_meta\n"
        "assert torch.empty(8192).to('meta').is_meta and torch.zeros_like(torch.empty(8192), device='meta').is_meta\n"
    )
    done = run_script(tmp_path, source, "--values", values)
    assert done.code == 0, done.err


def test_training_goes_on_without_values(tmp_path: Path) -> None:
    source = SETUP + (
        "model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.LayerNorm(512), torch.nn.Linear(512, 512))\n"
        "model = torch.nn.parallel.DistributedDataParallel(model)\n"
        "optimizer = torch.optim.AdamW(model.parameters(), foreach=True)\n"
        "for _ in range(2):\n"
        "    loss = model(torch.randn(16, 512)).square().mean()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "print('loss', loss.item())\n"
    )
    done = run_script(tmp_path, source, "--values", "small")
    assert done.code == 0, done.err
    assert "loss 0.0" in done.out


def test_a_large_model_prefills_and_decodes(tmp_path: Path) -> None:
    options = ("--ranks", 8, "--compute", "none", "--values", "small", "--out", tmp_path / "out")
    done = uniference("run", *options, LARGE, "70b", 8, 1, 4, 2, cwd=tmp_path)
    assert done.code == 0, done.err
    # A layer has query and output, key and value, gate, up and down, and two norms; the model has the embedding and an
    # eighth of the head.
    layer = 2 * 8192 * 8192 // 8 + 2 * 8192 * 1024 // 8 + 3 * 8192 * 28672 // 8 + 2 * 8192
    weights = 2 * (4 * layer + 128256 * 8192 + 128256 * 8192 // 8)
    found = re.findall(r"weights (\d+) token 0 resident (\d+) MiB", done.out)
    assert [int(size) for size, _ in found] == [weights] * 8
    # No rank uses as much memory as its weights, 3.4 GB.
    assert all(int(resident) < 1024 for _, resident in found)


def test_what_values_may_be(tmp_path: Path) -> None:
    done = run_script(tmp_path, SETUP, "--values", "smalll")
    assert done.code == 2
    assert "expected all, small, small=ELEMENTS or none" in done.err


def test_a_program_that_fails_is_told_what_reads_as_zero(tmp_path: Path) -> None:
    source = SETUP + "total = float(torch.ones(1 << 20).sum())\ndist.barrier()\nassert total > 0\n"
    assert run_script(tmp_path, source, "--values", "all").code == 0
    done = run_script(tmp_path, source, "--values", "small")
    assert done.code == 1, done.err
    assert "hint: values that are not computed read as zero (--values)" in done.err
    assert done.err.endswith("if it failed on one, run it with --values all\n"), done.err


def test_a_program_that_fails_without_values_is_told_of_small_ones(tmp_path: Path) -> None:
    done = run_script(tmp_path, SETUP + "1 / torch.ones(3).sum().item()\n", "--values", "none")
    assert done.code == 1
    assert done.err.endswith("if it failed on one, run it with --values small or all\n"), done.err
