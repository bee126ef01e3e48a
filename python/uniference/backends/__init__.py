"""The process groups of a simulated rank.

`groups` registers the backends with torch and creates groups; `base` turns a call into an operation of the engine, and
`work` is the call's return value. Subclasses of `base` implement the behaviour of one library: `nccl`; `gloo`, with
`monitored_barrier` and `sparse`. `connections` is the common interface for failures. `reduction` combines elements, in
the memory that `arena` maps; `profiling` has the events that torch's profilers see.
"""
