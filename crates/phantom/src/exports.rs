//! Owns the export of functions to C: the macro `exports`, and parameter types that need no `unsafe` in the functions.
//!
//! A pointer for a result is an [`Out`], a pointer to a structure `Option<&T>`, a string [`Text`]: each is a C pointer,
//! which may be null.

use crate::errors::{INVALID_VALUE, Status};
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

/// Declares exported functions as a table:
///
/// ```ignore
/// exports! {
///     /// Effect, if the name does not state it.
///     fn cudaGetDeviceCount(count: Out<c_int>) -> Status { count.put(device::count()) }
/// }
/// ```
macro_rules! exports {
    ($($(#[$meta:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => {
        $(
            $(#[$meta])*
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $type),*) $(-> $result)? $body
        )*
    };
}
pub(crate) use exports;

/// Declares exported functions that differ only by element type: a name and its value for each, then the common body.
///
/// ```ignore
/// family! { cublasSdot_v2 F32, cublasDdot_v2 F64; kind => (handle: Of, n: c_int) -> Status { dot(handle, kind, n) } }
/// ```
macro_rules! family {
    (@one $name:ident ($($argument:ident: $type:ty),* $(,)?) -> $result:ty; $body:block) => {
        $crate::exports::exports! { fn $name($($argument: $type),*) -> $result $body }
    };
    ($($name:ident $value:expr),+ $(,)?; $kind:ident => $arguments:tt -> $result:ty $body:block) => {
        $($crate::exports::family! { @one $name $arguments -> $result; { let $kind = $value; $body } })+
    };
}
pub(crate) use family;

/// A pointer to which a result is written, or null.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Operations of an [`Out`].
pub(crate) trait Put<T> {
    /// Writes the result; false if the pointer is null.
    fn put(self, value: T) -> bool;

    /// Writes the result for functions of the runtime and the driver: `INVALID_VALUE` if the pointer is null.
    fn give(self, value: T) -> Result<(), Status>;
}

impl<T> Put<T> for Out<'_, T> {
    fn put(self, value: T) -> bool {
        self.map(|place| place.write(value)).is_some()
    }

    fn give(self, value: T) -> Result<(), Status> {
        if self.put(value) { Ok(()) } else { Err(INVALID_VALUE) }
    }
}

/// A C string, or null.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// The text; `None` if it is null or not UTF-8.
    pub(crate) fn get(&self) -> Option<&str> {
        self.bytes().and_then(|text| text.to_str().ok())
    }

    /// The bytes of the text; `None` if it is null.
    pub(crate) fn bytes(&self) -> Option<&CStr> {
        // SAFETY: C callers pass values of this type only as arguments: strings that live as long as the call.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) })
    }
}

/// A C array whose length is another argument, or null.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Items<T>(*mut T);

impl<T: Copy> Items<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The first `count` elements; none if the array is null.
    pub(crate) fn read(&self, count: usize) -> &[T] {
        // SAFETY: C callers pass values of this type only as arguments, with their length, and keep the array valid
        // during the call.
        if self.0.is_null() || count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.0, count) } }
    }

    /// Writes `values` to the array.
    pub(crate) fn write(self, values: &[T]) -> Result<(), Status> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: C callers keep the array valid during the call, and it has space for as many values as its length
        // argument.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.0, values.len()) };
        Ok(())
    }
}

impl Items<c_char> {
    /// Writes a string with its terminating zero byte into `room` bytes.
    pub(crate) fn write_text(self, text: &str, room: usize) -> Result<(), Status> {
        let fits = text.len().min(room.checked_sub(1).ok_or(INVALID_VALUE)?);
        let bytes: Vec<c_char> = text.bytes().take(fits).chain([0]).map(|byte| byte as c_char).collect();
        self.write(&bytes)
    }
}
