//! Owns the start of other processes by a rank's process and its descendants: these processes participate in the rank's
//! virtual time, and the rank relays their requests.
//!
//! A forked process participates at once. A started program (`exec`, `posix_spawn`, `system`) participates if the
//! dynamic linker loads the library for such processes (`uniference-child`) before the C library: environment
//! variables name the library and the relay. Statically linked programs, and those of another user, use this machine's
//! clock. The rank's Python interpreter is started with the libraries that the rank itself has loaded (`Interpreter`),
//! so the rank's GPUs exist in that process as well.

use crate::pauses::{start_own, start_watch, unblock};
use crate::{become_client, hand_over, rank, real, wakes};
use libc::{c_char, c_int, c_void, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use std::arch::naked_asm;
use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use uniference_abi::gpus;
use uniference_client::{Client, Meter, Relative, Relay};
use uniference_protocol::relay::{INTERPRETER_VARIABLE, LIBRARIES_VARIABLE, PATH_VARIABLE, SOCKET_VARIABLE};

/// The library for programs that a rank starts, in the folder of the library that contains this code.
const LIBRARY: &str = "libuniference_child.so";

const PRELOAD: &str = "LD_PRELOAD";

/// The relay; `None`: it could not be created, which was reported.
static RELAY: OnceLock<Option<Relay>> = OnceLock::new();

/// The state that a forking thread has prepared for the child.
struct Copy {
    path: Vec<u32>,
    /// The pipe on which the child reports that it participates; before that report, the child would go unnoticed if
    /// its parent ended.
    ready: (OwnedFd, OwnedFd),
}

thread_local! {
    static NEXT: RefCell<Option<Copy>> = const { RefCell::new(None) };
}

/// The name of the relay, for the start of another process; in a rank's process, the relay is created at the first
/// call.
fn relay(client: &Client) -> Option<&str> {
    if let Some(name) = client.relay() {
        return Some(name);
    }
    let relay = RELAY.get_or_init(|| {
        if client.begins_threads() {
            start_watch();
        }
        if library().is_none() {
            client.warn(&format!(
                "programs that the program starts are on the machine's clock: {LIBRARY} was not installed\nhint: install uniference from its wheel, or run `make setup`"
            ));
        }
        let warn = |error| {
            client.warn(&format!(
                "processes that the program starts are on the machine's clock: {error}\nhint: raise the limit of open descriptors (ulimit -n)"
            ));
        };
        client.begins_family(Meter { process: process_ns, ended: ended_ns }).map_err(warn).ok()
    });
    static STARTED: OnceLock<()> = OnceLock::new();
    if relay.is_some() {
        STARTED.get_or_init(|| start_own(listen, null_mut()));
    }
    relay.as_ref().map(Relay::name)
}

extern "C-unwind" fn listen(_: *mut c_void) -> *mut c_void {
    let client = rank().expect("a rank has started it");
    let relay = RELAY.get().and_then(Option::as_ref).expect("it was just made");
    client.relays(relay, &|relative| start_own(ask_for, Box::into_raw(Box::new(relative)).cast()))
}

extern "C-unwind" fn ask_for(relative: *mut c_void) -> *mut c_void {
    // SAFETY: `listen` allocated the argument for this thread alone.
    let relative = *unsafe { Box::from_raw(relative.cast::<Relative>()) };
    // The relay thread must receive the signal that ends its pauses.
    unblock();
    if let Some(client) = rank() {
        client.relay_for(relative);
    }
    null_mut()
}

/// Prepares the start of a process: reports the program's line, and charges the modelled compute of the calling thread.
fn begins(client: &Client) {
    if !client.is_inside() {
        crate::answered(client.starts_process());
    }
    wakes::settle();
}

/// Prepares a fork on the forking thread; called by the C library.
pub(crate) extern "C" fn prepare_fork() {
    if let Some(client) = rank()
        && relay(client).is_some()
        && let Ok(ready) = pipe()
    {
        begins(client);
        NEXT.set(Some(Copy { path: client.starts_thread(), ready }));
        client.begins_fork();
    }
}

/// Ends the fork in the parent. The prepared state belongs to the child, which may not exist.
pub(crate) extern "C" fn forked_parent() {
    if let Some(Copy { ready: (reader, writer), .. }) = NEXT.take() {
        drop(writer);
        // The end of the file means that the child has ended.
        let _ = File::from(reader).read(&mut [0]);
        if let Some(client) = rank() {
            client.ends_fork();
        }
    }
}

/// Makes the forked child participate.
pub(crate) extern "C" fn forked_child() {
    let before = rank();
    crate::deactivate();
    let name = before.and_then(|client| client.relay().or(RELAY.get().and_then(Option::as_ref).map(Relay::name)));
    let Some((name, Copy { path, ready: (reader, writer) })) = name.zip(NEXT.take()) else { return };
    drop(reader);
    if let Ok(client) = Client::of_child(name, path) {
        become_client(client);
    }
    let _ = File::from(writer).write(&[1]);
}

fn pipe() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = std::io::pipe()?;
    Ok((reader.into(), writer.into()))
}

