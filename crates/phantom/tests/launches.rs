//! Checks the launches of library calls as a C program makes them, with a link that records names.

#![allow(unsafe_code, missing_docs)]

use std::ffi::{c_char, c_int, c_longlong, c_void};
use std::mem::MaybeUninit;
use std::ptr::{addr_of_mut, null, null_mut};
use std::sync::{Mutex, Once, PoisonError};
use uniference_abi::VERSION;
use uniference_abi::gpus::{Communication, Device, Devices, Link};
use uniference_phantom as _;

type P = *const c_void;
type Handle = *mut c_void;

unsafe extern "C" {
    fn uniference_phantom_attach(
        devices: *const Devices,
        link: *const Link,
        communication: *const Communication,
    ) -> c_int;

    fn cublasCreate_v2(handle: *mut Handle) -> c_int;
    fn cublasDestroy_v2(handle: Handle) -> c_int;
    fn cublasSgemm_v2(
        h: Handle,
        ta: c_int,
        tb: c_int,
        m: c_int,
        n: c_int,
        k: c_int,
        alpha: P,
        a: P,
        lda: c_int,
        b: P,
        ldb: c_int,
        beta: P,
        c: P,
        ldc: c_int,
    ) -> c_int;
    fn cublasGemmEx(
        h: Handle,
        ta: c_int,
        tb: c_int,
        m: c_int,
        n: c_int,
        k: c_int,
        alpha: P,
        a: P,
        at: c_int,
        lda: c_int,
        b: P,
        bt: c_int,
        ldb: c_int,
        beta: P,
        c: P,
        ct: c_int,
        ldc: c_int,
        compute: c_int,
        algorithm: c_int,
    ) -> c_int;
    fn cublasGemmStridedBatchedEx(
        h: Handle,
        ta: c_int,
        tb: c_int,
        m: c_int,
        n: c_int,
        k: c_int,
        alpha: P,
        a: P,
        at: c_int,
        lda: c_int,
        sa: c_longlong,
        b: P,
        bt: c_int,
        ldb: c_int,
        sb: c_longlong,
        beta: P,
        c: P,
        ct: c_int,
        ldc: c_int,
        sc: c_longlong,
        batch: c_int,
        compute: c_int,
        algorithm: c_int,
    ) -> c_int;
    fn cublasSrotg_v2(h: Handle, a: P, b: P, c: P, s: P) -> c_int;

    fn cublasLtMatmulDescCreate(description: *mut Handle, compute: c_int, scale: c_int) -> c_int;
    fn cublasLtMatmulDescSetAttribute(description: Handle, attribute: c_int, value: P, size: usize) -> c_int;
    fn cublasLtMatrixLayoutCreate(layout: *mut Handle, kind: c_int, rows: u64, columns: u64, leading: i64) -> c_int;
    fn cublasLtMatmul(
        h: P,
        description: Handle,
        alpha: P,
        a: P,
        al: Handle,
        b: P,
        bl: Handle,
        beta: P,
        c: P,
        cl: Handle,
        d: P,
        dl: Handle,
        algorithm: P,
        workspace: P,
        size: usize,
        stream: Handle,
    ) -> c_int;

    fn cudnnCreate(handle: *mut Handle) -> c_int;
    fn cudnnBackendCreateDescriptor(kind: c_int, place: *mut Handle) -> c_int;
    fn cudnnBackendDestroyDescriptor(it: Handle) -> c_int;
    fn cudnnBackendSetAttribute(it: Handle, attribute: c_int, kind: c_int, count: i64, values: P) -> c_int;
    fn cudnnBackendGetAttribute(
        it: Handle,
        attribute: c_int,
        kind: c_int,
        requested: i64,
        count: *mut i64,
        values: Handle,
    ) -> c_int;
    fn cudnnBackendFinalize(it: Handle) -> c_int;
    fn cudnnBackendExecute(handle: Handle, plan: Handle, pack: Handle) -> c_int;

    fn cusolverDnCreate(handle: *mut Handle) -> c_int;
    fn cusolverDnSgetrf_bufferSize(h: Handle, m: c_int, n: c_int, a: P, lda: c_int, size: *mut c_int) -> c_int;
    fn cusolverDnSgetrf(
        h: Handle,
        m: c_int,
        n: c_int,
        a: P,
        lda: c_int,
        work: P,
        pivots: *mut c_int,
        info: *mut c_int,
    ) -> c_int;

    fn cufftCreate(plan: *mut c_int) -> c_int;
    fn cufftDestroy(plan: c_int) -> c_int;
    fn cufftXtMakePlanMany(
        plan: c_int,
        rank: c_int,
        sizes: *const c_longlong,
        ie: P,
        is: c_longlong,
        id: c_longlong,
        it: c_int,
        oe: P,
        os: c_longlong,
        od: c_longlong,
        ot: c_int,
        batch: c_longlong,
        work: *mut usize,
        kind: c_int,
    ) -> c_int;
    fn cufftXtExec(plan: c_int, input: P, output: P, direction: c_int) -> c_int;

    fn cusparseCreate(handle: *mut Handle) -> c_int;
    fn cusparseCreateCsr(
        place: *mut Handle,
        rows: i64,
        columns: i64,
        count: i64,
        row: P,
        column: P,
        values: P,
        offsets: c_int,
        indices: c_int,
        base: c_int,
        kind: c_int,
    ) -> c_int;
    fn cusparseCreateDnMat(
        place: *mut Handle,
        rows: i64,
        columns: i64,
        leading: i64,
        values: P,
        kind: c_int,
        order: c_int,
    ) -> c_int;
    fn cusparseSpMM(
        h: Handle,
        ta: c_int,
        tb: c_int,
        alpha: P,
        a: Handle,
        b: Handle,
        beta: P,
        c: Handle,
        compute: c_int,
        algorithm: c_int,
        buffer: P,
    ) -> c_int;
}

