"""Owns the process that ranks are forked from: it imports torch once, then makes a rank of a copy of itself on command.

What a rank then does is `rank`'s; when a rank is started or ended, and what its output means, is the driver's.

Started as `python -m uniference.zygote FD`, where FD is an inherited Unix stream socket to the driver. Both ways: one JSON
object a line. It ends, and every rank with it, when that socket closes or its parent dies.

From the driver, with three descriptors attached (SCM_RIGHTS) to the line: [control, stdout, stderr]. `control` is the rank's
socket to the engine, from which `_native.Channel.adopt` takes everything else:

    {"op": "fork", "rank": 0, "world_size": 2, "argv": ["train.py", "--lr", "0.1"], "module": false,
     "env": {"NAME": "value"}, "cwd": "/home/user",
     "local_rank": 0, "local_world_size": 1, "group_rank": 0, "group_world_size": 2}

`argv[0]` is the script, or with `module` the module's name. `env` is added to the zygote's own environment; what torchrun sets
is derived from the numbers and need not be in it. `cwd` and the numbers of the last line are optional: without them each rank
is alone on a host of its own.

To the driver:

    {"event": "ready", "torch": "2.15.0"}                           once, when ranks can be forked
    {"event": "error", "message": "...", "hint": "..."}             in place of ready; the zygote then ends
    {"event": "forked", "rank": 0, "pid": 4711}
    {"event": "exited", "rank": 0, "pid": 4711, "status": 0}        status: exit code, or minus the signal's number

A rank's exit code is 0, or 1 if its program failed (its traceback is then on its stderr).
"""
