"""The surroundings of an unmodified program: environment, arguments, modules, `__main__`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import run_script, uniference, write_script

import uniference as package
from uniference.simulation import _new_directory

ENVIRONMENT = """
import os, sys, pickle, atexit, threading
print("ranks =", os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"], os.environ["MASTER_PORT"])
print("argv =", sys.argv[1:], os.path.basename(sys.argv[0]), os.path.basename(__file__), __name__)
print("path =", os.path.samefile(sys.path[0], os.path.dirname(__file__)))
class Mine: pass
print("pickle =", type(pickle.loads(pickle.dumps(Mine()))) is Mine)
atexit.register(lambda: print("exit =", pickle.dumps(Mine()) is not None))
threading.Timer(0.01, lambda: print("thread =", Mine.__name__)).start()
"""


def test_environment(tmp_path: Path) -> None:
    script = write_script(tmp_path, ENVIRONMENT)
    options = ("--ranks", 1, "--compute", "none", "--out", tmp_path / "out")
    done = uniference("run", *options, script, "--flag", "value", cwd=tmp_path)
    assert done.code == 0, done.err
    lines = dict(line.split(" = ", 1) for line in done.out.splitlines() if " = " in line)
    assert lines["ranks"] == "0 1 0 29500"
    assert lines["argv"] == "['--flag', 'value'] script.py script.py __main__"
    assert lines["path"] == lines["pickle"] == lines["exit"] == "True"
    assert lines["thread"] == "Mine"


def test_module(tmp_path: Path) -> None:
    (tmp_path / "tool").mkdir()
    write_script(tmp_path / "tool", "", "__init__.py")
    write_script(
        tmp_path / "tool", "import sys\nprint('module =', __name__, __package__, sys.argv[1:])\n", "__main__.py"
    )
    options = ("--ranks", 1, "--compute", "none", "--out", tmp_path / "out")
    done = uniference("run", *options, "-m", "tool", "x", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "module = __main__ tool ['x']" in done.out


def test_importing_a_library_is_not_charged_and_what_the_programs_own_modules_do_is(tmp_path: Path) -> None:
    # Each clock read costs 50 ns, except in an import.
    reads = "import time\nfor _ in range(100): time.monotonic()\n"
    libraries = tmp_path / "site-packages"
    libraries.mkdir()
    write_script(libraries, reads, "library.py")
    write_script(libraries, "import own_plugin\n", "finds_plugins.py")
    for name in ("own", "own_plugin"):
        write_script(tmp_path, reads + f"import another_of_{name}\n", f"{name}.py")
        write_script(tmp_path, "", f"another_of_{name}.py")
    write_script(tmp_path, "import time\nraise ValueError('not today')\n", "fails.py")
    source = (
        f"import sys, time\nsys.path.append({str(libraries)!r})\nmoments = [time.monotonic_ns()]\n"
        "import library; moments.append(time.monotonic_ns())\n"
        "import own; moments.append(time.monotonic_ns())\n"
        "import finds_plugins; moments.append(time.monotonic_ns())\n"
        "print('took', [after - before for before, after in zip(moments, moments[1:])])\nimport fails\n"
    )
    done = run_script(tmp_path, source, ranks=1)
    assert "took [50, 5050, 5050]" in done.out
    # As Python shows it: without frames of the import system.
    frames = [line.strip().partition(", line ")[0] for line in done.err.splitlines() if line.startswith("  File ")]
    assert frames == [f'File "{tmp_path / name}"' for name in ("script.py", "fails.py")], done.err


def test_runs_side_by_side_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [_new_directory("train").name for _ in range(2)] == ["train-1", "train-2"]
    with pytest.raises(package.SimulationError):
        package.simulate("nowhere.py", ranks=1)
    assert sorted(path.name for path in Path("uniference-out").iterdir()) == ["train-1", "train-2"]


@pytest.mark.parametrize("first", ["", "package.simulate; "])
def test_public_names_are_listed(first: str) -> None:
    look = f"import uniference as package; {first}print(sorted(set(package.__all__) - set(dir(package))))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_simulate_returns_the_report(tmp_path: Path) -> None:
    source = "import torch, torch.distributed as dist\ndist.init_process_group()\ndist.all_reduce(torch.ones(1000))\n"
    run = package.simulate(
        write_script(tmp_path, source), ranks=2, backend="ideal", compute="none", out=tmp_path / "out"
    )
    assert run.directory == tmp_path / "out"
    for part in (run, *run.ranks, *run.operations):
        assert "\n" not in repr(part)
        assert len(repr(part)) < 200 + len(str(tmp_path)), repr(part)
    assert all(text in repr(run) for text in ("makespan", "2 ranks", str(tmp_path))), repr(run)
    assert [rank.rank for rank in run.ranks] == [0, 1]
    (all_reduce,) = [operation for operation in run.operations if operation.operation == "all_reduce"]
    # Two calls of 1000 float32.
    assert (all_reduce.count, all_reduce.bytes) == (2, 2 * 4000)
    for rank in run.ranks:
        total = rank.compute_s + rank.exposed_comm_s + rank.idle_s
        assert abs(total - run.makespan) < 1e-9


def test_replays_and_generated_jobs_need_no_process_of_their_own(tmp_path: Path) -> None:
    source = "import torch, torch.distributed as dist\ndist.init_process_group()\ndist.all_reduce(torch.ones(1000))\n"
    options: dict[str, Any] = {"ranks": 2, "backend": "ideal", "compute": "none"}
    run = package.simulate(write_script(tmp_path, source), out=tmp_path / "out", **options)
    again = package.replay(run, out=tmp_path / "again")
    assert again.report == run.report
    assert again.directory == tmp_path / "again"
    slower = package.replay(tmp_path / "out", set='network.latency="1 ms"', out=tmp_path / "slower")
    assert slower.makespan > run.makespan
    job: dict[str, Any] = {
        "layers": 1,
        "hidden": 64,
        "heads": 4,
        "kv_heads": 2,
        "ffn": 128,
        "vocab": 256,
        "seq": 64,
        "batch": 2,
    }
    trained = package.workload("llama", ranks=2, dp=2, out=tmp_path / "job", **job)
    assert len(trained.ranks) == 2
    assert "each is taken to be h100-sxm-80gb" in trained.report["warnings"][0]
    assert trained.report["job"]["tokens"] > 0
    for words, expected in [
        ({"dp": 3}, "the batch size 2 must be a multiple of dp"),
        ({"dpp": 3}, "unexpected argument '--dpp'"),
    ]:
        with pytest.raises(package.SimulationError, match=expected) as refused:
            package.workload("llama", ranks=2, out=tmp_path / "job", **(job | words))
        assert refused.value.exit_code == 2
    with pytest.raises(package.SimulationError, match=r"neither .*nowhere nor .* exists"):
        package.replay(tmp_path / "nowhere", ranks=2)


def test_several_ranks_print_whole_lines(tmp_path: Path) -> None:
    done = run_script(tmp_path, "import os\nfor i in range(50): print('line', os.environ['RANK'], i)\n", ranks=3)
    assert done.code == 0, done.err
    # Lines have their rank in front once a second rank has printed.
    lines = [line.partition("] ")[2] or line for line in done.out.splitlines()]
    for rank in range(3):
        assert [line for line in lines if line.startswith(f"line {rank} ")] == [f"line {rank} {i}" for i in range(50)]


SPAWNS = """
import os, socket, torch, torch.distributed as dist, torch.multiprocessing as mp
def main(rank, world_size, port):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    total = torch.tensor([rank])
    dist.all_reduce(total)
    print("total", rank, total.item())
if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    mp.spawn(main, args=(3, port), nprocs=3)
"""


def test_a_program_that_spawns_its_own_ranks(tmp_path: Path) -> None:
    done = run_script(tmp_path, SPAWNS, ranks=3)
    assert done.code == 0, done.err
    # 0 + 1 + 2 = 3 on every rank
    lines = sorted(line.partition("] ")[2] or line for line in done.out.splitlines() if "total" in line)
    assert lines == [f"total {rank} 3" for rank in range(3)]


def test_children_of_a_rank_cannot_communicate(tmp_path: Path) -> None:
    # Metadata as in an installation: torch loads the entry point in every process.
    metadata = tmp_path / "installed" / "uniference-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Name: uniference\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[torch.backends]\nuniference = uniference.rank.children:load\n")
    script = write_script(tmp_path, SPAWNS)
    paths = [os.environ.get("PYTHONPATH", ""), str(metadata.parent)]
    options = ("run", "--ranks", 1, "--compute", "none", "--out", tmp_path / "out")
    done = uniference(*options, script, cwd=tmp_path, env={"PYTHONPATH": os.pathsep.join(filter(None, paths))})
    assert done.code == 1
    assert "a child process of a rank cannot communicate" in done.err
    assert "hint: start all ranks with `uniference run --ranks N`" in done.err


def test_data_loaders_have_workers(tmp_path: Path) -> None:
    source = (
        "import torch, torch.distributed as dist\n"
        "from torch.utils.data import DataLoader, DistributedSampler\n"
        "dist.init_process_group('gloo')\n"
        "data = torch.arange(8)\n"
        "loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False), num_workers=2)\n"
        "seen = torch.cat(list(loader))\n"
        "parts = [torch.empty_like(seen) for _ in range(2)]\n"
        "dist.all_gather(parts, seen)\n"
        "print('seen', sorted(torch.cat(parts).tolist()))\n"
    )
    done = run_script(tmp_path, source)
    assert done.code == 0, done.err
    assert done.out.count(f"seen {list(range(8))}") == 2


LAUNCHED = """
import os, sys, torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank()])
    dist.all_reduce(total)
    print("total", total.item(), sys.argv[1:], __name__)
