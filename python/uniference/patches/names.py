"""Owns the list of names of torch and of the standard library that are replaced, and of private names in use.

The module that replaces a name has the replacement. A name that several modules replace is listed once.
"""

from uniference.patches.registry import Name, Namespace, Operators, Part, Replaced, collect

# Time

SLEEP = Replaced("time:sleep", "let a rank sleep in virtual time, and to record how long a real one sleeps")
RANGE_ENTER = Replaced("torch.autograd.profiler:record_function.__enter__", "show named ranges in the trace", "self")
RANGE_EXIT = Replaced(
    "torch.autograd.profiler:record_function.__exit__",
    "show where named ranges end",
    "self, exc_type, exc_value, traceback",
)
RANGE_UNTIL = Replaced(
    "torch.autograd.profiler:record_function._call_end_callbacks_on_future",
    "show where named ranges end that a future ends",
    "self, fut",
)
NVTX_PUSH = Replaced("torch.cuda.nvtx:range_push", "show NVTX ranges in the trace", "msg")
NVTX_POP = Replaced("torch.cuda.nvtx:range_pop", "show where NVTX ranges end", "")
NVTX_START = Replaced("torch.cuda.nvtx:range_start", "show NVTX ranges that overlap in the trace", "msg")
NVTX_END = Replaced("torch.cuda.nvtx:range_end", "show where NVTX ranges that overlap end", "range_id")
FIND_AND_LOAD = Replaced("_frozen_importlib:_find_and_load", "charge no time for importing a library", "name, import_")
EXEC_MODULE = Replaced(
    "_frozen_importlib_external:_LoaderBasics.exec_module",
    "charge the time of the program's own modules",
    "self, module",
)
_CALL = Name(
    "_frozen_importlib:_call_with_frames_removed", "keep the loader out of a failed import's traceback", "f, ..."
)

# Memory

ZERO_GRAD = Replaced(
    "torch.optim.optimizer:Optimizer.zero_grad",
    "know gradients and states of an optimizer whose step is compiled",
    "self, set_to_none",
)

# CPU work in programs with simulated GPUs

EXTENSION = Replaced(
    "torch.utils.cpp_extension:_import_module_from_library",
    "charge time for functions of extensions on CPU tensors",
    "module_name, path, is_python_module",
)
EXTENSIONS = Namespace("uniference", "charge time for functions of extensions on CPU tensors")
SAVE = Replaced("torch:save", "warn that files take no time", "obj, f, ...")
LOAD = Replaced("torch:load", "warn that files take no time", "f, ...")

# Triton kernels, on simulated GPUs

TRITON_RUN = Replaced(
    "triton.runtime.jit:JITFunction.run",
    "capture kernels of Triton as operators",
    "self, grid, warmup",
)
INDUCTOR_LAUNCHER = Replaced(
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner._make_launcher",
    "capture kernels of torch's compiler as operators",
    "self, compile_result",
)
TRITON_ACCESSES = Name(
    "torch._higher_order_ops.triton_kernel_wrap:identify_accessed_tensors",
    "know what kernels of Triton write to",
    "kernel, kwargs, tma_descriptor_metadata",
)
TRITON_ACCESS_OPS = Name(
    "torch._higher_order_ops.triton_kernel_wrap:_KERNEL_ACCESS_OPS", "look past inline assembly in kernels of Triton"
)
BLOCK_MASK = Replaced(
    "torch.nn.attention.flex_attention:create_block_mask",
    "know which blocks FlexAttention passes over, though its masks are large",
    "mask_mod, ...",
)
COMPILED_KERNELS = Namespace("inductor", "capture kernels of torch's compiler as operators")
OTHER_KERNELS = Namespace("triton", "capture kernels of Triton as operators")
_KERNELS = (
    *(
        Name(f"torch._inductor.runtime.triton_heuristics:CachingAutotuner.{name}", "know how a kernel is launched")
        for name in ("_ensure_kernel_loaded", "_interpret_args_grid")
    ),
    *(
        Name(f"torch._C:{name}", "call an operator as torch's own code does")
        for name in ("DisableTorchFunction", "_AutoDispatchBelowAutograd", "_DisableTorchDispatch")
    ),
)
_INTERPRETER = tuple(
    Name(f"triton.runtime.interpreter:{name}", "compute what kernels of Triton compute")
    for name in (
        "ASTTransformer",
        "ReduceOps",
        "TensorHandle",
        "_LangPatchScope",
        "_implicit_cvt",
        "_patch_lang",
        "interpreter_builder",
    )
)

