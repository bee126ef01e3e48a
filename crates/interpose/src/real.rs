//! Owns the lookup of the C library's own functions, which this crate's functions hide.

use libc::{
    FILE, c_char, c_int, c_long, c_uint, c_ulong, c_void, clockid_t, epoll_event, eventfd_t, fd_set, id_t, idtype_t,
    iovec, itimerval, mode_t, msghdr, nfds_t, pid_t, pollfd, posix_spawn_file_actions_t, posix_spawnattr_t,
    pthread_attr_t, pthread_cond_t, pthread_mutex_t, pthread_t, rusage, sem_t, siginfo_t, sigset_t, size_t, sockaddr,
    socklen_t, ssize_t, time_t, timespec, timeval, useconds_t,
};
use std::ffi::CStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A thread's start function. The thread may end inside it, by `pthread_exit` or cancellation: glibc then unwinds its
/// stack.
pub(crate) type Start = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// Declares, for each C library function, a function of the same name that returns a pointer to it.
macro_rules! functions {
    ($($name:ident($($argument:ty),* $(,)?) -> $result:ty;)*) => {
        $(
            pub(crate) fn $name() -> unsafe extern "C-unwind" fn($($argument),*) -> $result {
                static FOUND: OnceLock<usize> = OnceLock::new();
                let found = *FOUND.get_or_init(|| next(concat!(stringify!($name), "\0")));
                // SAFETY: the C library's function of this name has this signature.
                unsafe { std::mem::transmute(found) }
            }
        )*
    };
}

