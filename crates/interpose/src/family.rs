//! Owns the start of other processes by a rank's process, and by those: that they take part in the rank's time, and in whose name they ask.
//!
//! A copy (`fork`) goes on as a process of the rank's at once. A program that is started (`exec`, `posix_spawn`, `system`) does so where the dynamic
//! linker loads the library of such processes (`uniference-relative`) before the C library: its environment says so, and where the relay is. What is
//! linked statically, or belongs to another user, is on the machine's clock. The rank's Python interpreter is started with what the rank itself has
//! loaded (`Interpreter`), so that the rank's GPUs are there as well.

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
use uniference_client::{Client, Meter, Relative, Relay};
use uniference_protocol::phantom;
use uniference_protocol::relay::{INTERPRETER_VARIABLE, LIBRARIES_VARIABLE, PATH_VARIABLE, SOCKET_VARIABLE};

/// The library of programs that a rank starts, beside the one that this code is in.
const LIBRARY: &str = "libuniference_relative.so";

const PRELOAD: &str = "LD_PRELOAD";

/// `None`: there is no room for it, which was said.
static RELAY: OnceLock<Option<Relay>> = OnceLock::new();

/// What a thread that forks has prepared for the copy.
struct Copy {
    path: Vec<u32>,
    /// Through which the copy says that it takes part; before, nobody would miss it if its parent ended.
    ready: (OwnedFd, OwnedFd),
}

thread_local! {
    static NEXT: RefCell<Option<Copy>> = const { RefCell::new(None) };
}

/// The process is about to start another one: of a rank, there is a relay from now on. Returns its name.
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
    // SAFETY: `listen` made it for this thread alone.
    let relative = *unsafe { Box::from_raw(relative.cast::<Relative>()) };
    // Pauses are ended by it.
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

/// The C library calls it before a fork, on the thread that forks.
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

/// The same afterwards, where the process goes on; what was prepared is the copy's, which may not have come to be.
pub(crate) extern "C" fn forked_parent() {
    if let Some(Copy { ready: (reader, writer), .. }) = NEXT.take() {
        drop(writer);
        // At the end of the file the copy has ended.
        let _ = File::from(reader).read(&mut [0]);
        if let Some(client) = rank() {
            client.ends_fork();
        }
    }
}

/// The same in the copy.
pub(crate) extern "C" fn forked_child() {
    let before = rank();
    crate::deactivate();
    let name = before.and_then(|client| client.relay().or(RELAY.get().and_then(Option::as_ref).map(Relay::name)));
    let Some((name, Copy { path, ready: (reader, writer) })) = name.zip(NEXT.take()) else { return };
    drop(reader);
    if let Ok(client) = Client::of_relative(name, path) {
        become_client(client);
    }
    let _ = File::from(writer).write(&[1]);
}

fn pipe() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = std::io::pipe()?;
    Ok((reader.into(), writer.into()))
}

/// Puts a program that was started on the clock of the rank that its environment names, if it does.
pub extern "C" fn join() {
    let (Ok(name), Ok(path)) = (std::env::var(SOCKET_VARIABLE), std::env::var(PATH_VARIABLE)) else { return };
    // Where another library stands in for the C library's functions before this one, it is not this one's business.
    let Ok(()) = crate::prepare_process() else { return };
    let path: Vec<u32> = path.split('.').filter_map(|number| number.parse().ok()).collect();
    INTERPRETER.get_or_init(Interpreter::told);
    // Else the rank is gone: nobody is left whose time it is.
    if let Ok(client) = Client::of_relative(&name, path) {
        keep_books(&client);
        if let Some(name) = crate::names::of_program() {
            client.is_called(&name);
        }
        become_client(client);
    }
}

/// Makes what the calling thread keeps until it ends, before anybody's `malloc` can be in the middle of its work.
pub(crate) fn keep_books(client: &Client) {
    client.keep_books(|| {
        NEXT.with(|_| ());
        LAST.with(|_| ());
    });
}

// What a program is started with

/// What names of the simulator's variables begin with. They tell a rank's processes of its GPUs, say, and are handed on to a program that is started
/// with an environment of its own, too.
const OURS: &[u8] = b"UNIFERENCE_";

