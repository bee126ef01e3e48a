//! Owns the distinction between the program's clock reads and waits, and those that serve CPython's lock (the GIL).
//!
//! A thread that waits for the lock reads the clock and waits 5 ms on a condition variable in the interpreter's own
//! data, repeatedly. The thread does not hold the lock; Python functions that read the clock do.
//!
//! Python's own locks (`threading.Lock` and all classes based on it) call one function, `PyThread_acquire_lock_timed`,
//! which in some versions reads the clock even without a timeout: such a read is not the program's either. Such a read
//! is recognized by the caller's caller, whose position on the stack is determined once per call site.

use libc::{c_int, c_void, dl_phdr_info, size_t};
use std::ffi::CStr;
use std::ops::Range;
use std::sync::OnceLock;

use crate::stack;

/// The interpreter of this process.
pub(crate) struct Interpreter {
    /// The addresses of the interpreter's code and data.
    image: Range<usize>,
    /// The addresses of torch's libraries.
    torch: Vec<Range<usize>>,
    /// The addresses of the C++ library.
    cpp: Vec<Range<usize>>,
    /// The addresses of a library whose `malloc` replaces the C library's, such as jemalloc. An allocator that is
    /// linked into the program is not distinguished from the program.
    allocator: Vec<Range<usize>>,
    /// The code of `PyThread_acquire_lock_timed`.
    acquire: Range<usize>,
    has_lock: unsafe extern "C" fn() -> c_int,
    save: unsafe extern "C" fn() -> *mut c_void,
    restore: unsafe extern "C" fn(*mut c_void),
}

static FOUND: OnceLock<Option<Interpreter>> = OnceLock::new();

/// The interpreter of this process, if it has one and [`find`] was called.
pub(crate) fn get() -> Option<&'static Interpreter> {
    FOUND.get().and_then(Option::as_ref)
}

/// Looks for the interpreter.
pub(crate) fn find() {
    FOUND.get_or_init(|| {
        let [has_lock, save, restore] =
            [c"PyGILState_Check", c"PyEval_SaveThread", c"PyEval_RestoreThread"].map(|name| {
                // SAFETY: the name is a C string literal, and `dlsym` only reads it.
                unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
            });
        if has_lock.is_null() || save.is_null() || restore.is_null() {
            return None;
        }
        let [malloc, of_c] = [c"malloc", c"gnu_get_libc_version"].map(|name| {
            // SAFETY: the name is a C string literal, and `dlsym` only reads it.
            unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) as usize }
        });
        let others = |image: &Range<usize>| [of_c, has_lock as usize].iter().any(|address| image.contains(address));
        // SAFETY: CPython's functions of these names have these signatures.
        unsafe {
            Some(Interpreter {
                image: images(|_, image| image.contains(&(has_lock as usize))).pop()?,
                cpp: images(|name, _| name.contains("libstdc++") || name.contains("libc++")),
                torch: images(|name, _| name.contains("libtorch") || name.contains("libc10")),
                allocator: images(|name, image| !name.is_empty() && image.contains(&malloc) && !others(image)),
                acquire: code_of(c"PyThread_acquire_lock_timed")?,
                has_lock: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(has_lock),
                save: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *mut c_void>(save),
                restore: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(restore),
            })
        }
    });
}

impl Interpreter {
    /// Whether the address is in the interpreter's code or data.
    pub(crate) fn contains(&self, address: usize) -> bool {
        self.image.contains(&address)
    }

    /// Whether the address is in an allocator library.
    pub(crate) fn is_of_allocator(&self, address: usize) -> bool {
        self.allocator.iter().any(|image| image.contains(&address))
    }

    /// Whether the address is in the interpreter's code or in an extension module of the standard library.
    fn is_pythons(&self, address: usize) -> bool {
        /// Folder of the standard library's extension modules.
        const EXTENSIONS: &str = "/lib-dynload/";
        let file = || stack::library_of(address)?.file.to_str().ok();
        self.contains(address) || file().is_some_and(|file| file.contains(EXTENSIONS))
    }

    /// Whether the calling thread holds the lock.
    pub(crate) fn has_lock(&self) -> bool {
        // SAFETY: `PyGILState_Check` may be called on any thread at any time.
        unsafe { (self.has_lock)() != 0 }
    }

