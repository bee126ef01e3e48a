//! Owns the check that the library of simulated GPUs has every function of NVIDIA's libraries that an installed PyTorch
//! binds. The check compares the symbol tables of both, and loads nothing.

use crate::error::HostError;
use memmap2::Mmap;
use object::{Object, ObjectSymbol};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use uniference_abi::gpus::SONAMES;

/// NVIDIA's compiler library, which torch may still load: it uses no device.
const KEPT: &str = "libnvrtc.so";

/// An installed PyTorch.
#[derive(Clone, Debug)]
pub struct Torch {
    /// The folder of the torch package.
    pub folder: PathBuf,
    /// Version of the package: "2.15.0+cu132".
    pub version: String,
}

/// Symbols of NVIDIA's libraries that torch binds.
#[derive(Debug, Default)]
pub struct Bound {
    /// Names of functions.
    pub functions: BTreeSet<String>,
    /// Names of libraries that the library of simulated GPUs does not replace.
    pub libraries: BTreeSet<String>,
    /// Functions that the library of simulated GPUs lacks.
    pub missing: BTreeSet<String>,
}

/// Compares the symbols that torch's libraries bind with the exports of `phantom`.
pub fn compare(phantom: &Path, torch: &Torch) -> io::Result<Bound> {
    let map = map(phantom)?;
    let exported = parse(&map, phantom)?;
    let exported: BTreeSet<&str> = exported
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition())
        .filter_map(|symbol| symbol.name().ok())
        .collect();
    let mut bound = Bound::default();
    for library in libraries(&torch.folder)? {
        let map = self::map(&library)?;
        let file = parse(&map, &library)?;
        let needed = file.import_libraries().into_iter().flatten().filter_map(Result::ok);
        let needed = needed.filter_map(|needed| str::from_utf8(needed.name()).ok().map(str::to_owned));
        let strange = |name: &String| is_library(name) && !SONAMES.contains(&name.as_str()) && !name.starts_with(KEPT);
        bound.libraries.extend(needed.filter(strange));
        let undefined = file.dynamic_symbols().filter(|symbol| symbol.is_undefined() && !symbol.is_weak());
        let names = undefined.filter_map(|symbol| symbol.name().ok()).filter(|name| is_function(name));
        bound.functions.extend(names.map(str::to_owned));
    }
    bound.missing = bound.functions.iter().filter(|name| !exported.contains(name.as_str())).cloned().collect();
    Ok(bound)
}

/// Refuses a torch without CUDA, or with symbols that the library lacks.
pub fn check(phantom: &Path, torch: &Torch) -> Result<(), HostError> {
    let bound = match compare(phantom, torch) {
        Ok(bound) => bound,
        Err(error) => {
            return Err(HostError::Host {
                what: format!("cannot read the symbols of PyTorch's libraries: {error}"),
                hint: "run `uniference doctor` to see what is missing".to_owned(),
            });
        }
    };
    let Some(what) = bound.problem(torch) else { return Ok(()) };
    let hint = match bound.functions.is_empty() {
        // Pip would otherwise keep a CPU-only package of the same version, and use the same index as before.
        true => format!(
            "install the package of PyPI, which has CUDA: pip install --force-reinstall --index-url https://pypi.org/simple torch=={}; or run without GPUs: --no-cuda",
            torch.version.split('+').next().unwrap_or_default()
        ),
        false => "install a supported version of PyTorch; `uniference doctor` names it".to_owned(),
    };
    Err(HostError::Host { what: format!("GPUs cannot be simulated: {what}"), hint })
}

impl Bound {
    /// The reason why GPUs of this torch cannot be simulated, if there is one.
    pub fn problem(&self, torch: &Torch) -> Option<String> {
        if self.functions.is_empty() && self.libraries.is_empty() {
            return Some(format!("the installed PyTorch, {}, was built without CUDA", torch.version));
        }
        if !self.libraries.is_empty() {
            return Some(format!(
                "the installed PyTorch is built with libraries that simulated GPUs do not stand for: {}",
                list(&self.libraries)
            ));
        }
        let missing = self.missing.len();
        (missing > 0).then(|| {
            format!(
                "{missing} of {} functions of CUDA that PyTorch binds are missing: {}",
                self.functions.len(),
                list(&self.missing)
            )
        })
    }
}