/// Puts a started program on the clock of the rank that its environment names, if it names one.
pub extern "C" fn join() {
    let (Ok(name), Ok(path)) = (std::env::var(SOCKET_VARIABLE), std::env::var(PATH_VARIABLE)) else { return };
    // Another library may already replace the C library's functions; if so, this library does nothing.
    let Ok(()) = crate::prepare_process() else { return };
    let path: Vec<u32> = path.split('.').filter_map(|number| number.parse().ok()).collect();
    INTERPRETER.get_or_init(Interpreter::told);
    // An error means that the rank has ended, so there is no virtual time to follow.
    if let Ok(client) = Client::of_child(&name, path) {
        keep_books(&client);
        if let Some(name) = crate::names::of_program() {
            client.is_called(&name);
        }
        become_client(client);
    }
}

/// Allocates the calling thread's thread-local state, before a call of a program's `malloc` can be in progress.
pub(crate) fn keep_books(client: &Client) {
    client.keep_books(|| {
        NEXT.with(|_| ());
        LAST.with(|_| ());
    });
}

// Environments of started programs

/// Prefix of the simulator's variables, which tell a rank's processes of its GPUs, for example. They are also passed to
/// programs that are started with an environment of their own.
const OURS: &[u8] = b"UNIFERENCE_";

/// Arguments or an environment, in the C library's form.
type Words = *const *const c_char;

/// An environment, in the C library's form.
struct Environment {
    /// The strings that `pointers` point to.
    words: Vec<CString>,
    pointers: Vec<*const c_char>,
}

thread_local! {
    /// The environment that the thread made last: a `vfork` child that executes another program leaves it behind.
    static LAST: RefCell<Option<Environment>> = const { RefCell::new(None) };
}

/// Environment variables for a program that is about to be started and participates; `program` is `None` if unknown.
/// The preloaded libraries are Uniference's, followed by `preloads`. `None`: this process does not participate.
fn variables(program: Option<&Path>, preloads: &[u8]) -> Option<Vec<(&'static str, Vec<u8>)>> {
    let client = rank()?;
    let (name, library) = (relay(client)?, library()?);
    begins(client);
    let interpreter = INTERPRETER.get_or_init(Interpreter::own).as_ref();
    let python = interpreter.filter(|interpreter| program.is_some_and(|program| interpreter.runs(program)));
    let known = interpreter.map_or(&[][..], |interpreter| &interpreter.libraries);
    let ours = |other: &[u8]| other == library || known.split(|byte| *byte == b':').any(|known| known == other);
    let others = preloads.split(|byte| *byte == b':').filter(|other| !other.is_empty() && !ours(other));
    let first = python.map_or(library, |python| &python.libraries);
    let libraries: Vec<&[u8]> = std::iter::once(first).chain(others).collect();
    let path: Vec<String> = client.starts_thread().iter().map(u32::to_string).collect();
    let mut variables = vec![
        (PRELOAD, libraries.join(&b':')),
        (SOCKET_VARIABLE, name.as_bytes().to_vec()),
        (PATH_VARIABLE, path.join(".").into_bytes()),
    ];
    if let Some(Interpreter { program, libraries }) = interpreter {
        variables.push((INTERPRETER_VARIABLE, program.as_os_str().as_bytes().to_vec()));
        variables.push((LIBRARIES_VARIABLE, libraries.clone()));
    }
    Some(variables)
}

/// The Python interpreter of the rank.
struct Interpreter {
    /// Path without symbolic links.
    program: PathBuf,
    /// Preloaded libraries, separated by colons.
    libraries: Vec<u8>,
}

/// `None`: the program has no interpreter.
static INTERPRETER: OnceLock<Option<Interpreter>> = OnceLock::new();

impl Interpreter {
    /// The interpreter of this process, the rank's own.
    fn own() -> Option<Interpreter> {
        let extension = own_library()?.as_os_str().as_bytes().to_vec();
        let gpus = std::env::var_os(gpus::PRELOAD).map(|gpus| gpus.as_bytes().to_vec());
        let libraries = std::iter::once(extension).chain(gpus).collect::<Vec<_>>().join(&b':');
        Some(Interpreter { program: std::fs::read_link("/proc/self/exe").ok()?, libraries })
    }