    /// Whether a clock read serves a lock. `from` is the caller's address, which is on the stack at `stack`.
    pub(crate) fn locks(&self, from: usize, stack: usize) -> bool {
        !self.has_lock() || self.acquire.contains(&from) || self.acquire.contains(&stack::caller_of(from, stack))
    }

    /// Whether the address is one of torch's own libraries.
    pub(crate) fn is_of_torch(&self, address: usize) -> bool {
        self.torch.iter().any(|image| image.contains(&address))
    }

    /// Whether torch itself reads the clock while it holds the lock: for its counters of waits, and for its profiler.
    pub(crate) fn torch_looks(&self, from: usize, stack: usize) -> bool {
        let is_of_cpp = |address| self.cpp.iter().any(|image| image.contains(&address));
        // `std::chrono` may be between, in the C++ library: its frames have constant sizes. Frames of other libraries
        // are not inspected.
        let calls = |from| is_of_cpp(from) && self.is_of_torch(stack::caller_of(from, stack));
        (self.is_of_torch(from) || calls(from)) && self.has_lock()
    }

    /// Runs `work` while the lock, which the calling thread holds, is released.
    pub(crate) fn without_lock<T>(&self, work: impl FnOnce() -> T) -> T {
        // SAFETY: the thread holds the lock, and its state is restored.
        unsafe {
            let state = (self.save)();
            let result = work();
            (self.restore)(state);
            result
        }
    }
}

/// Whether the calling thread holds the interpreter's lock or may wait for the lock. A thread may wait if the
/// interpreter itself has called this library without the lock, since the interpreter acquires the lock next. Callers
/// outside of the interpreter may hold another lock, for which the holder of the interpreter's lock waits.
pub(crate) fn may_ask() -> bool {
    get().is_some_and(|interpreter| interpreter.has_lock() || interpreter.is_pythons(stack::outer_caller()))
}

/// The code of a function of the interpreter.
fn code_of(name: &CStr) -> Option<Range<usize>> {
    /// Requests the symbol table entry from `dladdr1` (glibc's dlfcn.h).
    const SYMBOL: c_int = 1;
    let mut symbol = std::ptr::null::<libc::Elf64_Sym>();
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: the name ends with a zero; the linker fills the structures.
    let start = unsafe {
        let start = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        dladdr1(start, found.as_mut_ptr(), (&raw mut symbol).cast(), SYMBOL);
        start as usize
    };
    // SAFETY: null, or an entry of the linker.
    let size = unsafe { symbol.as_ref() }?.st_size as usize;
    Some(start..start + size)
}

unsafe extern "C" {
    fn dladdr1(address: *const c_void, info: *mut libc::Dl_info, extra: *mut *mut c_void, flags: c_int) -> c_int;
}

/// The address ranges, including gaps, of those loaded images whose name and addresses `wanted` accepts.
fn images(mut wanted: impl FnMut(&str, &Range<usize>) -> bool) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut look = |name: &str, image: Range<usize>| {
        if wanted(name, &image) {
            found.push(image);
        }
    };
    let mut look: &mut dyn FnMut(&str, Range<usize>) = &mut look;
    // SAFETY: the callback has the declared signature, and `look` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(show), (&raw mut look).cast()) };
    found
}

unsafe extern "C" fn show(info: *mut dl_phdr_info, _: size_t, look: *mut c_void) -> c_int {
    // SAFETY: the linker gives a valid description, and `look` is what `images` has passed.
    let (info, look) = unsafe { (&*info, &mut *look.cast::<&mut dyn FnMut(&str, Range<usize>)>()) };
    // SAFETY: the description has the stated number of headers, and a name or null.
    let (headers, name) = unsafe {
        let name = if info.dlpi_name.is_null() { c"" } else { CStr::from_ptr(info.dlpi_name) };
        (std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)), name)
    };
    let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD).map(|header| {
        let start = info.dlpi_addr as usize + header.p_vaddr as usize;
        (start, start + header.p_memsz as usize)
    });
    if let Some(image) = loaded.reduce(|all, next| (all.0.min(next.0), all.1.max(next.1))) {
        look(&name.to_string_lossy(), image.0..image.1);
    }
    0
}
