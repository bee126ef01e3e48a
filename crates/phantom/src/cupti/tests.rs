//! Tests of the activity records of a profiler that calls CUPTI as PyTorch's does.

use super::*;
use crate::attach::tests::{LAST_NUMBER, TIMES, attach};
use crate::launches::Moved;
use crate::memory;
use crate::streams::{self, Handle, Mode};

const SIZE: usize = 1024;

thread_local! {
    /// Records of each completed buffer.
    static FILLED: RefCell<Vec<Vec<Record>>> = const { RefCell::new(Vec::new()) };
}

extern "C" fn request(buffer: *mut *mut u8, size: *mut usize, most: *mut usize) {
    // SAFETY: `Buffer::ask` passes pointers to its own variables.
    unsafe {
        *buffer = Box::leak(vec![0_u64; SIZE / 8].into_boxed_slice()).as_mut_ptr().cast();
        (*size, *most) = (SIZE, 0);
    }
}

extern "C" fn complete(_: *mut c_void, _: u32, buffer: *mut u8, size: usize, filled: usize) {
    assert_eq!(size, SIZE);
    let (mut records, mut next) = (Vec::new(), 0);
    while cuptiActivityGetNextRecord(buffer as usize, filled, Some(&mut next)) == 0 {
        // SAFETY: the buffer contains records of these kinds in a row.
        records.push(unsafe {
            match *(next as *const u32) {
                kind::RUNTIME => Record::Call(*(next as *const Call)),
                kind::EXTERNAL_CORRELATION => Record::External(*(next as *const External)),
                kind::CONCURRENT_KERNEL => Record::Kernel(*(next as *const Kernel)),
                kind::MEMCPY => Record::Copy(*(next as *const Copy)),
                kind::MEMSET => Record::Set(*(next as *const Set)),
                kind::SYNCHRONIZATION => Record::Synchronization(*(next as *const Synchronization)),
                other => panic!("a record of kind {other}"),
            }
        });
    }
    FILLED.with_borrow_mut(|all| all.push(records));
}

/// A clock that counts its readings.
extern "C" fn clock() -> u64 {
    static READINGS: AtomicU64 = AtomicU64::new(1);
    READINGS.fetch_add(1, Relaxed)
}

fn flushed() -> Vec<Record> {
    assert_eq!(cuptiActivityFlushAll(1), 0);
    FILLED.take().concat()
}

fn ends(launch: u64, node: u64, began: u64, ended: u64) {
    TIMES.with_borrow_mut(|times| times.push(Times { launch, node, began, ended }));
}

fn kernel_launch(stream: Handle) -> u64 {
    LAST_NUMBER.set(0);
    streams::launch(stream, "add", 0);
    LAST_NUMBER.get()
}

