//! What crosses the C ABI: borrowed and owned bytes, their release, errors and panics as a status.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;

/// Bytes owned by this library.
#[repr(C)]
pub struct RtString {
    data: *mut u8,
    len: usize,
}

/// Borrowed bytes; a null `data` with `len` 0 means "absent" where the function allows it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RtSlice {
    data: *const u8,
    len: usize,
}

impl RtSlice {
    /// # Safety
    /// `data` points to `len` readable bytes, or `len` is 0.
    pub unsafe fn bytes(&self) -> &[u8] {
        borrowed(self.data, self.len)
    }

    pub unsafe fn optional(&self) -> Option<&[u8]> {
        if self.data.is_null() {
            None
        } else {
            Some(self.bytes())
        }
    }

    pub unsafe fn text(&self, what: &str) -> Result<&str, String> {
        utf8(self.bytes(), what)
    }
}

/// The array that a C caller lends.
/// # Safety
/// `data` points to `len` readable items, or `len` is 0.
pub unsafe fn borrowed<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if len == 0 {
        &[]
    } else {
        slice::from_raw_parts(data, len)
    }
}

pub fn utf8<'a>(bytes: &'a [u8], what: &str) -> Result<&'a str, String> {
    std::str::from_utf8(bytes)
        .map_err(|e| format!("{what} is not UTF-8 (first bad byte at {})", e.valid_up_to()))
}

/// Gives the items to the C caller; `unleak` takes them back with the same length.
pub fn leak<T>(items: Vec<T>) -> (*mut T, usize) {
    let boxed = items.into_boxed_slice();
    let len = boxed.len();
    (Box::into_raw(boxed) as *mut T, len)
}

/// # Safety
/// `data` is null, or `leak` returned it with `len` and it is freed once.
pub unsafe fn unleak<T>(data: *mut T, len: usize) {
    if !data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(data, len)));
    }
}

/// # Safety
/// `out` is writable.
pub unsafe fn write_string(out: *mut RtString, bytes: Vec<u8>) {
    let (data, len) = leak(bytes);
    *out = RtString { data, len };
}

/// Runs `body`: 0 when done, 1 with its message in `error`, 2 with that of a panic.
/// # Safety
/// `error` is writable.
pub unsafe fn guard(error: *mut RtString, body: impl FnOnce() -> Result<(), String>) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(message)) => {
            write_string(error, message.into_bytes());
            1
        }
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("unknown");
            write_string(error, format!("the text library panicked: {text}").into_bytes());
            2
        }
    }
}

/// # Safety
/// `text` came from this library and is freed once.
#[no_mangle]
pub unsafe extern "C" fn rt_string_free(text: RtString) {
    unleak(text.data, text.len);
}
