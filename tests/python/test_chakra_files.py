"""`uniference.chakra`: traces are read, edited, written and fed from Python. No program is run."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uniference import chakra
from uniference.chakra import CommType, Feeder, Metadata, Node, NodeType, TraceError, TraceReader, TraceWriter

ROOT = Path(__file__).parents[2]


def write(path: Path, nodes: list[Node], metadata: Metadata | None = None, *, gzip: bool = False) -> Path:
    with TraceWriter(path, metadata, gzip=gzip) as trace:
        for node in nodes:
            trace.write(node)
    return path


def compute(id: int, *deps: int, **attributes: Any) -> Node:
    return Node(id, f"n{id}", NodeType.COMP_NODE, data_deps=deps, duration_micros=10 * id, attr=attributes)


def everything() -> Node:
    node = Node(
        2**63 + 1,
        "ä\n",
        NodeType.COMM_COLL_NODE,
        data_deps=[1, 2],
        ctrl_deps=(3,),
        start_time_micros=5,
        duration_micros=6,
        inputs=("[1]", "[[]]", "['Int']"),
        attr={"flag": True, "number": -1, "large": 2**64 - 1, "half": 0.5, "text": "x", "raw": b"\0", "many": [1, 2]},
    )
    node.attr.set("comm_size", 7, "uint32")
    node.attr.set("none", [], "string_list")
    return node


@pytest.mark.parametrize("gzip", [False, True])
def test_what_is_written_is_read(tmp_path: Path, gzip: bool) -> None:
    metadata = Metadata("0.0.4", {"schema": "1.1.1"})
    path = write(tmp_path / "a.0.et", [everything(), compute(1)], metadata, gzip=gzip)
    with TraceReader(path) as trace:
        assert (trace.metadata.version, trace.metadata.attr["schema"]) == ("0.0.4", "1.1.1")
        node, other = trace
    assert node == everything() != other
    assert (node.data_deps, node.ctrl_deps, node.outputs, node.comm_size) == ((1, 2), (3,), None, 7)
    assert dict(node.attr) == dict(everything().attr)
    assert node.attr["large"] == 2**64 - 1
    assert [node.attr.type_of(name) for name in ("number", "large", "comm_size")] == ["int64", "uint64", "uint32"]
    assert repr(other) == 'Node(1, "n1", COMP_NODE)'
    # A file that is read and written again has the same bytes.
    with TraceReader(path) as trace, TraceWriter(tmp_path / "b.0.et", trace.metadata, gzip=gzip) as again:
        for node in trace:
            again.write(node)
    assert (tmp_path / "b.0.et").read_bytes() == path.read_bytes()


def test_editing_keeps_the_types_of_attributes() -> None:
    attributes = everything().attr
    attributes["comm_size"] = 2**32 - 1
    assert attributes.type_of("comm_size") == "uint32"
    with pytest.raises(OverflowError):
        attributes["comm_size"] = 2**32
    with pytest.raises(OverflowError):
        attributes["comm_size"] = -1
    attributes["half"] = 3
    assert (attributes["half"], attributes.type_of("half")) == (3.0, "double")
    attributes["comm_size"] = "now text"
    assert attributes.type_of("comm_size") == "string"
    del attributes["comm_size"]
    assert "comm_size" not in attributes
    assert attributes.get("comm_size", 1) == 1
    with pytest.raises(KeyError):
        attributes["comm_size"]
    for wrong in (None, object(), {}, [], [1, "x"]):
        with pytest.raises(TypeError):
            attributes["new"] = wrong
    with pytest.raises(ValueError, match="int64 or string_list"):
        attributes.set("new", 1, "long")
    with pytest.raises(TypeError):
        attributes.set("new", True, "int64")


def test_a_new_duration_replaces_the_exact_one() -> None:
    node = compute(1, uniference_duration_ps=10_000_001)
    node.duration_micros //= 2
    assert "uniference_duration_ps" not in node.attr
    assert node.duration_micros == 5


def test_a_trace_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "a.0.et", [compute(1)])
    before = path.read_bytes()
    with pytest.raises(TraceError, match=r"duplicate node id 4\nhint: "):
        write(path, [compute(4), compute(4)])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError, match="missing"):
        TraceWriter(tmp_path / "missing" / "a.0.et")
    closed = TraceWriter(tmp_path / "b.0.et")
    closed.close()
    with pytest.raises(ValueError, match="is closed"):
        closed.write(compute(5))


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.0.et", [compute(1), everything()])
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    with pytest.raises(TraceError, match=r"a\.0\.et: the trace is truncated: .*\nhint: "), TraceReader(path) as trace:
        list(trace)
    (tmp_path / "text").write_text('{"nodes": []}')
    with pytest.raises(TraceError, match="not a Chakra execution trace"):
        TraceReader(tmp_path / "text")
    with pytest.raises(FileNotFoundError):
        Feeder(tmp_path / "nothing")
    circle = write(tmp_path / "circle.0.et", [compute(1, 2), compute(2, 1)])
    with pytest.raises(TraceError, match="1 -> 2 -> 1"):
        Feeder(circle)


def test_a_feeder_gives_what_is_free_the_lowest_id_first(tmp_path: Path) -> None:
    # 9 and 3 have no dependencies, 5 depends on 9, 4 on both; 7 depends on a node that the file lacks.
    nodes = [compute(9), compute(5, 9), compute(3), compute(4, 3, 9), compute(7, 100)]
    feeder = Feeder(write(tmp_path / "a.0.et", nodes, Metadata("1.0.0")))
    issued = [feeder.next_issuable() for _ in range(4)]
    assert [node and node.id for node in issued] == [3, 7, 9, None]
    assert feeder.lookup(3) == nodes[2]
    assert feeder.metadata.version == "1.0.0"
    feeder.complete(3)
    assert feeder.next_issuable() is None
    assert feeder.has_nodes()
    feeder.push_back(7)
    assert (again := feeder.next_issuable()) is not None
    assert again.id == 7
    feeder.complete(9)
    assert [node.id for _ in range(2) if (node := feeder.next_issuable())] == [4, 5]
    for wrong in (3, 100):
        with pytest.raises(KeyError, match=f"node {wrong} has not been issued, or is already complete"):
            feeder.complete(wrong)
    for id in (4, 5, 7):
        feeder.complete(id)
    assert not feeder.has_nodes()


@given(st.lists(st.lists(st.integers(0, 30), max_size=4), max_size=30), st.randoms(use_true_random=False))
def test_no_node_is_issued_before_what_it_depends_on(
    tmp_path_factory: pytest.TempPathFactory, before: list[list[int]], random: Any
) -> None:
    nodes = [compute(id, *[dep for dep in deps if dep != id and dep < id]) for id, deps in enumerate(before)]
    random.shuffle(nodes)
    feeder = Feeder(write(tmp_path_factory.mktemp("feed") / "a.0.et", nodes))
    done: set[int] = set()
    running: list[Node] = []
    while feeder.has_nodes():
        while node := feeder.next_issuable():
            assert done.issuperset(node.data_deps)
            running.append(node)
        ended = running.pop(random.randrange(len(running)))
        feeder.complete(ended.id)
        done.add(ended.id)
    assert done == set(range(len(nodes)))


def test_the_documentations_programs_run(tmp_path: Path) -> None:
    section = (ROOT / "docs/reference/chakra.md").read_text().split("## Traces from Python")[1]
    programs = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    reduce = Node(2, "all_reduce", NodeType.COMM_COLL_NODE, data_deps=[1], attr={"comm_type": 0, "comm_size": 4096})
    write(tmp_path / "job.0.et", [compute(1), reduce])
    loaded = "\nimport sys; assert 'torch' not in sys.modules"
    for program in programs:
        subprocess.run(
            [sys.executable, "-c", "from uniference import chakra\n" + program + loaded], cwd=tmp_path, check=True
        )
    assert len(programs) == 2
    first, second = TraceReader(tmp_path / "faster.0.et")
    assert (first.duration_micros, second.comm_size, second.comm_type) == (5, 2048, CommType.ALL_REDUCE)


def test_the_names_are_the_schemas() -> None:
    source = (ROOT / "crates/formats/src/chakra/schema.rs").read_text()
    for kind in [*NodeType, *CommType]:
        assert f'"{kind.name}"' in source
    assert repr(Node(1, "x", 99)) == 'Node(1, "x", unknown type)'
    assert all(hasattr(chakra, name) for name in chakra.__all__)
