//! Owns the C library functions by which a thread lets other threads or processes continue. If compute is modelled, a
//! thread has run its operators in almost no real time, so their virtual time is charged first ([`Client::settles`]);
//! the call is then forwarded to the C library.
//!
//! Mutexes of C code are not included: memory allocators unlock mutexes in the middle of their work, and must not be
//! called again at that point.

use crate::{answered, interpreter, program, real, set_errno};
use libc::{c_int, c_long, c_void, iovec, msghdr, pthread_cond_t, sem_t, size_t, sockaddr, socklen_t, ssize_t};
use std::arch::naked_asm;
use uniference_client::Client;

/// The client, if the calling thread has run operators that must be charged before it may let another thread continue.
fn unsettled() -> Option<&'static Client> {
    program().filter(|client| client.must_settle())
}

/// Charges the operators of the calling thread before the thread lets another thread continue.
pub(crate) fn settle() {
    if let Some(client) = unsettled() {
        settle_with(client);
    }
}

/// Charges the operators of the calling thread like [`settle`], and releases the interpreter's lock meanwhile if the
/// thread holds it: other Python threads run while time passes.
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

/// `sem_post` of the C library, by which CPython releases its locks. The call is forwarded to `post` together with the
/// caller's address.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sem_post(semaphore: *mut sem_t) -> c_int {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("mov rsi, [rsp]", "jmp {post}", post = sym post);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("mov x1, x30", "b {post}", post = sym post);
}

/// Posts `semaphore` for the caller at address `from`. If the caller is the interpreter, the interpreter's lock is
/// released while time passes. The semaphore is posted before this thread reacquires the interpreter's lock, because
/// other threads may wait for the semaphore while they hold the interpreter's lock.
unsafe extern "C" fn post(semaphore: *mut sem_t, from: usize) -> c_int {
    // SAFETY: the caller of `sem_post` has passed a valid semaphore.
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

/// Charges the operators of the calling thread, unless the condition is part of the interpreter's lock. The operators
/// are charged whether or not a thread waits for the condition, because this depends on the machine's timing, and the
/// result must not.
fn settle_for(condition: *mut pthread_cond_t) {
    let is_lock = || interpreter::get().is_some_and(|interpreter| interpreter.contains(condition as usize));
    if let Some(client) = unsettled().filter(|_| !is_lock()) {
        settle_with(client);
    }
}

/// `pthread_cond_signal` of the C library, after the calling thread's operators are charged.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_signal(condition: *mut pthread_cond_t) -> c_int {
    settle_for(condition);
    // SAFETY: `pthread_cond_signal` requires that the condition is initialised.
    unsafe { real::pthread_cond_signal()(condition) }
}

/// `pthread_cond_broadcast` of the C library, after the calling thread's operators are charged.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_broadcast(condition: *mut pthread_cond_t) -> c_int {
    settle_for(condition);
    // SAFETY: `pthread_cond_broadcast` requires that the condition is initialised.
    unsafe { real::pthread_cond_broadcast()(condition) }
}

/// Charges the operators of the calling thread if the system call wakes threads that wait for a futex.
pub(crate) fn settle_for_call(number: c_long, operation: c_long) {
    use libc::{FUTEX_CMP_REQUEUE, FUTEX_REQUEUE, FUTEX_WAKE, FUTEX_WAKE_BITSET, FUTEX_WAKE_OP};
    let operation = operation as c_int & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
    if matches!(
        (number, operation),
        (libc::SYS_futex, FUTEX_WAKE | FUTEX_WAKE_BITSET | FUTEX_WAKE_OP | FUTEX_REQUEUE | FUTEX_CMP_REQUEUE)
    ) {
        settle();
    }
}

// Descriptors

/// Charges the operators of the calling thread before a write to the descriptor if another thread or process of the
/// rank may wait for the written data. Standard output and standard error are exempt. Writes to other ranks are not
/// delayed: a rank that waits for data from outside the simulation keeps time from passing until the data arrives.
fn settle_for_file(file: c_int) {
    let is_output = matches!(file, libc::STDOUT_FILENO | libc::STDERR_FILENO);
    if let Some(client) = unsettled().filter(|_| !is_output && may_be_awaited(file)) {
        settle_with(client);
    }
}

/// Whether a thread or process of this rank may read the other end of the descriptor: it is an unnamed pipe, a kernel
/// object without a file such as an `eventfd`, or a socket whose other end was created by a process of this rank.
fn may_be_awaited(file: c_int) -> bool {
    /// File system numbers from Linux's `magic.h`.
    const PIPES: i64 = 0x5049_5045;
    const ANONYMOUS: i64 = 0x0904_1934;
    const SOCKETS: i64 = 0x534F_434B;
    let before = crate::errno();
    let mut found = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the structure is zeroed, and `fstatfs` fills it on success; both states are valid.
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

/// Whether the other end of a Unix socket was created by a process of this rank. The processes of a rank have a process
/// group of their own.
fn is_of_rank(socket: c_int) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, the size of `peer`, and the length.
    let result = unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut length)
    };
    // SAFETY: `getpgid` accepts any number, and reads no memory of the process.
    result == 0 && peer.pid > 0 && unsafe { libc::getpgid(peer.pid) == libc::getpgid(0) }
}

macro_rules! settling {
    ($(fn $name:ident($file:ident: c_int $(, $argument:ident: $type:ty)*) -> $result:ty;)*) => {
        $(
            /// Function of the same name of the C library, after the calling thread's operators are charged.
            ///
            /// # Safety
            /// The contract is the C library's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($file: c_int $(, $argument: $type)*) -> $result {
                settle_for_file($file);
                // SAFETY: the function gets the arguments that its replacement got, under the same contract.
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

/// `exit` of the C library, after the calling thread's operators are charged.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn exit(status: c_int) -> ! {
    settle();
    // SAFETY: `exit` requires that its handlers may run now, as the contract of its replacement does.
    unsafe { real::exit()(status) }
}

/// `_exit` of the C library, after the calling thread's operators are charged.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _exit(status: c_int) -> ! {
    settle();
    // SAFETY: `_exit` accepts any number, and runs no code of the process.
    unsafe { real::_exit()(status) }
}
