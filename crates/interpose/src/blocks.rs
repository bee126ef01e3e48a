//! Owns the functions in which a thread may wait for another thread or process without a timeout: launches on simulated
//! GPUs are reported first, because the thread that ends the wait may query the driver about these launches. The calls
//! are then forwarded to the C library. Functions with `_chk` are called by programs that were compiled with checks.

use crate::{hand_over, real};
use libc::{
    FILE, MSG_DONTWAIT, WNOHANG, c_int, c_void, id_t, idtype_t, iovec, msghdr, pid_t, rusage, siginfo_t, size_t,
    sockaddr, socklen_t, ssize_t,
};

/// Defines C library functions that report launches first, except for non-blocking calls. A thread may be cancelled
/// inside these functions: glibc then unwinds its stack.
macro_rules! handing_over {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty $(, unless $at_once:expr)?;)*) => {
        $(
            /// Replaces the C library's function of the same name.
            ///
            /// # Safety
            /// The contract is the C library's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
                if !(false $(|| $at_once)?) {
                    hand_over();
                }
                // SAFETY: each function gets the arguments that its replacement got, under the same contract.
                unsafe { real::$name()($($argument),*) }
            }
        )*
    };
}

handing_over! {
    fn read(file: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t, unless never_waits(file);
    fn __read_chk(file: c_int, buffer: *mut c_void, bytes: size_t, size: size_t) -> ssize_t, unless never_waits(file);
    fn readv(file: c_int, buffers: *const iovec, count: c_int) -> ssize_t, unless never_waits(file);
    fn recv(socket: c_int, buffer: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t, unless is_at_once(flags) || never_waits(socket);
    fn __recv_chk(
        socket: c_int, buffer: *mut c_void, bytes: size_t, size: size_t, flags: c_int
    ) -> ssize_t, unless is_at_once(flags) || never_waits(socket);
    fn recvfrom(
        socket: c_int, buffer: *mut c_void, bytes: size_t, flags: c_int, from: *mut sockaddr, length: *mut socklen_t
    ) -> ssize_t, unless is_at_once(flags) || never_waits(socket);
    fn __recvfrom_chk(
        socket: c_int, buffer: *mut c_void, bytes: size_t, size: size_t, flags: c_int, from: *mut sockaddr, length: *mut socklen_t
    ) -> ssize_t, unless is_at_once(flags) || never_waits(socket);
    fn recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t, unless is_at_once(flags) || never_waits(socket);
    fn accept(socket: c_int, from: *mut sockaddr, length: *mut socklen_t) -> c_int, unless never_waits(socket);
    fn accept4(socket: c_int, from: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int, unless never_waits(socket);
    fn wait(status: *mut c_int) -> pid_t;
    fn wait3(status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t, unless options & WNOHANG != 0;
    fn waitpid(process: pid_t, status: *mut c_int, options: c_int) -> pid_t, unless options & WNOHANG != 0;
    fn wait4(
        process: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage
    ) -> pid_t, unless options & WNOHANG != 0;
    fn waitid(
        kind: idtype_t, process: id_t, information: *mut siginfo_t, options: c_int
    ) -> c_int, unless options & WNOHANG != 0;
    fn pclose(stream: *mut FILE) -> c_int;
}

fn is_at_once(flags: c_int) -> bool {
    flags & MSG_DONTWAIT != 0
}

/// Whether a descriptor is non-blocking: the number of calls on it may depend on this machine's timing.
fn never_waits(file: c_int) -> bool {
    // SAFETY: the call only reads flags, and an invalid descriptor is an error.
    let flags = unsafe { libc::fcntl(file, libc::F_GETFL) };
    flags < 0 || flags & libc::O_NONBLOCK != 0
}