    /// The interpreter named by the environment variables of this process.
    fn told() -> Option<Interpreter> {
        let program = std::env::var_os(INTERPRETER_VARIABLE)?.into();
        let libraries = std::env::var_os(LIBRARIES_VARIABLE)?.as_bytes().to_vec();
        Some(Interpreter { program, libraries })
    }

    /// Whether the program is the interpreter, or a script that the interpreter runs.
    fn runs(&self, program: &Path) -> bool {
        let is_it = |path: &Path| std::fs::canonicalize(path).is_ok_and(|path| path == self.program);
        is_it(program) || shebang(program).is_some_and(|path| is_it(&path))
    }
}

/// The program in the first line of a script.
fn shebang(script: &Path) -> Option<PathBuf> {
    /// `BINPRM_BUF_SIZE` of the kernel.
    const LONGEST: u64 = 256;
    let mut head = Vec::new();
    File::open(script).ok()?.take(LONGEST).read_to_end(&mut head).ok()?;
    let words = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let word = words.trim_ascii().split(|byte| byte.is_ascii_whitespace()).next()?;
    Some(OsStr::from_bytes(word).into())
}

/// The file of a program; a name without a folder is searched in the folders of `PATH`.
fn found(file: &Path) -> Option<PathBuf> {
    if file.as_os_str().as_bytes().contains(&b'/') {
        return Some(file.to_owned());
    }
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(file)).find(|path| path.is_file())
}

impl Environment {
    /// The environment `before` with Uniference's variables added, for this program.
    ///
    /// # Safety
    /// `before` is null or an environment.
    unsafe fn extend(program: Option<&Path>, before: Words) -> Option<Environment> {
        // SAFETY: `before` is null or an environment, which ends with a null pointer, as does the C library's
        // `environ`.
        let (mut words, own) = unsafe { (copied(before), copied(environ)) };
        let value_of = |word: &CString, name: &str| {
            let rest = word.as_bytes().strip_prefix(name.as_bytes())?;
            rest.strip_prefix(b"=").map(<[u8]>::to_vec)
        };
        let preloads = words.iter().find_map(|word| value_of(word, PRELOAD)).unwrap_or_default();
        let handed_on = own.into_iter().filter(|word| {
            let name = word.as_bytes().split_inclusive(|byte| *byte == b'=').next().unwrap_or_default();
            name.starts_with(OURS) && !words.iter().any(|word| word.as_bytes().starts_with(name))
        });
        words.extend(handed_on.collect::<Vec<_>>());
        for (name, value) in variables(program, &preloads)? {
            words.retain(|word| value_of(word, name).is_none());
            words.push(CString::new([name.as_bytes(), b"=", &value].concat()).ok()?);
        }
        let pointers = words.iter().map(|word| word.as_ptr()).chain([null()]).collect();
        Some(Environment { words, pointers })
    }

    /// Calls `start` with the extended environment, or with `before` if this process does not participate. `program` is
    /// a path or, if `searched`, a name to search in `PATH`.
    ///
    /// # Safety
    /// `before` is null or an environment; `program` is null or ends with a zero.
    unsafe fn with(program: *const c_char, searched: bool, before: Words, start: impl FnOnce(Words) -> c_int) -> c_int {
        // SAFETY: a program that is not null ends with a zero, and is not changed during this call.
        let program =
            (!program.is_null()).then(|| Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(program) }.to_bytes())));
        let path = program.and_then(|program| if searched { found(program) } else { Some(program.to_owned()) });
        // SAFETY: `before` is null or an environment.
        let made = unsafe { Environment::extend(path.as_deref(), before) };
        let pointers = made.as_ref().map_or(before, |made| {
            debug_assert_eq!(made.words.len() + 1, made.pointers.len());
            made.pointers.as_ptr()
        });
        LAST.set(made);
        start(pointers)
    }
}

/// Copies the strings of a list, which may be null.
///
/// # Safety
/// The list ends with a null pointer.
unsafe fn copied(mut at: Words) -> Vec<CString> {
    let mut words = Vec::new();
    // SAFETY: `at` is null or points to an entry of the list, at most to the null pointer that ends it.
    while let Some(word) = unsafe { at.as_ref() }.filter(|word| !word.is_null()) {
        // SAFETY: the entry is a C string, and not the null pointer that ends the list, so another entry follows.
        unsafe {
            words.push(CStr::from_ptr(*word).to_owned());
            at = at.add(1);
        }
    }
    words
}

