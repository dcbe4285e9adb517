//! The C interface of `train`.

use crate::abi::{borrowed, guard, utf8, write_string, RtSlice, RtString};
use crate::train;

/// Trains a byte-level BPE; `*reached` is the size of its vocabulary, which `vocab_size` bounds.
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
        let mut corpus = Vec::with_capacity(num_texts);
        for (index, text) in borrowed(texts, num_texts).iter().enumerate() {
            corpus.push(utf8(text.bytes(), &format!("training text {index}"))?);
        }

        let mut specials = Vec::new();
        for token in borrowed(special_tokens, num_special_tokens) {
            specials.push(token.text("a special token")?);
        }

        let (json, size) = train::train(&corpus, &specials, vocab_size)?;
        *reached = size as i64;
        write_string(out, json.into_bytes());
        Ok(())
    })
}
