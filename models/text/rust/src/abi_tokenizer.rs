//! The C interface of `tokenizer`.

use crate::abi::{borrowed, guard, leak, unleak, write_string, RtSlice, RtString};
use crate::tokenizer::TextTokenizer;

#[repr(C)]
pub struct RtTokens {
    ids: *mut i32,
    offsets: *mut u32, // begin, end of each token; null if not asked for
    len: usize,
}

#[repr(C)]
pub struct RtInfo {
    vocab_size: i64,
    eos: i32,
    bos: i32,
    pad: i32,
}

/// # Safety
/// `tokens` came from this library and is freed once.
#[no_mangle]
pub unsafe extern "C" fn rt_tokens_free(tokens: RtTokens) {
    unleak(tokens.ids, tokens.len);
    unleak(tokens.offsets, tokens.len * 2);
}

/// # Safety
/// Slices are readable; `out` and `error` are writable.
#[no_mangle]
pub unsafe extern "C" fn rt_tokenizer_open(
    tokenizer_json: RtSlice,
    config_json: RtSlice,
    special_map_json: RtSlice,
    out: *mut *mut TextTokenizer,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        let opened = TextTokenizer::open(
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
pub unsafe extern "C" fn rt_tokenizer_free(tokenizer: *mut TextTokenizer) {
    if !tokenizer.is_null() {
        drop(Box::from_raw(tokenizer));
    }
}

/// # Safety
/// `tokenizer` is open.
#[no_mangle]
pub unsafe extern "C" fn rt_tokenizer_info(tokenizer: *const TextTokenizer) -> RtInfo {
    let t = &*tokenizer;
    RtInfo { vocab_size: t.vocab_size, eos: t.eos, bos: t.bos, pad: t.pad }
}

/// # Safety
/// `tokenizer` is open, `text` readable, the rest writable.
#[no_mangle]
pub unsafe extern "C" fn rt_tokenizer_encode(
    tokenizer: *const TextTokenizer,
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
    tokenizer: *const TextTokenizer,
    ids: *const i32,
    len: usize,
    skip_special_tokens: bool,
    out: *mut RtString,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        let text = (*tokenizer).decode(borrowed(ids, len), skip_special_tokens)?;
        write_string(out, text.into_bytes());
        Ok(())
    })
}

/// Writes an empty string for an id that the tokenizer does not know.
/// # Safety
/// `tokenizer` is open, the rest writable.
#[no_mangle]
pub unsafe extern "C" fn rt_tokenizer_id_to_token(
    tokenizer: *const TextTokenizer,
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
    tokenizer: *const TextTokenizer,
    token: RtSlice,
    out: *mut i32,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        *out = (*tokenizer).token_to_id(token.text("the token")?);
        Ok(())
    })
}

/// The entries with id < limit (limit <= 0: all), sorted by id: id and length as 4 little-endian
/// bytes each, the token, the flag.
/// # Safety
/// `tokenizer` is open, the rest writable.
#[no_mangle]
pub unsafe extern "C" fn rt_tokenizer_vocabulary(
    tokenizer: *const TextTokenizer,
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
    tokenizer: *const TextTokenizer,
    out: *mut RtString,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        write_string(out, (*tokenizer).processing()?.into_bytes());
        Ok(())
    })
}

/// Empty where transformers makes the same tokenizer.
/// # Safety
/// `tokenizer` is open, the rest writable.
#[no_mangle]
pub unsafe extern "C" fn rt_tokenizer_class_difference(
    tokenizer: *const TextTokenizer,
    out: *mut RtString,
    error: *mut RtString,
) -> i32 {
    guard(error, || {
        write_string(out, (*tokenizer).class_difference.clone().into_bytes());
        Ok(())
    })
}