functions! {
    clock_gettime(clockid_t, *mut timespec) -> c_int;
    gettimeofday(*mut timeval, *mut c_void) -> c_int;
    time(*mut time_t) -> time_t;
    nanosleep(*const timespec, *mut timespec) -> c_int;
    clock_nanosleep(clockid_t, c_int, *const timespec, *mut timespec) -> c_int;
    usleep(useconds_t) -> c_int;
    sleep(c_uint) -> c_uint;
    sched_yield() -> c_int;
    poll(*mut pollfd, nfds_t, c_int) -> c_int;
    ppoll(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
    select(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int;
    pselect(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const timespec, *const sigset_t) -> c_int;
    epoll_pwait(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int;
    read(c_int, *mut c_void, size_t) -> ssize_t;
    __read_chk(c_int, *mut c_void, size_t, size_t) -> ssize_t;
    readv(c_int, *const iovec, c_int) -> ssize_t;
    recv(c_int, *mut c_void, size_t, c_int) -> ssize_t;
    __recv_chk(c_int, *mut c_void, size_t, size_t, c_int) -> ssize_t;
    recvfrom(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
    recvmsg(c_int, *mut msghdr, c_int) -> ssize_t;
    accept(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    accept4(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int;
    wait(*mut c_int) -> pid_t;
    wait3(*mut c_int, c_int, *mut rusage) -> pid_t;
    pclose(*mut FILE) -> c_int;
    __recvfrom_chk(c_int, *mut c_void, size_t, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
    waitpid(pid_t, *mut c_int, c_int) -> pid_t;
    wait4(pid_t, *mut c_int, c_int, *mut rusage) -> pid_t;
    waitid(idtype_t, id_t, *mut siginfo_t, c_int) -> c_int;
    sem_wait(*mut sem_t) -> c_int;
    sem_trywait(*mut sem_t) -> c_int;
    sem_timedwait(*mut sem_t, *const timespec) -> c_int;
    sem_clockwait(*mut sem_t, clockid_t, *const timespec) -> c_int;
    pthread_cond_timedwait(*mut pthread_cond_t, *mut pthread_mutex_t, *const timespec) -> c_int;
    pthread_cond_clockwait(*mut pthread_cond_t, *mut pthread_mutex_t, clockid_t, *const timespec) -> c_int;
    pthread_cond_wait(*mut pthread_cond_t, *mut pthread_mutex_t) -> c_int;
    pthread_cond_broadcast(*mut pthread_cond_t) -> c_int;
    pthread_cond_signal(*mut pthread_cond_t) -> c_int;
    sem_post(*mut sem_t) -> c_int;
    write(c_int, *const c_void, size_t) -> ssize_t;
    writev(c_int, *const iovec, c_int) -> ssize_t;
    send(c_int, *const c_void, size_t, c_int) -> ssize_t;
    sendto(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t;
    sendmsg(c_int, *const msghdr, c_int) -> ssize_t;
    eventfd_write(c_int, eventfd_t) -> c_int;
    shutdown(c_int, c_int) -> c_int;
    close(c_int) -> c_int;
    exit(c_int) -> !;
    _exit(c_int) -> !;
    alarm(c_uint) -> c_uint;
    setitimer(c_int, *const itimerval, *mut itimerval) -> c_int;
    getitimer(c_int, *mut itimerval) -> c_int;
    sigtimedwait(*const sigset_t, *mut siginfo_t, *const timespec) -> c_int;
    vfork() -> pid_t;
    execve(*const c_char, *const *const c_char, *const *const c_char) -> c_int;
    execvpe(*const c_char, *const *const c_char, *const *const c_char) -> c_int;
    posix_spawn(
        *mut pid_t,
        *const c_char,
        *const posix_spawn_file_actions_t,
        *const posix_spawnattr_t,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int;
    posix_spawnp(
        *mut pid_t,
        *const c_char,
        *const posix_spawn_file_actions_t,
        *const posix_spawnattr_t,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int;
    system(*const c_char) -> c_int;
    popen(*const c_char, *const c_char) -> *mut c_void;
    bind(c_int, *const sockaddr, socklen_t) -> c_int;
    shm_open(*const c_char, c_int, mode_t) -> c_int;
    sem_open(*const c_char, c_int, mode_t, c_uint) -> *mut sem_t;
    prctl(c_int, c_ulong, c_ulong, c_ulong, c_ulong) -> c_int;
    pthread_setname_np(pthread_t, *const c_char) -> c_int;
    pthread_create(*mut pthread_t, *const pthread_attr_t, Start, *mut c_void) -> c_int;
}

type Syscall = unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;

/// The C library's `syscall`. It is not kept in a `OnceLock`, which itself waits through `syscall`.
pub(crate) fn syscall() -> Syscall {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    if FOUND.load(Relaxed) == 0 {
        FOUND.store(next("syscall\0"), Relaxed);
    }
    // SAFETY: the C library's function has at most six arguments, and passes all of them on.
    unsafe { std::mem::transmute(FOUND.load(Relaxed)) }
}

/// Symbol version of condition variable functions, which glibc has in two versions on x86-64; a look-up without a
/// version finds the older one.
const COND_VERSION: &CStr = c"GLIBC_2.3.2";

/// Libraries that contain some of the functions before glibc 2.34. A program may load them for itself alone.
const APART: [&CStr; 2] = [c"librt.so.1", c"libpthread.so.0"];

/// # Panics
/// If the C library has no such function, that is, if it is not glibc.
fn next(name: &str) -> usize {
    let text = CStr::from_bytes_with_nul(name.as_bytes()).expect("it ends with a zero");
    let versioned = if name.starts_with("pthread_cond_") { find_version(text) } else { None };
    let found = versioned.or_else(|| symbol(libc::RTLD_NEXT, text)).or_else(|| {
        APART.iter().find_map(|library| {
            // SAFETY: the name ends with a zero; the library is part of the C library, and stays loaded.
            let library = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY) };
            if library.is_null() { None } else { symbol(library, text) }
        })
    });
    found.unwrap_or_else(|| panic!("the C library has no {name}"))
}

fn symbol(library: *mut c_void, name: &CStr) -> Option<usize> {
    // SAFETY: a `CStr` ends with a zero, and `dlsym` only reads it.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) } as usize;
    (found != 0).then_some(found)
}

fn find_version(name: &CStr) -> Option<usize> {
    // SAFETY: both names end with a zero, and `dlvsym` only reads them.
    let found = unsafe { dlvsym(libc::RTLD_NEXT, name.as_ptr(), COND_VERSION.as_ptr()) } as usize;
    (found != 0).then_some(found)
}

unsafe extern "C" {
    fn dlvsym(handle: *mut c_void, symbol: *const c_char, version: *const c_char) -> *mut c_void;
}

/// Bytes of a set of `count` descriptors, as the kernel reads it.
pub(crate) fn set_bytes(count: c_int) -> usize {
    (count.max(0) as usize).div_ceil(c_ulong::BITS as usize) * size_of::<c_ulong>()
}
