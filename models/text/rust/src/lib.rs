//! Tokenizers and chat templates behind the C ABI of `../retort_text.h`.
//!
//! Every function returns a status (0 = done, 1 = error, 2 = a panic was caught) and writes an error text on failure.
//! Nothing unwinds into the caller; what a function hands out is freed by the matching `_free`.

mod files;
mod jinja_source;
mod python;
mod template;
mod tokenizer;
mod train;

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

#[repr(C)]
pub struct RtTokens {
    ids: *mut i32,
    offsets: *mut u32, // begin, end of each token; null if not asked for
    len: usize,
}

#[repr(C)]
pub struct RtSpans {
    data: *mut u64, // begin, end of each span
    len: usize,
}

#[repr(C)]
pub struct RtInfo {
    vocab_size: i64,
    eos: i32,
    bos: i32,
    pad: i32,
}

impl RtSlice {
    /// # Safety
    /// `data` points to `len` readable bytes, or `len` is 0.
    unsafe fn bytes(&self) -> &[u8] {
        if self.len == 0 {
            &[]
        } else {
            slice::from_raw_parts(self.data, self.len)
        }
    }
    unsafe fn optional(&self) -> Option<&[u8]> {
        if self.data.is_null() {
            None
        } else {
            Some(self.bytes())
        }
    }
    unsafe fn text(&self, what: &str) -> Result<&str, String> {
        utf8(self.bytes(), what)
    }
}

fn utf8<'a>(bytes: &'a [u8], what: &str) -> Result<&'a str, String> {
    std::str::from_utf8(bytes).map_err(|e| format!("{what} is not UTF-8 (first bad byte at {})", e.valid_up_to()))
}

fn leak<T>(items: Vec<T>) -> (*mut T, usize) {
    let boxed = items.into_boxed_slice();
    let len = boxed.len();
    (Box::into_raw(boxed) as *mut T, len)
}

unsafe fn unleak<T>(data: *mut T, len: usize) {
    if !data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(data, len)));
    }
}

unsafe fn write_string(out: *mut RtString, bytes: Vec<u8>) {
    let (data, len) = leak(bytes);
    *out = RtString { data, len };
}

unsafe fn guard(error: *mut RtString, body: impl FnOnce() -> Result<(), String>) -> i32 {
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

/// # Safety
/// As `rt_string_free`.
#[no_mangle]
pub unsafe extern "C" fn rt_tokens_free(tokens: RtTokens) {
    unleak(tokens.ids, tokens.len);
    unleak(tokens.offsets, tokens.len * 2);
}

/// # Safety
/// As `rt_string_free`.
#[no_mangle]
pub unsafe extern "C" fn rt_spans_free(spans: RtSpans) {
    unleak(spans.data, spans.len * 2);
}

/// # Safety
/// Slices are readable; `out` and `error` are writable.
#[no_mangle]
pub unsafe extern "C" fn rt_tokenizer_open(
    tokenizer_json: RtSlice,
    config_json: RtSlice,
    special_map_json: RtSlice,
    out: *mut *mut tokenizer::TextTokenizer,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        let opened = tokenizer::TextTokenizer::open(
            tokenizer_json.bytes(),
            config_json.optional(),
            special_map_json.optional(),
        )?;
        *out = Box::into_raw(Box::new(opened));
        Ok(())
    })
}

/// # Safety
/// `tokenizer` came from `rt_tokenizer_open` and is freed once.
#[no_mangle]
pub unsafe extern "C" fn rt_tokenizer_free(tokenizer: *mut tokenizer::TextTokenizer) {
    if !tokenizer.is_null() {
        drop(Box::from_raw(tokenizer));
    }
}

/// # Safety
/// `tokenizer` is open.
#[no_mangle]
pub unsafe extern "C" fn rt_tokenizer_info(tokenizer: *const tokenizer::TextTokenizer) -> RtInfo {
    let t = &*tokenizer;
    RtInfo { vocab_size: t.vocab_size, eos: t.eos, bos: t.bos, pad: t.pad }
}

/// # Safety
/// `tokenizer` is open, `text` readable, the rest writable.
#[no_mangle]
pub unsafe extern "C" fn rt_tokenizer_encode(
    tokenizer: *const tokenizer::TextTokenizer,
    text: RtSlice,
    add_special_tokens: bool,
    with_offsets: bool,
    out: *mut RtTokens,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        let text = text.text("the text to encode")?;
        let (ids, offsets) = (*tokenizer).encode(text, add_special_tokens, with_offsets)?;
        let (ids, len) = leak(ids);
        let offsets = if with_offsets { leak(offsets).0 } else { std::ptr::null_mut() };
        *out = RtTokens { ids, offsets, len };
        Ok(())
    })
}

/// # Safety
/// `tokenizer` is open, `ids` points to `len` integers, the rest writable.
#[no_mangle]
pub unsafe extern "C" fn rt_tokenizer_decode(
    tokenizer: *const tokenizer::TextTokenizer,
    ids: *const i32,
    len: usize,
    skip_special_tokens: bool,
    out: *mut RtString,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        let ids = if len == 0 { &[] } else { slice::from_raw_parts(ids, len) };
        write_string(out, (*tokenizer).decode(ids, skip_special_tokens)?.into_bytes());
        Ok(())
    })
}

