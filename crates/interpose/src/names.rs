//! Owns the names of threads: from the program, which passes them to the kernel, or from the program's own name.

use crate::{program, real};
use libc::{c_char, c_int, c_ulong, pthread_t};
use std::path::Path;

/// Number of bytes of a name that the kernel keeps.
const LONGEST: usize = 15;

/// Number of words after the program's name that describe its work.
const COMMANDS: usize = 2;

/// Replaces the C library's `prctl`, which uses as many arguments as the operation needs.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(
    operation: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    // SAFETY: `prctl` gets the arguments that its replacement got, under the same contract.
    let result = unsafe { real::prctl()(operation, second, third, fourth, fifth) };
    if operation == libc::PR_SET_NAME && result == 0 {
        // SAFETY: the kernel has read the name up to its zero, or as many bytes as the longest name has.
        unsafe { is_called(second as *const c_char) };
    }
    result
}

/// Replaces the C library's `pthread_setname_np`.
///
/// # Safety
/// The contract is the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_setname_np(thread: pthread_t, name: *const c_char) -> c_int {
    // SAFETY: `pthread_setname_np` gets the arguments that its replacement got, under the same contract.
    let result = unsafe { real::pthread_setname_np()(thread, name) };
    // SAFETY: `pthread_self` has no arguments and no preconditions.
    if result == 0 && thread == unsafe { libc::pthread_self() } {
        // SAFETY: the C library has accepted the name, so it ends with a zero within `LONGEST` bytes.
        unsafe { is_called(name) };
    }
    result
}

/// Reports the name that the program gave to the calling thread.
///
/// # Safety
/// The name ends with a zero, or is at least as long as the longest name.
unsafe fn is_called(name: *const c_char) {
    let Some(client) = program() else { return };
    // SAFETY: at most `LONGEST` bytes are read, and none after the zero.
    let bytes = (0..LONGEST).map(|at| unsafe { *name.add(at) } as u8).take_while(|byte| *byte != 0);
    client.is_called(&String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()));
}

/// The name of this process's program, from its command line.
pub(crate) fn of_program() -> Option<String> {
    let words = std::fs::read("/proc/self/cmdline").ok()?;
    let words: Vec<&str> = words.split(|byte| *byte == 0).map_while(|word| std::str::from_utf8(word).ok()).collect();
    of_words(&words)
}

/// The name of a program from its command line: `vllm serve`; for a Python interpreter, the module or script:
/// `train.py`. Words that differ between runs, such as folders, are left out.
fn of_words(words: &[&str]) -> Option<String> {
    let (program, mut rest) = words.split_first()?;
    let file = |path: &str| Some(Path::new(path).file_name()?.to_str()?.to_owned());
    let mut name = file(program)?;
    if name.starts_with("python") {
        let takes_word = |option: &str| matches!(option, "-W" | "-X");
        while let Some((option, after)) = rest.split_first().filter(|(word, _)| word.starts_with('-')) {
            rest = after;
            match *option {
                "-m" => break,
                "-c" if rest.contains(&"--multiprocessing-fork") => return Some("multiprocessing".to_owned()),
                "-c" => return Some(format!("{name} -c")),
                option if takes_word(option) => rest = rest.get(1..).unwrap_or_default(),
                _ => {}
            }
        }
        if let Some((script, after)) = rest.split_first().filter(|(script, _)| !script.is_empty()) {
            (name, rest) = (file(script)?, after);
        }
    }
    let is_command = |word: &&&str| !word.is_empty() && word.chars().all(|letter| letter.is_ascii_lowercase());
    for word in rest.iter().take_while(is_command).take(COMMANDS) {
        name = format!("{name} {word}");
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn name(words: &str) -> Option<String> {
        of_words(&words.split(' ').collect::<Vec<_>>())
    }

    #[test]
    fn a_program_is_called_by_what_does_not_differ_from_run_to_run() {
        let called = |words: &str, wanted: &str| assert_eq!(name(words).as_deref(), Some(wanted), "{words}");
        called("/usr/bin/vllm serve /tmp/x1 --port 8000", "vllm serve");
        called("/env/bin/python3 -u -m vllm.main bench serve --model /tmp/x1", "vllm.main bench serve");
        called("python -X dev -Werror jobs/train.py", "train.py");
        called("/usr/bin/python3.11 -c from_x_import_main() --multiprocessing-fork", "multiprocessing");
        called("python3 -c print()", "python3 -c");
        called("python3", "python3");
        called("cat /tmp/a", "cat");
        assert_eq!(name(""), None);
    }

    #[test]
    fn threads_are_named_on() {
        let given = c"a-thread";
        let mut kept = [0; 16];
        // SAFETY: names are C strings, and `kept` has 16 bytes, the longest name with its zero.
        unsafe {
            assert_eq!(prctl(libc::PR_SET_NAME, given.as_ptr() as c_ulong, 0, 0, 0), 0);
            assert_eq!(prctl(libc::PR_GET_NAME, kept.as_mut_ptr() as c_ulong, 0, 0, 0), 0);
            assert_eq!(CStr::from_ptr(kept.as_ptr()), given);
            assert_eq!(pthread_setname_np(libc::pthread_self(), c"another".as_ptr()), 0);
            assert_eq!(pthread_setname_np(libc::pthread_self(), c"one that is too long".as_ptr()), libc::ERANGE);
            assert_eq!(prctl(libc::PR_GET_NAME, kept.as_mut_ptr() as c_ulong, 0, 0, 0), 0);
            assert_eq!(CStr::from_ptr(kept.as_ptr()), c"another");
        }
    }
}