if __name__ == "__main__":
    main()
"""


def test_ranks_go_on_as_the_workers_of_torchrun(tmp_path: Path) -> None:
    write_script(tmp_path, LAUNCHED, "worker.py")
    for worker in ('"worker.py"', '"-m", "worker"'):
        launcher = f"from torch.distributed.run import main\nmain(['--nproc-per-node', '3', {worker}, '--flag'])\n"
        done = run_script(tmp_path, launcher, ranks=3)
        assert done.code == 0, done.err
        # 0 + 1 + 2 = 3 on every rank
        assert done.out.count("total 3 ['--flag'] __main__") == 3


def test_functions_are_launched_too(tmp_path: Path) -> None:
    source = (
        "from torch.distributed.launcher.api import LaunchConfig, elastic_launch\n"
        "import torch, torch.distributed as dist\n"
        "def work(x):\n"
        "    dist.init_process_group('gloo')\n"
        "    return x + dist.get_rank()\n"
        "config = LaunchConfig(1, 1, 2, run_id='any', rdzv_backend='c10d', rdzv_endpoint='localhost:0')\n"
        "print('answers', elastic_launch(config, work)(5))\n"
    )
    done = run_script(tmp_path, source)
    assert done.code == 0, done.err
    assert "answers {0: 5}" in done.out
    assert "answers {1: 6}" in done.out


def test_launchers_of_another_number_of_ranks_are_refused(tmp_path: Path) -> None:
    done = run_script(tmp_path, "from torch.distributed.run import main\nmain(['other.py'])\n")
    assert done.code == 1
    assert "the launcher requests 1 rank, but this run has 2" in done.err
    assert "hint: use `uniference run --ranks 1`" in done.err


def test_a_module_may_start_a_thread_when_it_is_imported(tmp_path: Path) -> None:
    service = (
        "import threading, time\ndef serve():\n    while True: time.sleep(0.25)\n"
        "threading.Thread(target=serve, daemon=True).start()\n"
    )
    write_script(tmp_path, service, "service.py")
    source = (
        "import service, time, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\ndist.barrier()\n"
        "if dist.get_rank() == 0: time.sleep(2)\nprint('ended', time.monotonic() > 2)\n"
    )
    done = run_script(tmp_path, source)
    assert done.code == 0, done.err
    assert "ended True" in done.out
    assert "ended False" in done.out


def test_a_rank_communicates_while_a_thread_waits_for_workers(tmp_path: Path) -> None:
    # A thread that waits for 5 s at a time, as the thread that pins memory does, with persistent workers.
    source = (
        "import torch, torch.distributed as dist\n"
        "from torch.utils.data import DataLoader\n"
        "dist.init_process_group('nccl')\n"
        "loader = DataLoader(torch.arange(16.0), batch_size=2, num_workers=1, pin_memory=True, persistent_workers=True)\n"
        "for _ in range(2):\n"
        "    for batch in loader:\n"
        "        batch = batch.cuda()\n"
        "        dist.all_reduce(batch)\n"
        "print('last', batch.tolist())\n"
    )
    done = run_script(tmp_path, source)
    assert done.code == 0, done.err
    # Both ranks have 14 and 15.
    assert done.out.count("last [28.0, 30.0]") == 2


OUTSTANDING = """
import threading, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, count = dist.get_rank(), 400
if rank == 0:
    # Each waits for its receiver: none is complete before that.
    works = [dist.isend(torch.ones(1), 1, tag=tag) for tag in range(count)]
    for work in reversed(works): work.wait()
