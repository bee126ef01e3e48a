//! Owns how a function of ours becomes one that C programs find and call: the macro `exports`, and types of arguments that need no `unsafe`
//! where they are used.
//!
//! A pointer to which a result is written is an [`Out`], one from which a structure is read `Option<&T>`, a string [`Text`]: each is a
//! pointer for C, null included.

use crate::errors::{INVALID_VALUE, Status};
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

/// Declares exported functions, one after the other as in a table:
///
/// ```ignore
/// exports! {
///     /// What it does, if the name does not say it.
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

/// Declares exported functions that differ by the type of their elements alone: a name and its value for each, then what they do with it.
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

/// Where a result goes.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// What can be done with an [`Out`].
pub(crate) trait Put<T> {
    /// Writes the result. False: the pointer is null.
    fn put(self, value: T) -> bool;

    /// The same for functions of the runtime and the driver.
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

/// A string of C, which ends with a zero byte, or null.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// `None`: null, or not UTF-8.
    pub(crate) fn get(&self) -> Option<&str> {
        self.bytes().and_then(|text| text.to_str().ok())
    }

    /// The bytes of the text; `None`: a null pointer.
    pub(crate) fn bytes(&self) -> Option<&CStr> {
        // SAFETY: values of this type come as arguments from C only, and live as long as the call.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) })
    }
}

/// An array that C passes with its length apart, or null.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Items<T>(*mut T);

impl<T: Copy> Items<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// `count` of them; none if it is null.
    pub(crate) fn read(&self, count: usize) -> &[T] {
        // SAFETY: values of this type come as arguments from C only, with their length, and live as long as the call.
        if self.0.is_null() || count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.0, count) } }
    }

    /// Writes `values` there.
    pub(crate) fn write(self, values: &[T]) -> Result<(), Status> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the same; the caller says that so many fit.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.0, values.len()) };
        Ok(())
    }
}

impl Items<c_char> {
    /// Writes a string that ends with a zero byte into `room` bytes.
    pub(crate) fn write_text(self, text: &str, room: usize) -> Result<(), Status> {
        let fits = text.len().min(room.checked_sub(1).ok_or(INVALID_VALUE)?);
        let bytes: Vec<c_char> = text.bytes().take(fits).chain([0]).map(|byte| byte as c_char).collect();
        self.write(&bytes)
    }
}