/// Arguments or an environment, as the C library takes them.
type Words = *const *const c_char;

/// An environment, as the C library takes it.
struct Environment {
    /// The pointers point into these.
    words: Vec<CString>,
    pointers: Vec<*const c_char>,
}

thread_local! {
    /// The last one that the thread has made: a copy by `vfork` leaves it behind when it goes on as another program.
    static LAST: RefCell<Option<Environment>> = const { RefCell::new(None) };
}

/// The variables that a program needs which is about to be started, and takes part; `None` for the program: one that is not known. Of the libraries to
/// preload they name ours and those that `preloads` names. `None`: this process does not take part.
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
    /// Without symbolic links.
    program: PathBuf,
    /// What it preloads, separated by colons.
    libraries: Vec<u8>,
}

/// `None`: a program without one.
static INTERPRETER: OnceLock<Option<Interpreter>> = OnceLock::new();

impl Interpreter {
    /// The one that this process is, as it is the rank's.
    fn own() -> Option<Interpreter> {
        let extension = own_library()?.as_os_str().as_bytes().to_vec();
        let gpus = std::env::var_os(phantom::PRELOAD).map(|gpus| gpus.as_bytes().to_vec());
        let libraries = std::iter::once(extension).chain(gpus).collect::<Vec<_>>().join(&b':');
        Some(Interpreter { program: std::fs::read_link("/proc/self/exe").ok()?, libraries })
    }

    /// The one that whoever has started this process has told of.
    fn told() -> Option<Interpreter> {
        let program = std::env::var_os(INTERPRETER_VARIABLE)?.into();
        let libraries = std::env::var_os(LIBRARIES_VARIABLE)?.as_bytes().to_vec();
        Some(Interpreter { program, libraries })
    }

    /// Whether the program is the interpreter, or a script of it.
    fn runs(&self, program: &Path) -> bool {
        let is_it = |path: &Path| std::fs::canonicalize(path).is_ok_and(|path| path == self.program);
        is_it(program) || shebang(program).is_some_and(|path| is_it(&path))
    }
}

/// The program that a script names in its first line.
fn shebang(script: &Path) -> Option<PathBuf> {
    /// `BINPRM_BUF_SIZE` of the kernel.
    const LONGEST: u64 = 256;
    let mut head = Vec::new();
    File::open(script).ok()?.take(LONGEST).read_to_end(&mut head).ok()?;
    let words = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let word = words.trim_ascii().split(|byte| byte.is_ascii_whitespace()).next()?;
    Some(OsStr::from_bytes(word).into())
}

/// The file of a program that is looked for in the folders of `PATH`, if it has no folder of its own.
fn found(file: &Path) -> Option<PathBuf> {
    if file.as_os_str().as_bytes().contains(&b'/') {
        return Some(file.to_owned());
    }
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(file)).find(|path| path.is_file())
}

impl Environment {
    /// `before` with those variables, for this program.
    ///
    /// # Safety
    /// `before` is null or an environment.
    unsafe fn extend(program: Option<&Path>, before: Words) -> Option<Environment> {
        // SAFETY: as above; the C library keeps this process's.
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

    /// Calls `start` with it, or with `before` where this process does not take part. The program is a path, or with `searched` what is looked for
    /// in `PATH`.
    ///
    /// # Safety
    /// As above; `program` is a text.
    unsafe fn with(program: *const c_char, searched: bool, before: Words, start: impl FnOnce(Words) -> c_int) -> c_int {
        // SAFETY: as above.
        let program =
            (!program.is_null()).then(|| Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(program) }.to_bytes())));
        let path = program.and_then(|program| if searched { found(program) } else { Some(program.to_owned()) });
        // SAFETY: as above.
        let made = unsafe { Environment::extend(path.as_deref(), before) };
        let pointers = made.as_ref().map_or(before, |made| {
            debug_assert_eq!(made.words.len() + 1, made.pointers.len());
            made.pointers.as_ptr()
        });
        LAST.set(made);
        start(pointers)
    }
}