# Torch's compiler

COMPILES = Replaced(
    "torch._dynamo.callback:CompilationCallbackHandler.install_callbacks",
    "know what is run to compile the program",
    "self, trigger, compile_id",
)
GPU_BENCHMARK = Replaced(
    "torch._inductor.runtime.benchmarking:maybe_gpu_benchmark_lock", "measure kernels without values", ""
)
INDUCTOR_BENCH = Replaced(
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner.bench",
    "choose between configurations of a kernel that take equally long",
    "self, launcher, with_profiler",
)
TRITON_BENCH = Replaced("triton.runtime.autotuner:Autotuner._bench", "measure kernels without values", "self, config")

# The terminal

INPUT = Replaced("builtins:input", "let a rank's clock stand while its user types, or to say how to get a terminal")
INTERACTION = Replaced("pdb:Pdb.interaction", "let a rank's clock stand while its user debugs")
SET_TRACE = Replaced("pdb:set_trace", "say how a rank gets a terminal")
BREAKPOINT = Replaced("sys:breakpointhook", "say how a rank gets a terminal")
GET_STACK = Replaced("bdb:Bdb.get_stack", "show a stack that begins with the program's script", "self, f, t")
STOP_HERE = Replaced("bdb:Bdb.stop_here", "not step into what has called the program's script", "self, frame")

# Start and end of programs

INIT_PROCESS_GROUP = tuple(
    Replaced(f"{module}:init_process_group", "keep processes that a rank starts from communicating")
    for module in ("torch.distributed", "torch.distributed.distributed_c10d")
)
START_PROCESSES = tuple(
    Replaced(
        f"{module}:start_processes",
        "let the ranks of a run be the processes that a program starts",
        "fn, args, nprocs, join, daemon, start_method",
    )
    for module in ("torch.multiprocessing.spawn", "torch.multiprocessing")
)
LAUNCH_AGENT = Replaced(
    "torch.distributed.launcher.api:launch_agent",
    "let the ranks of a run be the workers that torchrun starts",
    "config, entrypoint, args, ...",
)
INIT_RPC = Replaced("torch.distributed.rpc:init_rpc", "refuse what would talk over real connections")
_ENDING = (
    Name("threading:_shutdown", "wait for a program's threads", ""),
    Name("atexit:_run_exitfuncs", "run a program's exit functions while the rank is still there"),
)

# The stores

STORES = tuple(
    Replaced(f"{module}:{store}", "have every store show the engine's keys")
    for store, modules in {
        "TCPStore": (
            "torch.distributed",
            "torch.distributed.rendezvous",
            "torch._C._distributed_c10d",
        ),
        "FileStore": (
            "torch.distributed",
            "torch.distributed.rendezvous",
            "torch._C._distributed_c10d",
        ),
        "PrefixStore": (
            "torch.distributed",
            "torch.distributed.distributed_c10d",
            "torch._C._distributed_c10d",
        ),
    }.items()
    for module in modules
)

# Process groups

