//! What crosses the C ABI: borrowed and owned bytes, their release, errors and panics as a status.

use std::cell::RefCell;
use std::panic::{catch_unwind, set_hook, take_hook, AssertUnwindSafe, PanicHookInfo};
use std::path::Path;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Once;

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

/// How many calls of `guard` are running.
static GUARDED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Where this thread last panicked inside a call.
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

type Hook = Box<dyn Fn(&PanicHookInfo) + Send + Sync>;

/// A hook that prints nothing inside a call, where the error tells all, and leaves other panics to
/// `previous`.
fn quiet(previous: Hook) -> Hook {
    Box::new(move |info| {
        if GUARDED.load(Ordering::SeqCst) == 0 {
            return previous(info);
        }
        let place = info.location().map(|place| {
            let file = Path::new(place.file()).file_name().unwrap_or_default();
            format!(" at {}:{}", file.to_string_lossy(), place.line())
        });
        PLACE.with(|last| *last.borrow_mut() = place.unwrap_or_default());
    })
}

/// Runs `body`, whose panics are for the caller to tell.
fn run_quietly<T>(body: impl FnOnce() -> T) -> std::thread::Result<T> {
    static QUIETED: Once = Once::new();
    QUIETED.call_once(|| set_hook(quiet(take_hook())));
    GUARDED.fetch_add(1, Ordering::SeqCst);
    let done = catch_unwind(AssertUnwindSafe(body));
    GUARDED.fetch_sub(1, Ordering::SeqCst);
    done
}

/// Runs `body`: 0 when done, 1 with its message in `error`, 2 with that of a panic.
/// # Safety
/// `error` is writable.
pub unsafe fn guard(error: *mut RtString, body: impl FnOnce() -> Result<(), String>) -> i32 {
    match run_quietly(body) {
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
            let place = PLACE.with(|last| last.take());
            write_string(error, format!("the text library panicked{place}: {text}").into_bytes());
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_panic_is_told_by_the_error_alone() {
        let printed = Arc::new(AtomicUsize::new(0));
        let count = printed.clone();
        set_hook(quiet(Box::new(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        })));
        let mut error = RtString { data: std::ptr::null_mut(), len: 0 };
        let status = unsafe { guard(&mut error, || panic!("no {}", "letters")) };
        assert_eq!(status, 2);
        let told = unsafe { borrowed(error.data, error.len) };
        let told = utf8(told, "the error").unwrap().to_string();
        unsafe { rt_string_free(error) };
        assert!(told.starts_with("the text library panicked at abi.rs:"), "{told}");
        assert!(told.ends_with(": no letters"), "{told}");
        assert_eq!(printed.load(Ordering::SeqCst), 0);
    }
}
