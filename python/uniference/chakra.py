"""Reads, edits, writes and feeds MLCommons Chakra execution traces.

A trace is a file of nodes, one operation of one rank each. Files are read and written node by node, plain or compressed
with gzip, so a trace may be larger than memory:

    from uniference import chakra

    with chakra.TraceReader("job.0.et") as trace, chakra.TraceWriter("half.0.et", trace.metadata) as half:
        for node in trace:
            if node.type == chakra.NodeType.COMP_NODE:
                node.duration_micros //= 2
            half.write(node)

`Feeder` gives the nodes of a trace in an order in which they can be carried out, for simulators of your own. The
package does not import torch.
"""

from collections.abc import Mapping
from enum import IntEnum

from uniference._native import Attributes, Feeder, Metadata, Node, TraceError, TraceReader, TraceWriter

__all__ = [
    "Attributes",
    "CommType",
    "Feeder",
    "Metadata",
    "Node",
    "NodeType",
    "TraceError",
    "TraceReader",
    "TraceWriter",
]

Mapping.register(Attributes)


class NodeType(IntEnum):
    """The type of a node: `ChakraProtoMsg.NodeType`."""

    INVALID_NODE = 0
    METADATA_NODE = 1
    MEM_LOAD_NODE = 2
    MEM_STORE_NODE = 3
    COMP_NODE = 4
    COMM_SEND_NODE = 5
    COMM_RECV_NODE = 6
    COMM_COLL_NODE = 7


class CommType(IntEnum):
    """The collective of a `COMM_COLL_NODE`: `ChakraProtoMsg.CollectiveCommType`, the attribute `comm_type`."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9
