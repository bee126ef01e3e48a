"""Owns the behaviour that is specific to NCCL: batches of calls, and error messages."""

from datetime import timedelta

import torch.distributed as dist

from uniference.backends.base import SimulatedBackend
from uniference.backends.connections import Connections
from uniference.backends.work import Work


class _NcclConnections(Connections):
    """The NCCL communicator of a rank. A timeout aborts it without telling other members, which wait until they time out themselves.

    On a real cluster PyTorch's watchdog also ends the process, unless the program sets TORCH_NCCL_BLOCKING_WAIT=1.
    """

    def check(self) -> None:
        if self.closed:
            raise self._aborted()

    def timed_out(self, name: str, limit: timedelta, callers: bool = False) -> RuntimeError:
        self.abort()
        milliseconds = limit // timedelta(milliseconds=1)
        return dist.DistBackendError(
            f"Watchdog caught collective operation timeout: WorkNCCL(OpType={name.upper()}, Timeout(ms)={milliseconds}) "
            f"ran for {milliseconds} milliseconds before timing out."
        )

    def closed_by(self, peer: int) -> RuntimeError:
        if self.closed and peer == self._channel.rank:
            return self._aborted()
        return dist.DistBackendError(
            "NCCL error: remote process exited or there was a network error\n"
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
        )

    def _aborted(self) -> RuntimeError:
        """PyTorch's error for a call on an aborted communicator (`torch/csrc/distributed/c10d/NCCLUtils.cpp`)."""
        return dist.DistBackendError(f"NCCL communicator was aborted on rank {self._rank}.")


class Nccl(SimulatedBackend):
    """Simulates ProcessGroupNCCL."""

    NAME = "nccl"
    CONNECTIONS = _NcclConnections
    # The second timeout is NCCL's own default; a group that also has a Gloo backend gets the first one.
    DEFAULT_TIMEOUTS = (timedelta(minutes=30), timedelta(minutes=10))

    @property
    def supports_coalescing(self) -> bool:
        return True

    def start_coalescing(self) -> None:
        self._batch = []

    def end_coalescing(self) -> Work:
        works, self._batch = self._batch or [], None
        return self._merged("batch", works)

    def _title(self, kind: str, peer: str) -> str:
        return f"{kind} {self._rank}{peer}"
