"""The process groups that a simulated rank communicates in.

`groups` tells torch of them and makes one when the program asks; `base` turns a call into an operation of the engine, and `work` is what
the call hands back. Classes over it have what one library does otherwise: `nccl`; `gloo`, with `monitored_barrier` and `sparse`;
`connections` says what they have in common where an operation fails. Elements are combined by `reduction`, in the memory that `arena`
shows; `profiling` has the events that torch's profilers see.
"""
