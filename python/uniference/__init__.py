"""Runs PyTorch Distributed programs in virtual time on a simulated cluster.

`simulate` is the command `uniference run` for programs that want its figures; nothing here is needed inside a simulated program.
"""

from uniference.simulation import Operation, Rank, Run, SimulationError, simulate

__all__ = ["Operation", "Rank", "Run", "SimulationError", "simulate"]
