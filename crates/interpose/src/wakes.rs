//! Owns the functions by which a thread lets other threads or processes go on: those must not go on before the compute that it has run is over. Where
//! compute is modelled, the thread has run it in next to no time, so it is charged first ([`Client::settles`]). Besides that they are the C library's.
//!
//! Mutexes of C code are not among them: memory allocators unlock such in the middle of their work, and cannot be called then.

use crate::{answered, interpreter, program, real, set_errno};
use libc::{
    c_int, c_long, c_void, iovec, msghdr, pthread_cond_t, pthread_mutex_t, sem_t, size_t, sockaddr, socklen_t, ssize_t,
};
use std::arch::naked_asm;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use uniference_client::Client;

/// The client, if the calling thread has run what must be charged before it does something that may let another one go on.
fn unsettled() -> Option<&'static Client> {
    program().filter(|client| client.must_settle())
}

/// Charges what the calling thread has run, before it lets another one go on.
pub(crate) fn settle() {
    if let Some(client) = unsettled() {
        settle_with(client);
    }
}

/// The same for a thread that holds the interpreter's lock and may release it: other threads of Python's run while time passes.
pub(crate) fn settle_without_lock() {
    if let Some(client) = unsettled() {
        without_lock(|| settle_with(client));
    }
}

fn without_lock<T>(work: impl FnOnce() -> T) -> T {
    match interpreter::get().filter(|interpreter| interpreter.has_lock()) {
        Some(interpreter) => interpreter.without_lock(work),
        None => work(),
    }
}

fn settle_with(client: &Client) {
    let before = crate::errno();
    answered(client.settles());
    set_errno(before);
}

// Semaphores

/// As in the C library. CPython's locks are released by it. It goes on to `post`, which is also told who calls.
///
/// # Safety
/// As in the C library.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sem_post(semaphore: *mut sem_t) -> c_int {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("mov rsi, [rsp]", "jmp {post}", post = sym post);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("mov x1, x30", "b {post}", post = sym post);
}

/// Posts for the caller at address `from`. Locks that threads take without releasing the interpreter's, as those of the interpreter itself, are free before
/// this thread takes that one again.
unsafe extern "C" fn post(semaphore: *mut sem_t, from: usize) -> c_int {
    // SAFETY: what the caller gave.
    let real = || unsafe { real::sem_post()(semaphore) };
    let Some(client) = unsettled() else { return real() };
    let settled = || {
        settle_with(client);
        real()
    };
    let is_pythons = interpreter::get().is_some_and(|interpreter| interpreter.contains(from));
    if is_pythons { without_lock(settled) } else { settled() }
}

// Condition variables

/// How many threads wait for condition variables, by a hash of their addresses.
static WAITERS: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];

fn waiters(condition: *mut pthread_cond_t) -> &'static AtomicU32 {
    // Most are members of larger objects, which are aligned to 16 bytes.
    &WAITERS[(condition as usize >> 4) % WAITERS.len()]
}

/// Waits for the condition with `wait`, meanwhile counted on. A thread that is ended in it stays counted.
pub(crate) fn counted(condition: *mut pthread_cond_t, wait: impl FnOnce() -> c_int) -> c_int {
    waiters(condition).fetch_add(1, SeqCst);
    let result = wait();
    waiters(condition).fetch_sub(1, SeqCst);
    result
}

/// Charges first if a thread waits for the condition, unless it is one of those of the interpreter's lock.
fn settle_for(condition: *mut pthread_cond_t) {
    let is_lock = || interpreter::get().is_some_and(|interpreter| interpreter.contains(condition as usize));
    if waiters(condition).load(SeqCst) > 0 && !is_lock() {
        settle();
    }
}

/// As in the C library.
///
/// # Safety
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_cond_wait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
) -> c_int {
    // SAFETY: what the caller gave.
    counted(condition, || unsafe { real::pthread_cond_wait()(condition, mutex) })
}

/// As in the C library.
///
/// # Safety
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_signal(condition: *mut pthread_cond_t) -> c_int {
    settle_for(condition);
    // SAFETY: what the caller gave.
    unsafe { real::pthread_cond_signal()(condition) }
}