if rank == 1:
    for tag in reversed(range(count)): dist.recv(torch.zeros(1), 0, tag=tag)
dist.barrier()
tensors = [torch.zeros(3) for _ in range(2)]
works = [dist.isend(torch.ones(3), peer) for peer in range(3) if peer != rank]
works += [dist.irecv(tensor) for tensor in tensors]
other = threading.Thread(target=time.sleep, args=(0.01 * (rank + 1),))
other.start(); other.join()
for work in works: work.wait()
dist.all_reduce(torch.ones(100))
"""


def test_results_are_the_same_bytes_at_any_number_of_jobs(tmp_path: Path) -> None:
    script = write_script(tmp_path, OUTSTANDING)
    seen = []
    for jobs in (1, 2):
        directory = tmp_path / str(jobs)
        directory.mkdir()
        options = ("--ranks", 3, "--compute", "none", "--jobs", jobs, "--record", "full", "--out", "out")
        done = uniference("run", *options, script, cwd=directory)
        assert done.code == 0, done.err
        out = directory / "out"
        report = json.loads((out / "report.json").read_text())
        # The command, with the number of jobs, is in the report and in the record's first frame: after 8 bytes of magic
        # its length and its checksum.
        assert report["manifest"].pop("command")
        record = (out / "program.record").read_bytes()
        requests = record[16 + int.from_bytes(record[8:12], "little") :]
        seen.append((report, (out / "trace.json").read_bytes(), (out / "events.jsonl").read_bytes(), requests))
    assert seen[0] == seen[1]
    # 800 operations, each with its issue and its wait, of some 30 bytes. A wait for all outstanding operations would
    # name 200 of them on average.
    assert len(seen[0][3]) < 800 * 120


def test_a_preloaded_module_may_have_started_a_process(tmp_path: Path) -> None:
    """The process ends while ranks run, and the zygote notices its end."""
    library = tmp_path / "library"
    library.mkdir()
    write_script(library, "import subprocess\nchild = subprocess.Popen(['sleep', '2'])\n", "heavy.py")
    source = "import os, time, heavy\n"
    # The loop waits for host time, because the child's end is in host time.
    source += "while os.path.exists(f'/proc/{heavy.child.pid}/exe'): sum(range(10000))\n"
    source += "print('ended')\n"
    script = write_script(tmp_path, source)
    options = ("--ranks", 1, "--compute", "none", "--out", "out", "--preload", "heavy")
    done = uniference("run", *options, script, cwd=tmp_path, env={"PYTHONPATH": str(library)})
    assert (done.code, done.out.count("ended")) == (0, 1), done.err


def test_preloaded_modules_are_imported_once_and_see_what_is_replaced(tmp_path: Path) -> None:
    """The module's own copies of torch's names are those of the ranks."""
    library = tmp_path / "library"
    library.mkdir()
    write_script(
        library,
        "import os\nfrom torch.distributed import *\nfrom torch.distributed import TCPStore\nowner = os.getpid()\n",
        "heavy.py",
    )
    source = """
