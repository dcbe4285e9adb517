//! The C interface of `text_template`.

use crate::abi::{guard, write_string, RtSlice, RtString};
use crate::text_template::TextTemplate;

/// `names_json`: a list of the names of values.
/// # Safety
/// Slices are readable, the rest writable.
#[no_mangle]
pub unsafe extern "C" fn rt_text_template_open(
    source: RtSlice,
    names_json: RtSlice,
    out: *mut *mut TextTemplate,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        let names = names_json.text("the template's names")?;
        let opened = TextTemplate::open(source.text("the template")?, names)?;
        *out = Box::into_raw(Box::new(opened));
        Ok(())
    })
}

/// # Safety
/// `template` came from `rt_text_template_open` and is freed once.
#[no_mangle]
pub unsafe extern "C" fn rt_text_template_free(template: *mut TextTemplate) {
    if !template.is_null() {
        drop(Box::from_raw(template));
    }
}

/// # Safety
/// `template` is open, `variables_json` readable, the rest writable.
#[no_mangle]
pub unsafe extern "C" fn rt_text_template_render(
    template: *const TextTemplate,
    variables_json: RtSlice,
    out: *mut RtString,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        let text = (*template).render(variables_json.text("the template's variables")?)?;
        write_string(out, text.into_bytes());
        Ok(())
    })
}