/// Sets Uniference's variables in this process, for a program that the C library starts.
fn export() {
    let preloads = std::env::var_os(PRELOAD).unwrap_or_default();
    for (name, value) in variables(None, preloads.as_bytes()).into_iter().flatten() {
        // SAFETY: the C library allows this as long as no other thread uses the environment. `system` and `popen`, for
        // which this is done, read the environment at the same place, so a program must have excluded such threads.
        unsafe { std::env::set_var(name, OsStr::from_bytes(&value)) };
    }
}

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Path of the library for programs that a rank starts; `None`: it was not installed.
fn library() -> Option<&'static [u8]> {
    static FOUND: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let path = own_library()?.parent()?.join(LIBRARY);
        path.exists().then(|| path.into_os_string().into_encoded_bytes())
    });
    found.as_deref()
}

/// Path of the library that contains this code.
fn own_library() -> Option<&'static Path> {
    let own = crate::stack::library_of(own_library as *const () as usize)?;
    Some(Path::new(OsStr::from_bytes(own.file.to_bytes())))
}

/// Replaces the C library's `execve`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, arguments: Words, environment: Words) -> c_int {
    // SAFETY: `path` and `environment` meet the contract of `execve`, as does the list with which `with` replaces the
    // latter.
    unsafe { Environment::with(path, false, environment, |environment| real::execve()(path, arguments, environment)) }
}

/// Replaces the C library's `execv`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, arguments: Words) -> c_int {
    // SAFETY: the arguments meet the contract of `execv`, and `environ` is the list that the C library uses.
    unsafe { execve(path, arguments, environ) }
}

/// Replaces the C library's `execvpe`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: *const c_char, arguments: Words, environment: Words) -> c_int {
    // SAFETY: `file` and `environment` meet the contract of `execvpe`, as does the list with which `with` replaces the
    // latter.
    unsafe { Environment::with(file, true, environment, |environment| real::execvpe()(file, arguments, environment)) }
}

/// Replaces the C library's `execvp`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, arguments: Words) -> c_int {
    // SAFETY: the arguments meet the contract of `execvp`, and `environ` is the list that the C library uses.
    unsafe { execvpe(file, arguments, environ) }
}

/// Replaces the C library's `posix_spawn`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    process: *mut pid_t,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: Words,
    environment: Words,
) -> c_int {
    let real = |environment| {
        // SAFETY: the arguments meet the contract of `posix_spawn`; `with` passes a list that does.
        unsafe { real::posix_spawn()(process, path, actions, attributes, arguments, environment) }
    };
    // SAFETY: `path` and `environment` meet the contract of `posix_spawn`.
    unsafe { Environment::with(path, false, environment, real) }
}

/// Replaces the C library's `posix_spawnp`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnp(
    process: *mut pid_t,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: Words,
    environment: Words,
) -> c_int {
    let real = |environment| {
        // SAFETY: the arguments meet the contract of `posix_spawnp`; `with` passes a list that does.
        unsafe { real::posix_spawnp()(process, file, actions, attributes, arguments, environment) }
    };
    // SAFETY: `file` and `environment` meet the contract of `posix_spawnp`.
    unsafe { Environment::with(file, true, environment, real) }
}

/// Replaces the C library's `system`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    hand_over();
    export();
    // SAFETY: `system` gets the arguments that its replacement got, under the same contract.
    unsafe { real::system()(command) }
}

/// Replaces the C library's `popen`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, kind: *const c_char) -> *mut c_void {
    export();
    // SAFETY: `popen` gets the arguments that its replacement got, under the same contract.
    unsafe { real::popen()(command, kind) }
}

/// Replaces the C library's `vfork`. The relay is created before the C library's `vfork` is called, because the child
/// shares the caller's memory and may start no thread.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> pid_t {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("sub rsp, 8", "call {prepare}", "add rsp, 8", "jmp rax", prepare = sym prepare_vfork);
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "stp x29, x30, [sp, #-16]!",
        "bl {prepare}",
        "mov x16, x0",
        "ldp x29, x30, [sp], #16",
        "br x16",
        prepare = sym prepare_vfork
    );
}

/// Prepares a `vfork`; returns the address of the C library's function.
extern "C" fn prepare_vfork() -> usize {
    if let Some(client) = rank() {
        relay(client);
        begins(client);
    }
    real::vfork() as usize
}

// CPU time of processes

/// CPU time of a process, from its CPU clock (linux/posix-timers_types.h: `make_process_cpuclock` with
/// `CPUCLOCK_SCHED`).
fn process_ns(process: i32) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec; an unknown clock is an error.
    let found = unsafe { real::clock_gettime()((!process << 3) | 2, &mut time) } == 0;
    found.then(|| time.tv_sec as u64 * crate::NS_PER_S + time.tv_nsec as u64)
}

fn ended_ns() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call fills the structure, which is also valid if zeroed.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let ns = |time: libc::timeval| time.tv_sec as u64 * crate::NS_PER_S + time.tv_usec as u64 * 1000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}
