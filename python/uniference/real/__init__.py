"""Runs the user's program on a real cluster, with real Gloo or NCCL, and records what it does as a simulated run is recorded.

`python -m uniference.real SCRIPT` is one rank, started by torchrun or by the testbed. `meeting` lets the ranks start at one instant,
`clocks` says how far their clocks are apart, `hooks` watches torch, `recording` keeps what it saw; reading the files is the launcher's
business. `probe` is a program that measures a network.
"""
