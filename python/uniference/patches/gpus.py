"""Owns the names that simulated GPUs need (`uniference.cuda`)."""

from uniference.patches.registry import Name, Operators, Part, Replaced, collect

_ANSWER = "answer for a simulated GPU"
_PLACE = "know on which simulated GPU a tensor is"


def _replaced(place: str, why: str, parameters: str | None = None) -> Replaced:
    return Replaced(place, why, parameters, Part.GPU)


_CUDA_NAMES = (
    "device_count current_device set_device get_device_name get_device_capability get_device_properties current_stream set_stream "
    "synchronize mem_get_info manual_seed manual_seed_all get_rng_state get_rng_state_all set_rng_state set_rng_state_all initial_seed "
    "memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached max_memory_cached init _lazy_init "
    "empty_cache ipc_collect reset_peak_memory_stats reset_accumulated_memory_stats reset_max_memory_allocated reset_max_memory_cached "
    "set_per_process_memory_fraction set_sync_debug_mode graph make_graphed_callables graph_pool_handle caching_allocator_alloc "
    "caching_allocator_delete memory_snapshot memory_summary current_blas_handle current_solver_handle get_stream_from_external _sleep "
    "utilization temperature power_draw clock_rate memory_usage list_gpu_processes use_mem_pool CUDAGraph MemPool ExternalStream "
    "CUDAPluggableAllocator GreenContext _initialized _exchange_device _maybe_exchange_device _is_in_bad_fork is_available "
    "is_initialized is_bf16_supported is_current_stream_capturing can_device_access_peer default_stream seed seed_all memory_stats "
    "Stream Event StreamContext stream cudart default_generators"
)
CUDA = {name: _replaced(f"torch.cuda:{name}", _ANSWER) for name in _CUDA_NAMES.split()}
_ACCELERATOR_NAMES = (
    "memory_allocated max_memory_allocated memory_reserved max_memory_reserved is_available device_count current_accelerator "
    "current_device_index current_device_idx set_device_index set_device_idx get_device_capability current_stream set_stream synchronize "
    "device_index empty_cache reset_peak_memory_stats reset_accumulated_memory_stats memory_stats get_memory_info"
)
ACCELERATOR = {name: _replaced(f"torch.accelerator:{name}", _ANSWER) for name in _ACCELERATOR_NAMES.split()}

MEMORY_COUNTS = {
    name: _replaced(f"torch.cuda.memory:{name}", _ANSWER)
    for name in (
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
        "memory_cached",
        "max_memory_cached",
    )
}
NVTX = {
    name: _replaced(f"torch.cuda.nvtx:{name}", "show NVTX ranges in the trace")
    for name in ("range_push", "range_pop", "range", "mark")
}
RECORD_STREAM = _replaced("torch:Tensor.record_stream", _ANSWER)
CLASSES = {name: _replaced(f"torch:{name}", _ANSWER) for name in ("Generator", "Stream", "Event")}
AUTOCAST = _replaced(
    "torch.amp.autocast_mode:autocast.__init__", "cast as the CPU does", "self, device_type, dtype, ..."
)
AUTOCAST_STATE = tuple(
    _replaced(f"torch:{name}", "cast as the CPU does")
    for name in ("is_autocast_enabled", "set_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype")
)
NO_COMPILER = _replaced("torch._dynamo:config.disable", "run uncompiled what the compiler would ask a GPU for")
BACKEND_CONFIG = _replaced(
    "torch.distributed.distributed_c10d:BackendConfig.__init__",
    "let a group for GPUs carry tensors on the CPU",
    "self, backend",
)
HASH_TENSORS = _replaced("torch._C._distributed_c10d:_hash_tensors", "not leave a hash to the GPU", "tensors")
HOST_TENSORS = tuple(
    _replaced(place, _PLACE)
    for place in ("torch:from_numpy", "torch:frombuffer", "torch:from_dlpack", "torch._utils:_rebuild_tensor")
)
DEVICE_CONTEXT = _replaced("torch.utils._device:DeviceContext", _PLACE)
BOOTSTRAP = _replaced(
    "threading:Thread._bootstrap_inner", "know in every thread on which simulated GPU a tensor is", "self"
)
BACKWARD = _replaced("torch.autograd:_engine_run_backward", _PLACE)
DTENSOR_DISPATCH = _replaced("torch.distributed.tensor._dispatch:OpDispatcher._dispatch_fast_path_python_tail", _PLACE)
FROM_LOCAL = _replaced("torch.distributed.tensor:DTensor.from_local", _PLACE)
LIBRARY_IMPL = _replaced("torch.library:Library.impl", _PLACE, "self, op_name, fn, dispatch_key, ...")
CLOCKS = tuple(
    _replaced(f"time:{name}", "wait for a real GPU before a clock is read")
    for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
)
ALLOCATIONS = Operators("aten", "empty.memory_format empty_strided", "allocate in this machine's memory", Part.GPU)
BATCH_NORM = Operators(
    "aten",
    "batch_norm_stats batch_norm_gather_stats_with_counts batch_norm_elemt batch_norm_backward_reduce batch_norm_backward_elemt",
    "normalise batches on the CPU",
    Part.GPU,
)
_RELIED_ON = tuple(
    Name(place, _PLACE, None, Part.GPU)
    for place in (
        "torch._C:DisableTorchFunction",
        "torch._C:Generator",
        "torch._C:_len_torch_function_stack",
        "torch.overrides:_get_current_function_mode_stack",
        "torch.utils._device:_device_constructors",
        "torch.utils._device:CURRENT_DEVICE",
        "torch.utils.checkpoint:_allowed_determinism_checks_to_fns",
        "torch:Tensor._values",
    )
)

NAMES = collect(globals())