import os, heavy, torch.distributed as dist
assert heavy.owner == os.getppid(), "it was imported in the rank"
assert heavy.TCPStore is dist.TCPStore
dist.init_process_group("gloo")
store = heavy.TCPStore("localhost", 1234, 2, dist.get_rank() == 0)
store.set(f"rank {dist.get_rank()}", "here")
store.wait(["rank 0", "rank 1"])
print("met")
"""
    script = write_script(tmp_path, source)
    options = ("--ranks", 2, "--compute", "none", "--out", "out", "--preload", "heavy,json")
    done = uniference("run", *options, script, cwd=tmp_path, env={"PYTHONPATH": str(library)})
    assert done.code == 0, done.err
    assert done.out.count("met") == 2


@pytest.mark.parametrize(
    ("source", "error", "hint"),
    [
        (None, "--preload heavy: ModuleNotFoundError: No module named 'heavy'", "name installed modules"),
        ("import os\nos.environ['RANK']", "--preload heavy: KeyError: 'RANK'", "name installed modules"),
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "--preload heavy: the module starts threads, which no forked rank has",
            "leave heavy out of --preload",
        ),
        (
            "import torch\nassert torch._C._cuda_getDeviceCount() == 0",
            "--preload heavy: the module asks CUDA for its devices, and no forked rank can use it then",
            "leave heavy out of --preload",
        ),
    ],
)
def test_modules_that_cannot_be_preloaded_end_the_run(
    source: str | None, error: str, hint: str, tmp_path: Path
) -> None:
    if source is not None:
        write_script(tmp_path, source, "heavy.py")
    script = write_script(tmp_path, "print('never')")
    options = ("--ranks", 2, "--out", "out", "--preload", "heavy")
    done = uniference("run", *options, script, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert done.code != 0
    assert error in done.err
    assert f"hint: {hint}" in done.err
    assert "never" not in done.out
