"""Runs the user's program on a real cluster, with real Gloo or NCCL, and records what it does as a simulated run is recorded.

`python -m uniference.real SCRIPT` is one rank, started by torchrun or by the testbed. `meeting` starts all ranks at the
same instant, `clocks` measures the offsets of the hosts' clocks, `hooks` observes torch, `recording` stores the
observations; the launcher reads the files. `probe` is a program that measures a network.
"""