/// Tests the whole profiler, because a process has only one.
#[test]
fn a_profiler_is_told_of_calls_at_once_and_of_work_when_it_has_ended() {
    let _one = streams::tests::begin();
    attach();
    let stream = streams::create(streams::NON_BLOCKING, 0).unwrap();
    let own = streams::describe(stream).unwrap().3;
    assert_eq!(kernel_launch(stream), 0, "nobody profiles");
    assert_eq!(cuptiActivityEnable(kind::CONCURRENT_KERNEL), 0);
    assert_eq!(kernel_launch(stream), 0, "nobody takes records");

    assert_eq!(cuptiActivityRegisterTimestampCallback(Some(clock)), 0);
    assert_eq!(cuptiActivityRegisterCallbacks(Some(request), Some(complete)), 0);
    for kind in [kind::RUNTIME, kind::EXTERNAL_CORRELATION, kind::SYNCHRONIZATION, kind::MEMSET] {
        assert_eq!(cuptiActivityEnable(kind), 0);
    }
    cuptiActivityPushExternalCorrelationId(3, 41);
    cuptiActivityPushExternalCorrelationId(3, 42);
    let launch = kernel_launch(stream);
    assert!(launch > 0);
    let mut last = std::mem::MaybeUninit::new(0);
    assert_eq!(cuptiActivityPopExternalCorrelationId(3, Some(&mut last)), 0);
    // SAFETY: `last` was created with a value.
    assert_eq!(unsafe { last.assume_init() }, 42);

    // The kernel has not ended.
    let records = flushed();
    let [Record::External(external), Record::Call(made)] = records[..] else { panic!("{records:?}") };
    let (id, correlation, began, ended) = (external.id, external.correlation, made.began, made.ended);
    assert_eq!((id, correlation), (42, made.correlation));
    assert!(began < ended);
    let name = Domain::Runtime.name(made.function).unwrap();
    assert_eq!(name, c"cudaLaunchKernel");

    ends(launch, 0, 1_000, 1_300);
    let records = flushed();
    let [Record::Kernel(kernel)] = records[..] else { panic!("{records:?}") };
    let (began, ended, of, on) = (kernel.began, kernel.ended, kernel.correlation, kernel.stream);
    assert_eq!((began, ended), (PROFILER_DATES + 1_000, PROFILER_DATES + 1_300));
    assert_eq!((of, on), (correlation, own + FIRST_STREAM));
    // SAFETY: the name of a kernel ends with a zero, and is never freed.
    assert_eq!(unsafe { CStr::from_ptr(kernel.name) }, c"add");

    // A graph that was captured before profiling has records of its nodes for each launch; copies are not enabled.
    let at = memory::allocate(0, 4096).unwrap();
    streams::begin_capture(stream, None, Mode::Relaxed).unwrap();
    let node = kernel_launch(stream);
    streams::set(stream, at, &[7], 64).unwrap();
    let other = LAST_NUMBER.get();
    let mut byte = [0_u8];
    streams::copy(stream, Moved::line(byte.as_mut_ptr() as usize, at, 1)).unwrap();
    let graph = streams::instantiate(streams::end_capture(stream).unwrap()).unwrap();
    flushed();
    for _ in 0..2 {
        call(Domain::Runtime, "cudaGraphLaunch", || streams::launch_graph(graph, stream)).unwrap();
        let launch = LAST_NUMBER.get();
        ends(launch, node, 10, 20);
        ends(launch, other, 20, 30);
    }
    assert_eq!(byte, [7]);
    let records = flushed();
    let correlations = |kind: fn(&Record) -> Option<u32>| records.iter().filter_map(kind).collect::<Vec<u32>>();
    let calls = correlations(|record| if let Record::Call(call) = record { Some(call.correlation) } else { None });
    let kernels =
        correlations(|record| if let Record::Kernel(kernel) = record { Some(kernel.correlation) } else { None });
    let sets = correlations(|record| if let Record::Set(set) = record { Some(set.correlation) } else { None });
    assert_eq!((calls.len(), &kernels, &sets), (2, &calls, &calls), "{records:?}");

    // These records exceed a buffer: a call has 40 bytes and its external correlation 24, as one external correlation
    // remains.
    for _ in 0..20 {
        call(Domain::Runtime, "cudaStreamSynchronize", || streams::synchronize(stream)).unwrap();
    }
    assert_eq!(cuptiActivityFlushAll(0), 0);
    let buffers = FILLED.take();
    assert!(buffers.len() > 2);
    let waited =
        |record: &&Record| matches!(record, Record::Synchronization(waited) if { waited.stream } == own + FIRST_STREAM);
    assert_eq!(buffers.concat().iter().filter(waited).count(), 20);

    // Hidden calls, disabled kinds and finished recordings leave no records.
    let function = Domain::Runtime.number("cudaStreamSynchronize").unwrap();
    cuptiActivityEnableRuntimeApi(function, 0);
    cuptiActivityDisable(kind::SYNCHRONIZATION);
    cuptiActivityPopExternalCorrelationId(3, None);
    assert_eq!(cuptiActivityPopExternalCorrelationId(3, None), QUEUE_EMPTY);
    call(Domain::Runtime, "cudaStreamSynchronize", || streams::synchronize(stream)).unwrap();
    assert!(flushed().is_empty());
    assert_eq!(cuptiActivityEnable(45), NOT_SUPPORTED);
    assert_eq!(cuptiFinalize(), 0);
    assert_eq!(kernel_launch(stream), 0);
    memory::free(at).unwrap();
}
