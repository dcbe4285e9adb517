//! What transformers 5 makes of a folder by its `tokenizer_class`, where that differs from
//! tokenizer.json.

use serde_json::{json, Map, Value};

/// Whether a part of tokenizer.json has bytes for its letters: then transformers takes the file.
fn is_byte_level(part: &Value) -> bool {
    let lists = ["pretokenizers", "normalizers", "decoders"];
    let inside = lists.iter().filter_map(|key| part.get(*key)).filter_map(Value::as_array);
    part["type"] == "ByteLevel" || inside.flatten().any(is_byte_level)
}

/// What a warning says, if the class is Llama's; else empty. transformers' LlamaTokenizer keeps the
/// vocabulary, the merges and the post-processor of tokenizer.json and puts a Metaspace of its own
/// in the place of the normalizer and the pre-tokenizer.
pub fn difference(tokenizer_json: &[u8], config_json: &[u8]) -> Result<String, String> {
    let config: Map<String, Value> =
        serde_json::from_slice(config_json).map_err(|e| format!("tokenizer_config.json: {e}"))?;
    let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
    if !matches!(class, "LlamaTokenizer" | "LlamaTokenizerFast") {
        return Ok(String::new());
    }
    let tokenizer: Value =
        serde_json::from_slice(tokenizer_json).map_err(|e| format!("tokenizer.json: {e}"))?;
    let parts = ["normalizer", "pre_tokenizer", "decoder"];
    if parts.iter().any(|part| is_byte_level(&tokenizer[*part])) {
        return Ok(String::new());
    }

    let flag = |key: &str| config.get(key).and_then(Value::as_bool);
    let scheme = match (flag("add_prefix_space"), flag("legacy")) {
        (Some(false), _) => "never",
        (_, Some(true)) => "always",
        _ => "first",
    };
    let made = json!({
        "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": scheme, "split": false
    });
    let byte_fallback = tokenizer["model"]["byte_fallback"].as_bool().unwrap_or(false);
    let is_bpe = tokenizer["model"]["type"] == "BPE" && byte_fallback;
    if tokenizer["normalizer"].is_null() && tokenizer["pre_tokenizer"] == made && is_bpe {
        return Ok(String::new());
    }
    Ok(format!(
        "tokenizer_class is {class}, of which transformers 5 makes a tokenizer with a Metaspace \
         (prepend_scheme {scheme}) whatever the normalizer and pre_tokenizer of tokenizer.json \
         are; here tokenizer.json is followed, as by transformers 4. Texts that begin with a \
         space or go on behind a special token may get other tokens there. With tokenizer_class \
         PreTrainedTokenizerFast transformers 5 follows tokenizer.json too"
    ))
}