/// Writes an empty string for an id that the tokenizer does not know.
/// # Safety
/// `tokenizer` is open, the rest writable.
#[no_mangle]
pub unsafe extern "C" fn rt_tokenizer_id_to_token(
    tokenizer: *const tokenizer::TextTokenizer,
    id: i32,
    out: *mut RtString,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        write_string(out, (*tokenizer).id_to_token(id).into_bytes());
        Ok(())
    })
}

/// Writes -1 for a token that the tokenizer does not know.
/// # Safety
/// `tokenizer` is open, `token` readable, the rest writable.
#[no_mangle]
pub unsafe extern "C" fn rt_tokenizer_token_to_id(
    tokenizer: *const tokenizer::TextTokenizer,
    token: RtSlice,
    out: *mut i32,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        *out = (*tokenizer).token_to_id(token.text("the token")?);
        Ok(())
    })
}

/// The entries with id < limit (limit <= 0: all), sorted by id: id and length as 4 little-endian bytes each, the token, the flag.
/// # Safety
/// `tokenizer` is open, the rest writable.
#[no_mangle]
pub unsafe extern "C" fn rt_tokenizer_vocabulary(
    tokenizer: *const tokenizer::TextTokenizer,
    limit: i64,
    out: *mut RtString,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        write_string(out, (*tokenizer).vocabulary(limit));
        Ok(())
    })
}

/// How text becomes tokens, the vocabulary apart, as JSON with sorted keys.
/// # Safety
/// `tokenizer` is open, the rest writable.
#[no_mangle]
pub unsafe extern "C" fn rt_tokenizer_processing(
    tokenizer: *const tokenizer::TextTokenizer,
    out: *mut RtString,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        write_string(out, (*tokenizer).processing()?.into_bytes());
        Ok(())
    })
}

/// The template in tokenizer_config.json; `*found` is false if there is none.
/// # Safety
/// `config_json` is readable, the rest writable.
#[no_mangle]
pub unsafe extern "C" fn rt_config_template(
    config_json: RtSlice,
    found: *mut bool,
    out: *mut RtString,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        let source = files::config_template(config_json.bytes())?;
        *found = source.is_some();
        write_string(out, source.unwrap_or_default().into_bytes());
        Ok(())
    })
}

/// `variables_json`: an object of strings (bos_token, ...) that the template sees.
/// # Safety
/// Slices are readable, the rest writable.
#[no_mangle]
pub unsafe extern "C" fn rt_template_open(
    source: RtSlice,
    variables_json: RtSlice,
    out: *mut *mut template::ChatTemplate,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        let opened = template::ChatTemplate::open(source.text("the chat template")?, variables_json.bytes())?;
        *out = Box::into_raw(Box::new(opened));
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

/// # Safety
/// `template` came from `rt_template_open` and is freed once.
#[no_mangle]
pub unsafe extern "C" fn rt_template_free(template: *mut template::ChatTemplate) {
    if !template.is_null() {
        drop(Box::from_raw(template));
    }
}

/// # Safety
/// `template` is open.
#[no_mangle]
pub unsafe extern "C" fn rt_template_has_marks(template: *const template::ChatTemplate) -> bool {
    (*template).has_marks
}

/// Renders a conversation; the spans are what the template marks. With `assistant_spans` and a template without marks
/// they come from rendering every prefix of the conversation that ends before and after an assistant's message.
/// # Safety
/// `template` is open, `messages_json` readable, the rest writable.
#[no_mangle]
pub unsafe extern "C" fn rt_template_render(
    template: *const template::ChatTemplate,
    messages_json: RtSlice,
    add_generation_prompt: bool,
    assistant_spans: bool,
    out: *mut RtString,
    spans: *mut RtSpans,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        let json = messages_json.text("the conversation")?;
        let rendered = if assistant_spans {
            (*template).render_assistant(json)?
        } else {
            (*template).render(json, add_generation_prompt)?
        };
        let flat: Vec<u64> = rendered.spans.iter().flat_map(|&(a, b)| [a as u64, b as u64]).collect();
        write_string(out, rendered.text.into_bytes());
        let len = flat.len() / 2;
        *spans = RtSpans { data: leak(flat).0, len };
        Ok(())
    })
}

/// Trains a byte-level BPE; `*vocab_size` is the size reached.
/// # Safety
/// `texts` and `special_tokens` point to that many readable slices, the rest writable.
#[no_mangle]
pub unsafe extern "C" fn rt_train(
    texts: *const RtSlice,
    num_texts: usize,
    special_tokens: *const RtSlice,
    num_special_tokens: usize,
    vocab_size: usize,
    reached: *mut i64,
    out: *mut RtString,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        let list = |data: *const RtSlice, len: usize| if len == 0 { &[] } else { slice::from_raw_parts(data, len) };
        let mut corpus = Vec::with_capacity(num_texts);
        for (index, text) in list(texts, num_texts).iter().enumerate() {
            corpus.push(utf8(text.bytes(), &format!("training text {index}"))?);
        }
        let mut specials = Vec::new();
        for token in list(special_tokens, num_special_tokens) {
            specials.push(token.text("a special token")?);
        }
        let (json, size) = train::train(&corpus, &specials, vocab_size)?;
        *reached = size as i64;
        write_string(out, json.into_bytes());
        Ok(())
    })
}