static NAMES: Mutex<Vec<String>> = Mutex::new(Vec::new());
static LAUNCHES: Mutex<Vec<(u32, u64)>> = Mutex::new(Vec::new());
static ATTACHED: Once = Once::new();
static ONE: Mutex<()> = Mutex::new(());

unsafe extern "C" fn kernel(name: *const u8, length: usize) -> u32 {
    // SAFETY: the library passes a name of `length` bytes.
    let name = String::from_utf8(unsafe { std::slice::from_raw_parts(name, length) }.to_vec()).unwrap();
    let mut names = NAMES.lock().unwrap();
    let index = names.iter().position(|known| *known == name).unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    });
    index as u32 + 1
}

extern "C" fn launch(kernel: u32, _stream: u32, _flags: u32, bytes: u64) {
    LAUNCHES.lock().unwrap().push((kernel, bytes));
}

extern "C" fn nothing() -> u64 {
    0
}

/// Attaches a device of capability 8.0, which has no FP8 arithmetic.
fn attach() {
    let mut link = MaybeUninit::<Link>::uninit();
    let words = link.as_mut_ptr().cast::<usize>();
    // SAFETY: all fields are numbers and arrays of numbers, for which zeros are valid.
    let mut device: Device = unsafe { MaybeUninit::zeroed().assume_init() };
    device.name[0] = b'A' as c_char;
    device.capability = [8, 0];
    device.multiprocessors = 108;
    device.memory = 80 << 30;
    let peers = [0];
    let devices = Devices { version: VERSION, count: 1, own: 0, devices: &device, peers: peers.as_ptr() };
    // SAFETY: a `Link` is a version and pointers to functions, each of the size of a word, which the loop initialises;
    // the library reads the two structures only during the call.
    let done = unsafe {
        // All functions except these two do nothing.
        for word in 0..size_of::<Link>() / size_of::<usize>() {
            words.add(word).write(nothing as *const () as usize);
        }
        addr_of_mut!((*link.as_mut_ptr()).version).write(VERSION);
        addr_of_mut!((*link.as_mut_ptr()).kernel).write(kernel);
        addr_of_mut!((*link.as_mut_ptr()).launch).write(launch);
        uniference_phantom_attach(&devices, link.as_ptr(), std::ptr::null())
    };
    assert_eq!(done, 0);
}

/// Launches during `act`: names, and bytes of the arguments.
fn launched(act: impl FnOnce()) -> Vec<(String, u64)> {
    ATTACHED.call_once(attach);
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    LAUNCHES.lock().unwrap().clear();
    act();
    let names = NAMES.lock().unwrap();
    LAUNCHES.lock().unwrap().iter().map(|&(kernel, bytes)| (names[kernel as usize - 1].clone(), bytes)).collect()
}

fn made(create: impl FnOnce(&mut Handle) -> c_int) -> Handle {
    let mut place = null_mut();
    assert_eq!(create(&mut place), 0);
    place
}

