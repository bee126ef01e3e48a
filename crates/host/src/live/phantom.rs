//! Owns the libraries that let torch's CUDA code run without a GPU: the library of simulated GPUs is loaded before
//! torch, under the names of NVIDIA's libraries.
//!
//! The dynamic linker identifies a loaded library by its name (`DT_SONAME`), whatever its path. For this reason there
//! is an empty library for each of NVIDIA's names, which depends on the library of simulated GPUs and has no contents;
//! one more library depends on all of them, and is preloaded by the zygote. The libraries are written for each run, as
//! they are a few hundred bytes.

use crate::error::HostError;
use crate::symbols::{self, Torch};
use object::elf::{
    DT_HASH, DT_NEEDED, DT_NULL, DT_SONAME, DT_STRSZ, DT_STRTAB, DT_SYMENT, DT_SYMTAB, EM_AARCH64, EM_X86_64, ET_DYN,
    PF_R, PF_W, PT_DYNAMIC, PT_GNU_STACK, PT_LOAD,
};
use serde::Serialize;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use uniference_abi::gpus::{DEVICES, LIBRARY, NAMED, PRELOAD, SONAMES};

/// A simulated GPU, as a rank's process is told of it: [`uniference_abi::gpus::Device`] in JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gpu {
    /// The GPU's name in the CUDA driver.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// Size of the memory in bytes.
    pub memory: u64,
    /// Bytes of memory that a process's context occupies.
    pub context: u64,
    /// Bandwidth of the memory in bytes per second.
    pub bandwidth: u64,
    /// Highest clock of the multiprocessors in kHz.
    pub clock: u32,
    /// Clock of the memory in kHz.
    pub memory_clock: u32,
    /// Width of the memory's bus in bits.
    pub memory_bus: u32,
    /// Size of the second-level cache in bytes.
    pub l2: u64,
    /// PCI domain, bus and device.
    pub pci: (u32, u32, u32),
    /// Identifier, unique in a run.
    pub uuid: [u8; 16],
    /// Whether the GPU can access the memory of other GPUs on its host.
    pub reaches_peers: bool,
}

/// Libraries to preload. Their folder is removed when this is dropped; the folder of a killed command is removed by the
/// next command.
pub struct Libraries {
    folder: TempDir,
    /// A lock that is held while the folder is in use.
    _lock: File,
}

/// Name prefix of the folders in the temporary folder; `LOCK`: the locked file in each of them.
const FOLDERS: &str = "uniference-gpus-";
const LOCK: &str = "lock";

impl Libraries {
    /// Writes the libraries, for the library of simulated GPUs in `package` and an installed torch.
    pub fn write(package: &Path, torch: &Torch) -> Result<Libraries, HostError> {
        let library = package.join(LIBRARY);
        if !library.exists() {
            let what = format!("simulated GPUs need {}, which is not there", library.display());
            let hint = "install uniference again: pip install --force-reinstall uniference (in a checkout: make setup)";
            return Err(HostError::Host { what, hint: hint.into() });
        }
        symbols::check(&library, torch)?;
        remove_abandoned(&std::env::temp_dir());
        let folder = tempfile::Builder::new().prefix(FOLDERS).permissions(fs::Permissions::from_mode(0o700)).tempdir();
        let folder = folder.map_err(HostError::system("creating a temporary folder"))?;
        let lock = locked(folder.path()).map_err(HostError::system("locking a temporary folder"))?;
        let libraries = Libraries { folder, _lock: lock };
        let mut needed = vec![library];
        let named = libraries.folder.path().join(NAMED);
        fs::create_dir(&named).map_err(HostError::system("creating a temporary folder"))?;
        for soname in SONAMES {
            let path = libraries.folder.path().join(file_name(soname));
            let contents = elf(soname.as_bytes(), &[LIBRARY.as_bytes()]);
            write(&path, &contents)?;
            write(&named.join(soname), &contents)?;
            needed.push(path);
        }
        let needed: Vec<&[u8]> = needed.iter().map(|path| path.as_os_str().as_bytes()).collect();
        write(&libraries.preload(), &elf(b"uniference-gpus.so", &needed))?;
        Ok(libraries)
    }

