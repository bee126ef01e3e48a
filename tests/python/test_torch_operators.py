"""The kinds of operators in crates/costs, compared with the installed torch."""

import re
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
LISTS = ROOT / "crates" / "costs" / "src" / "operators" / "torch" / "names.rs"


def listed(kind: str) -> set[str]:
    (found,) = re.findall(rf"const {kind}: .*?;\n", LISTS.read_text(), re.DOTALL)
    return set(re.findall(r'"(.+?)"', found))


def test_the_lists_have_all_operators_of_the_installed_torch() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "torch_operators.py", "--check"], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_operators_that_torch_has_loaded_are_listed_with_their_tags() -> None:
    """The dispatcher's tags, which include generated overloads."""
    kinds = {torch.Tag.pointwise: listed("POINTWISE"), torch.Tag.reduction: listed("REDUCTIONS")}
    found = dict.fromkeys(kinds, 0)
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if namespace != "aten" or not hasattr(torch.ops.aten, base):
            continue
        tags = getattr(getattr(torch.ops.aten, base), overload or "default").tags
        plain = base if base.endswith("__") else base.removesuffix("_")
        for tag in kinds.keys() & set(tags):
            assert {plain, f"{plain}.{overload}"} & kinds[tag], f"{name} is {tag}: run `make torch-operators`"
            found[tag] += 1
    assert found[torch.Tag.pointwise] > 400
    assert found[torch.Tag.reduction] > 60