NEW_GROUP = Replaced(
    "torch.distributed.distributed_c10d:_new_process_group_helper",
    "know a group's members before its communicator is made",
    "group_size, group_rank, global_ranks_in_group, backend, store, group_name, ...",
)
CREATE_WRAPPER = Replaced(
    "torch.distributed.distributed_c10d:_create_process_group_wrapper",
    "keep the debug level DETAIL from comparing calls over real Gloo",
    "wrapped_pg, ...",
)
DDP_LOG = Replaced(
    "torch.nn.parallel:DistributedDataParallel._get_ddp_logging_data", "name the backend in DDP's log", "self"
)
SPLIT_GROUP = Replaced(
    "torch.distributed:ProcessGroup.split_group", "leave out of a split who is in none of its parts", "self, ranks, ..."
)
_GROUP_BACKEND = Name(
    "torch.distributed:ProcessGroup._get_backend", "tell torch's own NCCL of a split that it is not in"
)
REGISTER_BACKEND = Replaced(
    "torch.distributed:ProcessGroup._register_backend",
    "carry out plain collectives in C++",
    "self, device, backend_type, backend",
)
WORK_METHODS = {
    name: Replaced(f"torch._C._distributed_c10d:Work.{name}", "ask the Work behind torch's holder of it", "self")
    for name in (
        "is_completed",
        "is_success",
        "exception",
        "result",
        "synchronize",
        "source_rank",
        "_source_rank",
    )
}
WORK_WAIT = Replaced(
    "torch._C._distributed_c10d:Work.wait", "record how long a thread waits", "self, timeout", Part.REAL
)
FUTURE_WAIT = Replaced("torch._C:Future.wait", "advance virtual time where a program waits for a future", "self")
FUTURE_DONE = Replaced("torch._C:Future.done", "ask the engine where a program asks a future", "self")
POST_BACKWARD_FUTURES = Replaced(
    "torch._C._distributed_c10d:Reducer._install_post_backward_futures",
    "finish what DDP waits for at the end of a backward pass",
    "self, arg0",
)
_PROCESS_GROUPS = (
    Name(
        "torch.distributed.distributed_c10d:Backend.register_backend",
        "make a program's process groups",
        "cls, name, func, extended_api, devices, _backend_type",
    ),
    *(
        Name(f"torch._C._distributed_c10d:{name}", "be called by torch's process groups")
        for name in (
            "AllToAllOptions",
            "AllgatherOptions",
            "AllreduceCoalescedOptions",
            "AllreduceOptions",
            "Backend",
            "Backend.Options",
            "Backend.Options._timeout",
            "BarrierOptions",
            "BroadcastOptions",
            "ErrorType.SUCCESS",
            "GatherOptions",
            "ReduceOptions",
            "ReduceScatterOptions",
            "Reducer",
            "ScatterOptions",
            "Store",
            "Work",
            "Work.get_future",
        )
    ),
    Name("torch._C:_current_autograd_node", "know whether a backward pass is in a node"),
    Name("torch.autograd:Variable._execution_engine.queue_callback", "finish futures before a backward pass ends"),
    Name("torch:Tensor._nnz", "reduce sparse tensors", None),
)
_PROFILERS = tuple(
    Name(f"torch._C._autograd:{name}", "show communication to torch's profilers")
    for name in ("_profiler_enabled", "_record_function_with_args_enter", "_record_function_with_args_exit")
)

# Tensors without data

_WITHOUT_DATA = "refuse communication of tensors without data, unless torch itself asks for shapes"
C10D = Operators(
    "c10d",
    "_allgather_base_ _reduce_scatter_base_ allgather_ allreduce_ alltoall_ alltoall_base_ barrier broadcast_ gather_ "
    "monitored_barrier_ recv_ recv_any_source_ reduce_ reduce_scatter_ scatter_ send "
    "allreduce_coalesced_ allgather_coalesced_ allgather_into_tensor_coalesced_ reduce_scatter_tensor_coalesced_",
    _WITHOUT_DATA,
)
# Torch's kernels for functional collectives on tensors without data, by operator.
META_KERNELS = {
    operator: Name(f"torch.distributed._functional_collectives:{function}", "tell torch of a collective's shapes")
    for operator, function in {
        "all_reduce": "_all_reduce_meta",
        "all_reduce_": "_all_reduce__meta",
        "all_reduce_coalesced": "_all_reduce_coalesced_meta",
        "all_reduce_coalesced_": "_all_reduce_coalesced__meta",
        "isend": "_isend_meta",
        "irecv": "_irecv_meta",
        "batch_p2p_ops": "_batch_p2p_ops_meta",
        "all_gather_into_tensor_out": "_all_gather_into_tensor_out_native_meta",
        "all_gather_into_tensor": "_all_gather_into_tensor_native_meta",
        "all_gather_into_tensor_coalesced": "_all_gather_into_tensor_coalesced_native_meta",
        "reduce_scatter_tensor": "_reduce_scatter_tensor_native_meta",
        "reduce_scatter_tensor_out": "_reduce_scatter_tensor_out_native_meta",
        "reduce_scatter_tensor_coalesced": "_reduce_scatter_tensor_coalesced_native_meta",
        "all_to_all_single": "_all_to_all_single_meta",
        "broadcast": "_broadcast_meta",
        "broadcast_": "_broadcast__meta",
    }.items()
}
C10D_FUNCTIONAL = Operators("_c10d_functional", " ".join(META_KERNELS), _WITHOUT_DATA)
C10D_AUTOGRAD = Operators(
    "_c10d_functional_autograd", "all_gather_into_tensor reduce_scatter_tensor all_to_all_single", _WITHOUT_DATA
)
_PLANNING = (
    Name("torch.distributed._meta_registrations:_META_FUNCTIONS", "tell torch of a collective's shapes"),
    Name("torch._guards:TracingContext.try_get", "know whether torch is compiling"),
    Name("torch._subclasses.fake_tensor:FakeTensor", "operators on tensors without data take no time"),
    Name("torch.utils._pytree:tree_leaves", "look for tensors in the arguments of operators"),
    Name("torch._subclasses.fake_tensor:UnsupportedOperatorException", "answer as torch does where it has no kernel"),
    Name("torch.fx.experimental.proxy_tensor:get_proxy_mode", "know whether torch is tracing"),
)