/// The words of a list, which may be null.
///
/// # Safety
/// It ends with a null pointer.
unsafe fn copied(mut at: Words) -> Vec<CString> {
    let mut words = Vec::new();
    // SAFETY: as above.
    while let Some(word) = unsafe { at.as_ref() }.filter(|word| !word.is_null()) {
        // SAFETY: as above; this is not the last one.
        unsafe {
            words.push(CStr::from_ptr(*word).to_owned());
            at = at.add(1);
        }
    }
    words
}

/// Gives this process those variables, for a program that the C library starts.
fn export() {
    let preloads = std::env::var_os(PRELOAD).unwrap_or_default();
    for (name, value) in variables(None, preloads.as_bytes()).into_iter().flatten() {
        // SAFETY: as the program itself might do here, which starts another one.
        unsafe { std::env::set_var(name, OsStr::from_bytes(&value)) };
    }
}

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Where the library of programs is that a rank starts; `None`: it was not installed.
fn library() -> Option<&'static [u8]> {
    static FOUND: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let path = own_library()?.parent()?.join(LIBRARY);
        path.exists().then(|| path.into_os_string().into_encoded_bytes())
    });
    found.as_deref()
}

/// Where the library is that this code is in.
fn own_library() -> Option<&'static Path> {
    let own = crate::stack::library_of(own_library as *const () as usize)?;
    Some(Path::new(OsStr::from_bytes(own.file.to_bytes())))
}

/// As in the C library.
///
/// # Safety
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, arguments: Words, environment: Words) -> c_int {
    // SAFETY: what the caller gave.
    unsafe { Environment::with(path, false, environment, |environment| real::execve()(path, arguments, environment)) }
}

/// As in the C library.
///
/// # Safety
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, arguments: Words) -> c_int {
    // SAFETY: what the caller gave.
    unsafe { execve(path, arguments, environ) }
}

/// As in the C library.
///
/// # Safety
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: *const c_char, arguments: Words, environment: Words) -> c_int {
    // SAFETY: what the caller gave.
    unsafe { Environment::with(file, true, environment, |environment| real::execvpe()(file, arguments, environment)) }
}

/// As in the C library.
///
/// # Safety
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, arguments: Words) -> c_int {
    // SAFETY: what the caller gave.
    unsafe { execvpe(file, arguments, environ) }
}

/// As in the C library.
///
/// # Safety
/// As in the C library.
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
        // SAFETY: what the caller gave.
        unsafe { real::posix_spawn()(process, path, actions, attributes, arguments, environment) }
    };
    // SAFETY: what the caller gave.
    unsafe { Environment::with(path, false, environment, real) }
}

/// As in the C library.
///
/// # Safety
/// As in the C library.
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
        // SAFETY: what the caller gave.
        unsafe { real::posix_spawnp()(process, file, actions, attributes, arguments, environment) }
    };
    // SAFETY: what the caller gave.
    unsafe { Environment::with(file, true, environment, real) }
}

/// As in the C library.
///
/// # Safety
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    hand_over();
    export();
    // SAFETY: what the caller gave.
    unsafe { real::system()(command) }
}

/// As in the C library.
///
/// # Safety
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, kind: *const c_char) -> *mut c_void {
    export();
    // SAFETY: what the caller gave.
    unsafe { real::popen()(command, kind) }
}

/// As in the C library, to which it goes on once there is a relay: the copy has the caller's memory, and may start no thread.
///
/// # Safety
/// As in the C library.
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

/// The address of the C library's function.
extern "C" fn prepare_vfork() -> usize {
    if let Some(client) = rank() {
        relay(client);
        begins(client);
    }
    real::vfork() as usize
}

// What processes compute

/// The clock of a process's CPU time (linux/posix-timers_types.h: `make_process_cpuclock` with `CPUCLOCK_SCHED`).
fn process_ns(process: i32) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec; a clock that is not there is an error.
    let found = unsafe { real::clock_gettime()((!process << 3) | 2, &mut time) } == 0;
    found.then(|| time.tv_sec as u64 * crate::NS_PER_S + time.tv_nsec as u64)
}

fn ended_ns() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure is filled by the call, and valid without.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let ns = |time: libc::timeval| time.tv_sec as u64 * crate::NS_PER_S + time.tv_usec as u64 * 1000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}
