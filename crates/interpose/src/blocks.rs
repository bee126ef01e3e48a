//! Owns the functions in which a thread may wait for another thread or process, without a time-out: what it has handed to streams of simulated
//! GPUs is said first, as who wakes it may ask for that. Besides that they are the C library's. Those
//! with `_chk` are what programs call that were compiled with checks.

use crate::{hand_over, real};
use libc::{
    c_int, c_void, id_t, idtype_t, iovec, msghdr, pid_t, rusage, siginfo_t, size_t, sockaddr, socklen_t, ssize_t,
};

/// Defines functions of the C library that hand over first.
macro_rules! handing_over {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            /// As in the C library.
            ///
            /// # Safety
            /// As in the C library.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                hand_over();
                // SAFETY: what the caller gave.
                unsafe { real::$name()($($argument),*) }
            }
        )*
    };
}

handing_over! {
    fn read(file: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t;
    fn __read_chk(file: c_int, buffer: *mut c_void, bytes: size_t, size: size_t) -> ssize_t;
    fn readv(file: c_int, buffers: *const iovec, count: c_int) -> ssize_t;
    fn recv(socket: c_int, buffer: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t;
    fn __recv_chk(socket: c_int, buffer: *mut c_void, bytes: size_t, size: size_t, flags: c_int) -> ssize_t;
    fn recvfrom(
        socket: c_int, buffer: *mut c_void, bytes: size_t, flags: c_int, from: *mut sockaddr, length: *mut socklen_t
    ) -> ssize_t;
    fn recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    fn accept(socket: c_int, from: *mut sockaddr, length: *mut socklen_t) -> c_int;
    fn accept4(socket: c_int, from: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    fn waitpid(process: pid_t, status: *mut c_int, options: c_int) -> pid_t;
    fn wait4(process: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t;
    fn waitid(kind: idtype_t, process: id_t, information: *mut siginfo_t, options: c_int) -> c_int;
}