_OPERATORS = Name("torch._C:_dispatch_has_kernel", "know which operators there are")

# GPUs

OPEN_LIBRARY = Replaced(
    "ctypes:CDLL.__init__", "open simulated libraries where a program names files of NVIDIA's", "self, name, ..."
)
LAZY_INIT = Replaced("torch.cuda:_lazy_init", "say what to do where a program uses CUDA without a GPU", "")
_IN_BAD_FORK = Name("torch.cuda:_is_in_bad_fork", "know whether ranks that are forked can use CUDA", "")
CLOCKS = tuple(
    Replaced(f"time:{name}", "wait for a real GPU before a clock is read")
    for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
)

# Recorded ranks, on a real cluster

REGISTER_GROUP = Replaced(
    "torch.distributed.distributed_c10d:_register_pg_in_world", "see every process group", "pg, ...", Part.REAL
)
BLOCKING = tuple(
    Replaced(
        f"torch.distributed.distributed_c10d:{name}", "record how long a thread waits for a store", None, Part.REAL
    )
    for name in ("_new_process_group_helper", "_store_based_barrier", "Store.get", "Store.wait")
)
END_COALESCING = Replaced(
    "torch.distributed.distributed_c10d:ProcessGroup._end_coalescing",
    "see which operations complete together",
    "self, device_type",
    Part.REAL,
)
WAIT_TENSOR = Operators("_c10d_functional", "wait_tensor", "record how long a thread waits for a tensor", Part.REAL)
_RECORDING = (
    Name("torch.distributed.distributed_c10d:ProcessGroup.register_pre_hook", "see operations begin", None, Part.REAL),
    Name("torch.distributed.distributed_c10d:ProcessGroup.register_post_hook", "see operations begin", None, Part.REAL),
    Name("torch.distributed.distributed_c10d:_get_default_store", "agree on an instant", None, Part.REAL),
    Name("torch:UntypedStorage._cdata", "know a tensor's memory again", None, Part.REAL),
    Name("torch._C._distributed_c10d:PrefixStore", "let the ranks meet", None, Part.REAL),
    Name("torch._C._distributed_c10d:TCPStore", "let the ranks meet", None, Part.REAL),
)

# Operators

_CAPTURE = (
    Name("torch._ops:_higher_order_ops", "let operators that take functions pass by the capture"),
    Name(
        "torch._ops:_HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS",
        "the same of those that are still to be defined",
    ),
    Name("torch._ops:HigherOrderOperator.fallthrough", "the same", "self, dispatch_key"),
    Name("torch._C:_parse_dispatch_key", "name the key that the capture stands on"),
    Name("torch:ops.aten.mm.default._schema", "know the arguments of a custom operator", None, Part.REAL),
)

ALL = collect(globals())
