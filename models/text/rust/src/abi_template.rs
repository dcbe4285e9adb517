//! The C interface of `template`, and of what `files` reads for it.

use crate::abi::{guard, leak, unleak, write_string, RtSlice, RtString};
use crate::files;
use crate::template::ChatTemplate;

#[repr(C)]
pub struct RtSpans {
    data: *mut u64, // begin, end of each span
    len: usize,
}

/// # Safety
/// `spans` came from this library and is freed once.
#[no_mangle]
pub unsafe extern "C" fn rt_spans_free(spans: RtSpans) {
    unleak(spans.data, spans.len * 2);
}

/// The templates in tokenizer_config.json by their names, as a JSON object of strings.
/// # Safety
/// `config_json` is readable, the rest writable.
#[no_mangle]
pub unsafe extern "C" fn rt_config_templates(
    config_json: RtSlice,
    out: *mut RtString,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        let templates = files::config_templates(config_json.bytes())?;
        write_string(out, templates.to_string().into_bytes());
        Ok(())
    })
}

/// The special tokens of a model folder as the JSON object that `rt_template_open` wants.
/// # Safety
/// Slices are readable, the rest writable.
#[no_mangle]
pub unsafe extern "C" fn rt_special_tokens(
    config_json: RtSlice,
    special_map_json: RtSlice,
    out: *mut RtString,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        let specials = files::Specials::read(config_json.optional(), special_map_json.optional())?;
        write_string(out, specials.variables().to_string().into_bytes());
        Ok(())
    })
}

/// `variables_json`: an object of values (bos_token, ...) that the template sees. `day`: what
/// strftime_now prints, as 2026-11-23; empty: the moment of each rendering.
/// # Safety
/// Slices are readable, the rest writable.
#[no_mangle]
pub unsafe extern "C" fn rt_template_open(
    source: RtSlice,
    variables_json: RtSlice,
    day: RtSlice,
    out: *mut *mut ChatTemplate,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        let source = source.text("the chat template")?;
        let variables = variables_json.text("the template's variables")?;
        let opened = ChatTemplate::open(source, variables, day.text("the template's day")?)?;
        *out = Box::into_raw(Box::new(opened));
        Ok(())
    })
}

/// # Safety
/// `template` came from `rt_template_open` and is freed once.
#[no_mangle]
pub unsafe extern "C" fn rt_template_free(template: *mut ChatTemplate) {
    if !template.is_null() {
        drop(Box::from_raw(template));
    }
}

/// # Safety
/// `template` is open.
#[no_mangle]
pub unsafe extern "C" fn rt_template_has_marks(template: *const ChatTemplate) -> bool {
    (*template).has_marks
}

/// Renders a conversation with `variables_json`, an object of values that this rendering sees
/// before those of `rt_template_open`; the spans are what the template marks. With
/// `assistant_spans` and a template without marks they come from rendering every prefix of the
/// conversation that ends before and after an assistant's message.
/// # Safety
/// `template` is open, slices are readable, the rest writable.
#[no_mangle]
pub unsafe extern "C" fn rt_template_render(
    template: *const ChatTemplate,
    messages_json: RtSlice,
    variables_json: RtSlice,
    add_generation_prompt: bool,
    assistant_spans: bool,
    out: *mut RtString,
    spans: *mut RtSpans,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        let json = messages_json.text("the conversation")?;
        let variables = variables_json.text("the variables of a conversation")?;
        let rendered = if assistant_spans {
            (*template).render_assistant(json, variables)?
        } else {
            (*template).render(json, variables, add_generation_prompt)?
        };

        // Nothing fails from here on: on an error the outputs stay as they were.
        let len = rendered.spans.len();
        let flat = rendered.spans.iter().flat_map(|&(begin, end)| [begin as u64, end as u64]);
        let flat: Vec<u64> = flat.collect();
        write_string(out, rendered.text.into_bytes());
        *spans = RtSpans { data: leak(flat).0, len };
        Ok(())
    })
}
