//! Owns modules: binaries that programs load at run time, as Triton does, and the kernels and variables in them.
//!
//! A binary (cubin) is an ELF file. Sections `.nv.info` contain the resource needs of kernels, in records that NVIDIA
//! does not document; their numbers are those that `cuobjdump -elf` prints. Only the following records are read.

use super::{Needs, add};
use crate::device::THREADS_OF_BLOCK;
use crate::errors::{INVALID_SYMBOL, INVALID_VALUE, NOT_FOUND, Status};
use crate::memory;
use object::LittleEndian as LE;
use object::elf::{FileHeader64, SHT_NOBITS, STT_FUNC, STT_OBJECT};
use object::read::elf::{FileHeader, SectionHeader, Sym};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::sync::{Mutex, PoisonError};

/// Records of `.nv.info`: registers and stack size of a symbol; maximum block size of a kernel.
const REGISTERS: u8 = 0x2f;
const FRAME: u8 = 0x11;
const MAX_THREADS: u8 = 0x05;

/// On compute capability 9.0 and later, the driver reserves the first bytes of each block's shared memory. The section
/// of a kernel includes these bytes, `cuFuncGetAttribute` does not, as `ptxas --verbose` shows. A section of this name,
/// empty or not, marks such binaries.
const DRIVERS: &str = ".nv.shared.reserved.0";
const DRIVERS_SHARED: u32 = 1024;

static MODULES: Mutex<BTreeMap<usize, Module>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct Module {
    /// Kernels by name. `None`: unknown, because the module was not compiled for a device; any name is one of its
    /// kernels.
    kernels: Option<BTreeMap<Box<str>, Needs>>,
    /// Sizes of the module's variables, by name.
    variables: BTreeMap<Box<str>, usize>,
    /// Handles of kernels that were requested.
    handles: BTreeMap<Box<str>, usize>,
    /// Addresses of variables that were requested.
    addresses: BTreeMap<Box<str>, usize>,
}

/// Loads a module from memory and returns its handle.
pub(crate) fn load(image: *const u8) -> Result<usize, Status> {
    if image.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: every image format that CUDA accepts starts with at least 4 bytes.
    let is_elf = unsafe { std::slice::from_raw_parts(image, 4) } == b"\x7fELF";
    let module = if is_elf {
        // SAFETY: CUDA requires that the program passes a complete image, which starts as an ELF file.
        read(unsafe { file(image) }).ok_or(200)?
    } else {
        Module::default()
    };
    let mut modules = MODULES.lock().unwrap_or_else(PoisonError::into_inner);
    let handle = modules.last_key_value().map_or(0x63 << 40, |(last, _)| last + 16);
    modules.insert(handle, module);
    Ok(handle)
}

/// Unloads a module. Handles of its kernels stay valid.
pub(crate) fn unload(module: usize) -> Result<(), Status> {
    let module = MODULES.lock().unwrap_or_else(PoisonError::into_inner).remove(&module).ok_or(INVALID_VALUE)?;
    module.addresses.into_values().try_for_each(memory::free)
}

/// Handle of a module's kernel.
pub(crate) fn function(module: usize, name: &CStr) -> Result<usize, Status> {
    let mut modules = MODULES.lock().unwrap_or_else(PoisonError::into_inner);
    let module = modules.get_mut(&module).ok_or(INVALID_VALUE)?;
    let text = name.to_str().map_err(|_| NOT_FOUND)?;
    if let Some(handle) = module.handles.get(text) {
        return Ok(*handle);
    }
    let needs = match &module.kernels {
        Some(kernels) => *kernels.get(text).ok_or(NOT_FOUND)?,
        None => Needs::default(),
    };
    let handle = add(name, needs);
    module.handles.insert(text.into(), handle);
    Ok(handle)
}

/// Names of all kernels of a module, sorted.
pub(crate) fn names(module: usize) -> Result<Vec<CString>, Status> {
    let modules = MODULES.lock().unwrap_or_else(PoisonError::into_inner);
    let kernels = modules.get(&module).ok_or(INVALID_VALUE)?.kernels.as_ref().ok_or(INVALID_VALUE)?;
    Ok(kernels.keys().filter_map(|name| CString::new(&**name).ok()).collect())
}

/// Address and size of a module's variable on a device.
pub(crate) fn variable(module: usize, name: &str, device: usize) -> Result<(usize, usize), Status> {
    let mut modules = MODULES.lock().unwrap_or_else(PoisonError::into_inner);
    let module = modules.get_mut(&module).ok_or(INVALID_SYMBOL)?;
    let bytes = *module.variables.get(name).ok_or(NOT_FOUND)?;
    let at = match module.addresses.get(name) {
        Some(at) => *at,
        None => *module.addresses.entry(name.into()).or_insert(memory::allocate(device, bytes)?),
    };
    Ok((at, bytes))
}

/// The bytes of an ELF file: it ends with its last section or header table.
///
/// # Safety
/// `image` must be the start of a complete 64-bit ELF file.
unsafe fn file<'a>(image: *const u8) -> &'a [u8] {
    // SAFETY: `load` passes a complete ELF file; the 64-byte header states where its tables are.
    unsafe {
        let header = &*image.cast::<FileHeader64<LE>>();
        let (start, count) = (header.e_shoff.get(LE) as usize, usize::from(header.e_shnum.get(LE)));
        let sections = std::slice::from_raw_parts(image.add(start).cast::<object::elf::SectionHeader64<LE>>(), count);
        let contents = sections.iter().filter(|section| section.sh_type.get(LE) != SHT_NOBITS);
        let last =
            contents.map(|section| (section.sh_offset.get(LE) + section.sh_size.get(LE)) as usize).max().unwrap_or(0);
        let segments = header.e_phoff.get(LE) as usize + usize::from(header.e_phnum.get(LE)) * 56;
        std::slice::from_raw_parts(image, last.max(start + count * 64).max(segments))
    }
}