/// As in the C library.
///
/// # Safety
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_broadcast(condition: *mut pthread_cond_t) -> c_int {
    settle_for(condition);
    // SAFETY: what the caller gave.
    unsafe { real::pthread_cond_broadcast()(condition) }
}

/// Charges first if the system call wakes threads that wait for a futex.
pub(crate) fn settle_for_call(number: c_long, operation: c_long) {
    let operation = operation as c_int & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
    let wakes = || {
        let all = [libc::FUTEX_WAKE, libc::FUTEX_WAKE_BITSET, libc::FUTEX_REQUEUE, libc::FUTEX_CMP_REQUEUE];
        all.contains(&operation) || operation == libc::FUTEX_WAKE_OP
    };
    if number == libc::SYS_futex && wakes() {
        settle();
    }
}

// Descriptors

/// Charges first if another thread or process of the rank may wait for what is written to the descriptor: not for the program's output. What another rank
/// waits for is not held back: until it is there, that rank keeps time from passing.
fn settle_for_file(file: c_int) {
    let is_output = matches!(file, libc::STDOUT_FILENO | libc::STDERR_FILENO);
    if let Some(client) = unsettled().filter(|_| !is_output && may_be_awaited(file)) {
        settle_with(client);
    }
}

/// Whether the descriptor is that of a pipe without a name, of something of the kernel's without a file, such as an `eventfd`, or of a socket whose other
/// end a process of this rank has made.
fn may_be_awaited(file: c_int) -> bool {
    /// Linux, magic.h.
    const PIPES: i64 = 0x5049_5045;
    const ANONYMOUS: i64 = 0x0904_1934;
    const SOCKETS: i64 = 0x534F_434B;
    let before = crate::errno();
    let mut found = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the structure is filled by the call, and valid without.
    let kind = unsafe {
        libc::fstatfs(file, found.as_mut_ptr());
        found.assume_init().f_type
    };
    let is_ours = match kind {
        PIPES | ANONYMOUS => true,
        SOCKETS => is_of_rank(file),
        _ => false,
    };
    set_errno(before);
    is_ours
}

/// Whether a process of this rank, which has a process group of its own, has made the other end of a Unix socket.
fn is_of_rank(socket: c_int) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as socklen_t;
    // SAFETY: the structure has this size.
    let result = unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut length)
    };
    // SAFETY: numbers.
    result == 0 && peer.pid > 0 && unsafe { libc::getpgid(peer.pid) == libc::getpgid(0) }
}

macro_rules! settling {
    ($(fn $name:ident($file:ident: c_int $(, $argument:ident: $type:ty)*) -> $result:ty;)*) => {
        $(
            /// As in the C library.
            ///
            /// # Safety
            /// As in the C library.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($file: c_int $(, $argument: $type)*) -> $result {
                settle_for_file($file);
                // SAFETY: what the caller gave.
                unsafe { real::$name()($file $(, $argument)*) }
            }
        )*
    };
}

settling! {
    fn write(file: c_int, buffer: *const c_void, bytes: size_t) -> ssize_t;
    fn writev(file: c_int, buffers: *const iovec, count: c_int) -> ssize_t;
    fn send(socket: c_int, buffer: *const c_void, bytes: size_t, flags: c_int) -> ssize_t;
    fn sendto(
        socket: c_int, buffer: *const c_void, bytes: size_t, flags: c_int, to: *const sockaddr, length: socklen_t
    ) -> ssize_t;
    fn sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn eventfd_write(file: c_int, value: libc::eventfd_t) -> c_int;
    fn shutdown(socket: c_int, how: c_int) -> c_int;
    fn close(file: c_int) -> c_int;
}

// Processes

/// As in the C library.
///
/// # Safety
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn exit(status: c_int) -> ! {
    settle();
    // SAFETY: what the caller gave.
    unsafe { real::exit()(status) }
}

/// As in the C library.
///
/// # Safety
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _exit(status: c_int) -> ! {
    settle();
    // SAFETY: what the caller gave.
    unsafe { real::_exit()(status) }
}
