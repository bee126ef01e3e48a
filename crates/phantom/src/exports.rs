//! Owns how a function of ours becomes one that C programs find and call: the macro `exports`, and types of arguments that need no `unsafe`
//! where they are used.
//!
//! A pointer to which a result is written is an [`Out`], one from which a structure is read `Option<&T>`, a string [`Text`]: each is a
//! pointer for C, null included.

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
}

impl<T> Put<T> for Out<'_, T> {
    fn put(self, value: T) -> bool {
        self.map(|place| place.write(value)).is_some()
    }
}

/// A string of C, which ends with a zero byte, or null.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// `None`: null, or not UTF-8.
    pub(crate) fn get(&self) -> Option<&str> {
        // SAFETY: values of this type come as arguments from C only, and live as long as the call.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) }).and_then(|text| text.to_str().ok())
    }
}