/// Reads an ELF file; `None` if its format is invalid.
fn read(data: &[u8]) -> Option<Module> {
    let header = FileHeader64::<LE>::parse(data).ok()?;
    let sections = header.sections(LE, data).ok()?;
    let symbols = sections.symbols(LE, data, object::elf::SHT_SYMTAB).ok()?;
    let name_of = |index: u32| {
        symbols.symbol(object::SymbolIndex(index as usize)).ok().and_then(|s| symbols.symbol_name(LE, s).ok())
    };
    let mut kernels: BTreeMap<Box<str>, Needs> = BTreeMap::new();
    let mut variables = BTreeMap::new();
    for symbol in symbols.iter() {
        let Some(name) = symbols.symbol_name(LE, symbol).ok().and_then(|name| std::str::from_utf8(name).ok()) else {
            continue;
        };
        match symbol.st_type() {
            // Only kernels have sections named after them. Device functions have them as well, but programs do not
            // request these.
            STT_FUNC => drop(
                kernels.insert(name.into(), Needs { registers: 0, shared: 0, local: 0, threads: THREADS_OF_BLOCK }),
            ),
            STT_OBJECT => drop(variables.insert(name.into(), symbol.st_size(LE) as usize)),
            _ => {}
        }
    }
    let drivers = sections.section_by_name(LE, DRIVERS.as_bytes()).map_or(0, |_| DRIVERS_SHARED);
    for section in sections.iter() {
        let Some(name) = sections.section_name(LE, section).ok().and_then(|name| std::str::from_utf8(name).ok()) else {
            continue;
        };
        if let Some(kernel) = name.strip_prefix(".nv.shared.").and_then(|kernel| kernels.get_mut(kernel)) {
            kernel.shared = (section.sh_size(LE) as u32).saturating_sub(drivers);
        }
        let Some(of) = name.strip_prefix(".nv.info") else { continue };
        for (attribute, value) in records(section.data(LE, data).ok()?) {
            let number = |at: usize| {
                value.get(4 * at..4 * at + 4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("4 bytes")))
            };
            let named = number(0).and_then(name_of).and_then(|name| std::str::from_utf8(name).ok());
            match (attribute, of.strip_prefix('.')) {
                (REGISTERS, _) => named.and_then(|name| kernels.get_mut(name))?.registers = number(1)?,
                (FRAME, _) => named.and_then(|name| kernels.get_mut(name))?.local = number(1)?,
                (MAX_THREADS, Some(kernel)) => kernels.get_mut(kernel)?.threads = number(0)? * number(1)? * number(2)?,
                _ => {}
            }
        }
    }
    Some(Module { kernels: Some(kernels), variables, ..Module::default() })
}

/// Attribute and value of each record: a byte for the format, a byte for the attribute, two bytes for a value or, in
/// format 4, for the length of a value.
fn records(mut data: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (head, rest) = data.split_at_checked(4)?;
        let length = if head[0] == 4 { usize::from(u16::from_le_bytes([head[2], head[3]])) } else { 0 };
        let (value, rest) = rest.split_at_checked(length)?;
        data = rest;
        Some((head[1], value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::write::{Object, Symbol, SymbolSection};
    use object::{Architecture, BinaryFormat, Endianness, SectionKind, SymbolFlags, SymbolKind, SymbolScope};

    /// Format 3 has its value in the record; format 4 with 8 bytes says that symbol 5 has 32 registers.
    #[test]
    fn records_of_both_forms_are_read() {
        let data = [3, 0x19, 16, 0, 4, REGISTERS, 8, 0, 5, 0, 0, 0, 32, 0, 0, 0, 4, FRAME, 99, 0];
        let read: Vec<_> = records(&data).collect();
        assert_eq!(read, [(0x19, &[][..]), (REGISTERS, &[5, 0, 0, 0, 32, 0, 0, 0][..])]);
    }

    /// Sections as `ptxas` writes them for a kernel with 256 bytes of its own and one with none, for capability 8.9 and
    /// for 9.0.
    #[test]
    fn shared_memory_of_the_driver_is_not_the_kernels() {
        let needs = |drivers: &[(&str, u64)], own: u64| {
            let mut written = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
            let code = written.add_section(vec![], b".text.k".to_vec(), SectionKind::Text);
            let symbol = Symbol {
                name: b"k".to_vec(),
                value: 0,
                size: 0,
                kind: SymbolKind::Text,
                scope: SymbolScope::Linkage,
                weak: false,
                section: SymbolSection::Section(code),
                flags: SymbolFlags::None,
            };
            written.add_symbol(symbol);
            for (name, bytes) in drivers.iter().copied().chain([(".nv.shared.k", own)]) {
                let section = written.add_section(vec![], name.into(), SectionKind::UninitializedData);
                written.append_section_bss(section, bytes, 16);
            }
            let module = load(written.write().unwrap().as_ptr()).unwrap();
            super::super::find(function(module, c"k").unwrap()).unwrap().needs.shared
        };
        assert_eq!([needs(&[], 256), needs(&[], 0)], [256, 0]);
        assert_eq!([needs(&[(DRIVERS, 0)], 1280), needs(&[(DRIVERS, 64)], 1024)], [256, 0]);
    }

    #[test]
    fn what_is_no_elf_file_has_kernels_of_any_name() {
        let module = load(c".version 9.0".as_ptr().cast()).unwrap();
        let handle = function(module, c"add").unwrap();
        assert_eq!(function(module, c"add"), Ok(handle));
        assert_eq!(super::super::find(handle).unwrap().needs, Needs::default());
    }
}