const F32: c_int = 0;
const BF16: c_int = 14;
const F8: c_int = 28;
const NONE: P = null();

/// Bytes: `m k + k n + m n` elements of 2 bytes, for each element of the batch.
#[test]
fn products_are_named_by_types_layout_and_sizes() {
    // SAFETY: handles are those that the library has created; other pointers are null, where the library does not use
    // them, or point to variables that outlive the calls.
    let seen = launched(|| unsafe {
        let handle = made(|place| cublasCreate_v2(place));
        let (m, n, k) = (4096, 1024, 512);
        let status = cublasGemmStridedBatchedEx(
            handle, 1, 0, m, n, k, NONE, NONE, BF16, 1, 0, NONE, BF16, 1, 0, NONE, NONE, BF16, 1, 0, 3, 68, 0,
        );
        assert_eq!(status, 0);
        // A GEMM without columns launches nothing.
        assert_eq!(cublasSgemm_v2(handle, 0, 2, 8, 0, 4, NONE, NONE, 8, NONE, 4, NONE, NONE, 8), 0);
        // Unknown type, null handle, missing function: CUBLAS_STATUS_NOT_SUPPORTED, _NOT_INITIALIZED, _NOT_SUPPORTED.
        assert_eq!(cublasGemmEx(handle, 0, 0, 8, 8, 8, NONE, NONE, 99, 8, NONE, 99, 8, NONE, NONE, 99, 8, 68, 0), 15);
        assert_eq!(cublasSgemm_v2(null_mut(), 0, 0, 8, 8, 4, NONE, NONE, 8, NONE, 4, NONE, NONE, 8), 1);
        assert_eq!(cublasSrotg_v2(handle, NONE, NONE, NONE, NONE), 15);
        assert_eq!(cublasDestroy_v2(handle), 0);
    });
    assert_eq!(
        seen,
        [("cublas gemm bf16 tn 4096x1024x512 batch 3".to_owned(), 3 * 2 * (4096 * 512 + 512 * 1024 + 4096 * 1024))]
    );
}

#[test]
fn products_with_descriptions_have_their_epilogue_and_need_arithmetic() {
    // SAFETY: handles are those that the library has created; other pointers are null, where the library does not use
    // them, or point to variables that outlive the calls.
    let seen = launched(|| unsafe {
        let description = made(|place| cublasLtMatmulDescCreate(place, 68, F32));
        let (transposed, bias_and_gelu): (c_int, c_int) = (1, 4 | 32);
        assert_eq!(cublasLtMatmulDescSetAttribute(description, 3, (&raw const transposed).cast(), 4), 0);
        assert_eq!(cublasLtMatmulDescSetAttribute(description, 7, (&raw const bias_and_gelu).cast(), 4), 0);
        let layout = |kind, rows, columns| made(|place| cublasLtMatrixLayoutCreate(place, kind, rows, columns, 1));
        let multiply = |kind| {
            let (a, b, d) = (layout(kind, 16, 64), layout(kind, 16, 32), layout(BF16, 64, 32));
            cublasLtMatmul(NONE, description, NONE, NONE, a, NONE, b, NONE, NONE, d, NONE, d, NONE, NONE, 0, null_mut())
        };
        assert_eq!(multiply(BF16), 0);
        assert_eq!(multiply(F8), 15);
    });
    assert_eq!(seen, [("cublasLt gemm bf16 tn 64x32x16 bias gelu".to_owned(), 2 * (64 * 16 + 16 * 32 + 64 * 32))]);
}