    /// Environment variables for the zygote.
    pub fn environment(&self) -> [(&'static str, OsString); 3] {
        [(DEVICES, "0".into()), (PRELOAD, self.preload().into()), ("TRITON_LIBCUDA_PATH", self.folder.path().into())]
    }

    /// The library that depends on all others.
    pub fn preload(&self) -> PathBuf {
        self.folder.path().join("uniference-gpus.so")
    }
}

/// Creates the folder's lock file, which becomes visible only once it is locked.
fn locked(folder: &Path) -> io::Result<File> {
    let unseen = folder.join("unlocked");
    let file = File::create(&unseen)?;
    file.lock()?;
    fs::rename(unseen, folder.join(LOCK))?;
    Ok(file)
}

/// Removes folders of commands that were killed.
fn remove_abandoned(temporary: &Path) {
    for entry in fs::read_dir(temporary).into_iter().flatten().flatten() {
        let is_abandoned = || File::open(entry.path().join(LOCK)).is_ok_and(|file| file.try_lock().is_ok());
        if entry.file_name().as_bytes().starts_with(FOLDERS.as_bytes()) && is_abandoned() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Triton searches for `libcuda.so.1` in the folder `TRITON_LIBCUDA_PATH`; torch assumes that the real libraries are
/// loaded if `libcudart.so` is among the process's mapped files.
fn file_name(soname: &str) -> String {
    if soname == "libcuda.so.1" {
        soname.to_owned()
    } else {
        format!("uniference-{}", soname.trim_start_matches("lib"))
    }
}

fn write(path: &Path, contents: &[u8]) -> Result<(), HostError> {
    let hint = "free some space, or name another folder: TMPDIR=/somewhere";
    fs::write(path, contents).map_err(|source| HostError::File { action: "write", path: path.to_owned(), source, hint })
}

/// An empty shared library named `soname` that depends on the libraries `needed`.
fn elf(soname: &[u8], needed: &[&[u8]]) -> Vec<u8> {
    const HEADER: usize = 64;
    const SEGMENT: usize = 56;
    const SEGMENTS: usize = 3;
    // A symbol table is required: it has the null symbol only, with a hash table of one empty bucket.
    let hash: [u32; 4] = [1, 1, 0, 0];
    let symbols = [0; 24];
    let mut strings = vec![0];
    let mut string = |text: &[u8]| {
        let at = strings.len() as u64;
        strings.extend_from_slice(text);
        strings.push(0);
        at
    };
    let names: Vec<(i64, u64)> = std::iter::once((DT_SONAME.0, string(soname)))
        .chain(needed.iter().map(|name| (DT_NEEDED.0, string(name))).collect::<Vec<_>>())
        .collect();
    let hash_at = HEADER + SEGMENTS * SEGMENT;
    let symbols_at = hash_at + 16;
    let strings_at = symbols_at + symbols.len();
    let dynamic_at = (strings_at + strings.len()).next_multiple_of(8);
    let tables = [
        (DT_HASH.0, hash_at as u64),
        (DT_SYMTAB.0, symbols_at as u64),
        (DT_SYMENT.0, symbols.len() as u64),
        (DT_STRTAB.0, strings_at as u64),
        (DT_STRSZ.0, strings.len() as u64),
        (DT_NULL.0, 0),
    ];
    let dynamic: Vec<u8> =
        names.iter().chain(&tables).flat_map(|(tag, value)| [*tag as u64, *value]).flat_map(u64::to_le_bytes).collect();
    let end = (dynamic_at + dynamic.len()) as u64;

    let machine = if cfg!(target_arch = "aarch64") { EM_AARCH64 } else { EM_X86_64 };
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    file.extend(ET_DYN.0.to_le_bytes().into_iter().chain(machine.0.to_le_bytes()).chain(1u32.to_le_bytes()));
    // No entry point; the segments after this header; no sections; no flags.
    file.extend([0, HEADER as u64, 0].into_iter().flat_map(u64::to_le_bytes).chain([0; 4]));
    file.extend([HEADER, SEGMENT, SEGMENTS, 64, 0, 0].into_iter().flat_map(|n| (n as u16).to_le_bytes()));
    // The linker writes to the dynamic section. The last segment declares that the stack need not be executable.
    let (start, dynamic_at) = (0, dynamic_at as u64);
    for (kind, at, bytes, align) in [
        (PT_LOAD.0, start, end, 0x1000),
        (PT_DYNAMIC.0, dynamic_at, dynamic.len() as u64, 8),
        (PT_GNU_STACK.0, 0, 0, 16),
    ] {
        file.extend(kind.to_le_bytes().into_iter().chain((PF_R.0 | PF_W.0).to_le_bytes()));
        file.extend([at, at, at, bytes, bytes, align].into_iter().flat_map(u64::to_le_bytes));
    }
    file.extend(hash.into_iter().flat_map(u32::to_le_bytes).chain(symbols).chain(strings));
    file.resize(dynamic_at as usize, 0);
    file.extend(dynamic);
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::LittleEndian as LE;
    use object::read::elf::{Dyn, FileHeader, ProgramHeader};

    #[test]
    fn an_empty_library_has_its_name_and_what_it_needs() {
        let file = elf(b"libcuda.so.1", &[b"liba.so", b"/b/libb.so"]);
        let header = object::elf::FileHeader64::<LE>::parse(&*file).unwrap();
        let segments = header.program_headers(LE, &*file).unwrap();
        let load = segments.iter().find(|segment| segment.p_type(LE) == PT_LOAD).unwrap();
        assert_eq!((load.p_offset(LE), load.p_filesz(LE)), (0, file.len() as u64));
        let dynamic = segments.iter().find_map(|segment| segment.dynamic(LE, &*file).unwrap()).unwrap();
        let value = |tag| dynamic.iter().find(|entry| entry.d_tag(LE) == tag).unwrap().d_val(LE) as usize;
        let strings = &file[value(DT_STRTAB)..][..value(DT_STRSZ)];
        let text = |at: usize| strings[at..].split(|byte| *byte == 0).next().unwrap();
        assert_eq!(text(value(DT_SONAME)), b"libcuda.so.1");
        let needed: Vec<&[u8]> =
            dynamic.iter().filter(|e| e.d_tag(LE) == DT_NEEDED).map(|e| text(e.d_val(LE) as usize)).collect();
        assert_eq!(needed, [&b"liba.so"[..], b"/b/libb.so"]);
    }

    #[test]
    fn no_file_is_taken_for_the_real_runtime() {
        assert!(SONAMES.iter().all(|soname| !file_name(soname).contains("libcudart.so")));
    }

    #[test]
    fn folders_of_killed_commands_are_removed_and_others_are_not() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let path = temporary.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let (left, used) = (folder("uniference-gpus-a"), folder("uniference-gpus-b"));
        let (beginning, foreign) = (folder("uniference-gpus-c"), folder("another"));
        fs::write(left.join(LOCK), "").unwrap();
        fs::write(foreign.join(LOCK), "").unwrap();
        let _held = locked(&used).unwrap();
        remove_abandoned(temporary.path());
        assert_eq!([&left, &used, &beginning, &foreign].map(|path| path.exists()), [false, true, true, true]);
    }

    #[test]
    fn a_missing_library_is_an_error_with_a_hint() {
        let torch = Torch { folder: PathBuf::new(), version: "2.15.0".to_owned() };
        let error = Libraries::write(Path::new("/nowhere"), &torch).err().unwrap().to_string();
        assert!(error.contains("/nowhere/libuniference_phantom.so") && error.contains("hint:"), "{error}");
    }
}