/// The first few names.
fn list(names: &BTreeSet<String>) -> String {
    let shown: Vec<&str> = names.iter().take(5).map(String::as_str).collect();
    let more = if names.len() > shown.len() { ", ..." } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// Whether an undefined name in torch is one of NVIDIA's functions. Torch's own names are mangled.
fn is_function(name: &str) -> bool {
    let name = name.trim_start_matches('_');
    let prefixes =
        ["cublas", "cuda", "cudnn", "cufft", "cupti", "curand", "cusolver", "cusparse", "nccl", "nvml", "nvshmem"];
    prefixes.iter().any(|prefix| name.strip_prefix(prefix).is_some_and(starts_word))
        || name.strip_prefix("cu").is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_uppercase()))
}

/// Whether the rest of a name after a prefix starts a word: `cublasLtMatmul`, `nvshmem_malloc`.
fn starts_word(rest: &str) -> bool {
    rest.trim_start_matches(['x', 'i', 'd']).starts_with(|first: char| first == '_' || first.is_ascii_uppercase())
}

fn is_library(name: &str) -> bool {
    ["libcu", "libnv", "libnccl"].iter().any(|prefix| name.starts_with(prefix))
}

/// Torch's libraries, sorted by name.
fn libraries(torch: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(torch.join("lib"))?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    let mut libraries: Vec<PathBuf> =
        entries.into_iter().filter(|path| path.extension().is_some_and(|it| it == "so")).collect();
    libraries.sort();
    Ok(libraries)
}

#[allow(unsafe_code)]
fn map(path: &Path) -> io::Result<Mmap> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    // SAFETY: the file is not replaced while it is read: packages are installed before the run.
    File::open(path).and_then(|file| unsafe { Mmap::map(&file) }).map_err(named)
}

fn parse<'a>(map: &'a Mmap, path: &Path) -> io::Result<object::File<'a>> {
    object::File::parse(&**map)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_nvidia_are_known_by_their_names() {
        let functions = [
            "cudaMalloc",
            "__cudaRegisterVar",
            "cuLaunchKernel",
            "cublasLtMatmul",
            "nvshmemx_get_uniqueid",
            "nvshmemid_init_status",
        ];
        for name in functions {
            assert!(is_function(name), "{name}");
        }
        for name in [
            "_ZN2at4cuda7blas4gemmE",
            "curl_easy_init",
            "custom",
            "cudaish",
            "ncclish",
            "nvrtcCompileProgram",
            "THPModule_cudaInit",
        ] {
            assert!(!is_function(name), "{name}");
        }
    }

    /// The test executable is used as both libraries: it binds no function of NVIDIA's, like a torch without CUDA.
    #[test]
    fn what_is_missing_is_named() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let test = std::env::current_exe()?;
        fs::create_dir(folder.path().join("lib"))?;
        fs::copy(&test, folder.path().join("lib/libtorch.so"))?;
        let torch = Torch { folder: folder.path().to_owned(), version: "2.15.0+cpu".to_owned() };
        let said = check(&test, &torch).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(
            said.starts_with("GPUs cannot be simulated: the installed PyTorch, 2.15.0+cpu, was built without CUDA")
        );
        assert!(said.contains("hint: ") && said.ends_with("torch==2.15.0; or run without GPUs: --no-cuda"), "{said}");

        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
        let bound =
            Bound { functions: names(&["cudaFree", "cudaMalloc"]), missing: names(&["cudaFree"]), ..Bound::default() };
        assert_eq!(
            bound.problem(&torch).as_deref(),
            Some("1 of 2 functions of CUDA that PyTorch binds are missing: cudaFree")
        );
        let bound =
            Bound { functions: names(&["cudaFree"]), libraries: names(&["libcudart.so.12"]), ..Bound::default() };
        assert!(bound.problem(&torch).is_some_and(|problem| problem.ends_with("do not stand for: libcudart.so.12")));
        Ok(())
    }
}