/// A graph of one convolution: its heuristic returns one engine, whose plan launches the convolution.
#[test]
fn graphs_are_named_by_their_operations() {
    // SAFETY: handles are those that the library has created; other pointers are null, where the library does not use
    // them, or point to variables that outlive the calls.
    let seen = launched(|| unsafe {
        let descriptor = |kind| made(|place| cudnnBackendCreateDescriptor(kind, place));
        let set = |it, attribute, kind, count, values: P| {
            assert_eq!(cudnnBackendSetAttribute(it, attribute, kind, count, values), 0)
        };
        let give = |it, attribute, child: Handle| set(it, attribute, 15, 1, (&raw const child).cast());
        let operation = descriptor(10);
        for (attribute, id, sizes) in
            [(704, 1_i64, [8_i64, 3, 32, 32]), (703, 2, [16, 3, 3, 3]), (705, 3, [8, 16, 32, 32])]
        {
            let tensor = descriptor(17);
            let bf16: c_int = 9;
            set(tensor, 901, 1, 1, (&raw const bf16).cast());
            set(tensor, 902, 3, 4, sizes.as_ptr().cast());
            set(tensor, 906, 3, 1, (&raw const id).cast());
            give(operation, attribute, tensor);
            assert_eq!(cudnnBackendDestroyDescriptor(tensor), 0);
        }
        let [graph, heuristic, plan, pack] = [15, 4, 5, 16].map(descriptor);
        give(graph, 801, operation);
        give(heuristic, 201, graph);
        let (mut count, mut configuration) = (0, descriptor(3));
        assert_eq!(cudnnBackendGetAttribute(heuristic, 202, 15, 1, &mut count, (&raw mut configuration).cast()), 0);
        assert_eq!(count, 1);
        give(plan, 401, configuration);
        assert_eq!(cudnnBackendFinalize(plan), 0);
        let handle = made(|place| cudnnCreate(place));
        assert_eq!(cudnnBackendExecute(handle, plan, pack), 0);
        // CUDNN_STATUS_NOT_SUPPORTED for an unknown attribute: a plan as JSON.
        assert_eq!(cudnnBackendGetAttribute(plan, 405, 24, 0, &mut count, null_mut()), 3000);
    });
    let bytes = 2 * (8 * 3 * 32 * 32 + 16 * 3 * 3 * 3 + 8 * 16 * 32 * 32);
    assert_eq!(seen, [("cudnn convolution forward bf16 8x3x32x32 16x3x3x3".to_owned(), bytes)]);
}

/// Results of a factorisation in device memory: success, and no exchanged rows.
#[test]
fn factorisations_say_that_they_went_well() {
    let (mut pivots, mut info, mut size) = ([7; 3], 7, 0);
    // SAFETY: handles are those that the library has created; other pointers are null, where the library does not use
    // them, or point to variables that outlive the calls.
    let seen = launched(|| unsafe {
        let handle = made(|place| cusolverDnCreate(place));
        assert_eq!(cusolverDnSgetrf_bufferSize(handle, 5, 3, NONE, 5, &mut size), 0);
        assert_eq!(cusolverDnSgetrf(handle, 5, 3, NONE, 5, NONE, pivots.as_mut_ptr(), &mut info), 0);
    });
    assert_eq!((pivots, info, size), ([1, 2, 3], 0, 64 * 3));
    assert_eq!(seen, [("cusolver getrf f32 5x3".to_owned(), 4 * 15)]);
}

#[test]
fn transforms_and_sparse_products_are_named_by_their_sizes() {
    // SAFETY: handles are those that the library has created; other pointers are null, where the library does not use
    // them, or point to variables that outlive the calls.
    let seen = launched(|| unsafe {
        let (mut plan, mut work) = (0, 0);
        assert_eq!(cufftCreate(&mut plan), 0);
        // CUFFT_INVALID_PLAN: the plan is not made yet.
        assert_eq!(cufftXtExec(plan, NONE, NONE, -1), 1);
        assert_eq!(cufftXtMakePlanMany(plan, 2, [32, 16].as_ptr(), NONE, 1, 0, F32, NONE, 1, 0, 4, 3, &mut work, 4), 0);
        assert_eq!(work, 8 * 32 * 16 * 3);
        assert_eq!(cufftXtExec(plan, NONE, NONE, -1), 0);
        assert_eq!(cufftDestroy(plan), 0);
        assert_eq!(cufftXtExec(plan, NONE, NONE, -1), 1);

        let handle = made(|place| cusparseCreate(place));
        let a = made(|place| cusparseCreateCsr(place, 9, 5, 7, NONE, NONE, NONE, 2, 2, 0, F32));
        let [b, c] = [5, 9].map(|rows| made(|place| cusparseCreateDnMat(place, rows, 4, rows, NONE, F32, 1)));
        assert_eq!(cusparseSpMM(handle, 0, 0, NONE, a, b, NONE, c, 0, 0, NONE), 0);
    });
    let expected = [
        ("cufft f32->c64 32x16 batch 3", 12 * 32 * 16 * 3),
        ("cusparse spmm f32 9x5 of 7 by 5x4", 4 * (7 + 20 + 36) + 8 * 7),
    ];
    assert_eq!(seen, expected.map(|(name, bytes)| (name.to_owned(), bytes)));
}
