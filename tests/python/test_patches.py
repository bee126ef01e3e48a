"""Replaced names of torch and of the standard library: declared in one list, and reported by name at a run's start if
they are missing."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from harness import run_script, uniference
from torch.distributed import distributed_c10d

from uniference import patches
from uniference.patches import names, registry

PACKAGE = Path(patches.__file__).parents[1]
FILES = sorted(PACKAGE.rglob("*.py"))

# Names that are documented, with or without an underscore.
PUBLIC = {"os._exit", "sys._getframe", "_thread"}
# Loops over classes of this package.
OWN_CLASSES = {("rank/gpus.py", "backend")}


def test_this_torch_has_every_name() -> None:
    registry.check_all(names.ALL)


def test_a_name_that_has_moved_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(distributed_c10d, "_create_process_group_wrapper")
    with pytest.raises(registry.MovedError) as raised:
        registry.check(names.ALL)
    message, hint = raised.value.args
    assert message == (
        f"torch {torch.__version__}: torch.distributed.distributed_c10d._create_process_group_wrapper was not found. "
        "Uniference replaces it to keep the debug level DETAIL from comparing calls over real Gloo"
    )
    assert (
        hint
        == "install a supported version: pip install torch==2.15.0; run `uniference doctor --patches` to list all such names"
    )


def test_a_function_with_other_parameters_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "torch.distributed.launcher.api.launch_agent", lambda config, command, args, health_check_server: None
    )
    with pytest.raises(registry.MovedError) as raised:
        registry.check([names.LAUNCH_AGENT, names.SLEEP])
    assert (
        "launch_agent takes (config, command, args, health_check_server) rather than (config, entrypoint, args, ...)"
        in raised.value.args[0]
    )


def test_parameters_of_functions_in_c_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = registry.Name("torch.distributed:ProcessGroup.split_group", "test", "self, members, ...")
    assert "takes (self, ranks, timeout" in str(expected.problem())


def test_several_moved_names_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("time.sleep")
    monkeypatch.delattr("pdb.set_trace")
    with pytest.raises(
        registry.MovedError,
        match=r"Python 3.*: time\.sleep was not found \(one of 2 names that were not found\)\. Uniference",
    ):
        registry.check([names.SLEEP, names.SET_TRACE, names.INPUT])


def test_a_module_that_is_not_imported_is_looked_at_when_a_name_is_replaced() -> None:
    name = registry.Replaced("wave:nothing", "test")
    sys.modules.pop("wave", None)
    assert name.problem() is None
    with pytest.raises(registry.MovedError, match=r"wave\.nothing was not found"):
        name.replace(None)
    with pytest.raises(registry.MovedError, match=r"module wave\.nowhere does not exist"):
        registry.check_all([registry.Name("wave.nowhere:nothing", "test")])


def test_operators_that_are_not_there_are_named() -> None:
    operators = registry.Operators("c10d", "allreduce_ nothing_ broadcast_", "test")
    with pytest.raises(registry.MovedError, match=r"c10d::\{allreduce_, nothing_, broadcast_\} lacks nothing_\."):
        registry.check([operators])


def test_a_replaced_name_can_be_restored() -> None:
    import wave

    real = wave.open
    name = registry.Replaced("wave:open", "test", "f, mode")
    name.replace(len)
    name.wrap(lambda current: (current, "wrapped"))
    assert wave.open == (len, "wrapped")
    assert name.original is real
    name.restore()
    assert wave.open is real


MOVES = "import torch.distributed.distributed_c10d as c10d\ndef load():\n    del c10d._create_process_group_wrapper\n"


def test_a_run_with_another_torch_says_what_has_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # torch loads the entry point at the end of its own import.
    installed = tmp_path / "installed"
    metadata = installed / "moves-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Name: moves\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[torch.backends]\nmoves = moves:load\n")
    (installed / "moves.py").write_text(MOVES)
    paths = [os.environ.get("PYTHONPATH", ""), str(installed)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    done = run_script(tmp_path, "print('the program runs')\n")
    assert done.code == 2, done.err
    assert (
        f"error: torch {torch.__version__}: torch.distributed.distributed_c10d._create_process_group_wrapper"
        in done.err
    )
    assert "hint: install a supported version: pip install torch==" in done.err
    assert "the program runs" not in done.out


def test_the_list_says_of_each_name_what_it_is_for() -> None:
    command = [sys.executable, "-P", "-m", "uniference.patches"]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["name"] for row in rows] == [str(name) for name in names.ALL]
    assert {row["problem"] for row in rows} == {None}
    assert all(row["why"] and row["verb"] in ("replaces", "relies on", "adds to") for row in rows)


def test_doctor_lists_the_names(tmp_path: Path) -> None:
    done = uniference("doctor", "--patches", cwd=tmp_path)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert len(lines) == len(names.ALL)
    assert (
        "ok       torch.nn.parallel.DistributedDataParallel._get_ddp_logging_data(self): "
        "simulated ranks; Uniference replaces it to name the backend in DDP's log"
    ) in lines
    summary = uniference("doctor", cwd=tmp_path).out
    assert f"ok       patches        {len(names.ALL)} required names of PyTorch and Python found" in summary


class Module:
    """One file of the package, and the meaning of its names."""

    def __init__(self, path: Path) -> None:
        self.file = path.relative_to(PACKAGE).as_posix()
        self.tree = ast.parse(path.read_text())
        self.aliases: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    self.aliases[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom) and node.module:
                self.aliases |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        # Variables that refer to an imported object.
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                if isinstance(target, ast.Name) and (path_ := self.resolve(node.value)) is not None:
                    self.aliases.setdefault(target.id, path_)

    def resolve(self, node: ast.expr) -> str | None:
        """The dotted path of an expression that begins with an imported name."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.resolve(node.value)
            return f"{owner}.{node.attr}" if owner else None
        if isinstance(node, ast.Subscript) and self.resolve(node.value) == "sys.modules":
            return str(node.slice.value) if isinstance(node.slice, ast.Constant) else None
        return None

    def foreign(self) -> Iterator[tuple[int, str]]:
        """Names of other libraries in the file."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.Attribute) and (path := self.resolve(node)) is not None:
                yield node.lineno, path


def is_private(path: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in path.split("."))


@pytest.fixture(scope="module")
def package() -> list[Module]:
    return [Module(path) for path in FILES]


def test_every_private_name_is_declared(package: list[Module]) -> None:
    declared = [str(name) for name in names.ALL]

    def is_declared(path: str) -> bool:
        return any(path == name or name.startswith(f"{path}.") or path.startswith(f"{name}.") for name in declared)

    missing = {
        f"{module.file}:{line}: {path}"
        for module in package
        for line, path in module.foreign()
        if not path.startswith("uniference") and is_private(path) and path not in PUBLIC and not is_declared(path)
        if not any(path.startswith(f"{public}.") for public in PUBLIC)
    }
    assert missing == set()


def test_private_attributes_of_objects_are_declared(package: list[Module]) -> None:
    # The source does not show the owner of an attribute: every private attribute that the package does not define
    # counts.
    ours, used = set(), set()
    for module in package:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                ours.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                ours.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                ours.add(node.attr)
            elif isinstance(node, ast.Attribute) and is_private(node.attr):
                used.add(node.attr)
    declared = {part for name in names.ALL for part in str(name).split(".")} | {"_exit", "_getframe"}
    assert used - ours - declared == set()


def test_nothing_is_replaced_but_through_the_registry(package: list[Module]) -> None:
    wrong = []
    for module in package:
        if module.file == "patches/registry.py":
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                path = module.resolve(node)
                # `__code__` and the like of a function of this package that has the name of an import are allowed.
                if path is not None and not path.startswith("uniference"):
                    wrong.append(f"{module.file}:{node.lineno}: {path} = ...")
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("setattr", "delattr")
            ):
                if (module.file, ast.unparse(node.args[0])) not in OWN_CLASSES:
                    wrong.append(f"{module.file}:{node.lineno}: {ast.unparse(node)}")
            elif isinstance(node, ast.Attribute) and module.resolve(node) == "torch.library.Library":
                wrong.append(f"{module.file}:{node.lineno}: an operator's kernel")
    assert wrong == []


def test_every_name_that_is_declared_as_replaced_is_replaced() -> None:
    declared = {key for key, value in vars(names).items() if key.isupper() and value}
    text = "\n".join(path.read_text() for path in FILES if path.parent.name != "patches")
    assert not {key for key in declared if not key.startswith("_") and f"names.{key}" not in text}
