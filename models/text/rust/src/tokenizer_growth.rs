//! How much longer a tokenizer may make a text, by its tokenizer.json: what replaces one letter by
//! many, and does so several times, has no end in time and memory. It is asked before the file is
//! opened, as the texts of its own tokens are normalised then.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

/// How many times as long, in bytes, the normalizer or the decoder of tokenizer.json may make a
/// text. Those in use are below 140: NFKC by a table of SentencePiece, then Replace.
const LIMIT: f64 = 256.0;

fn length(part: &Value) -> f64 {
    part.as_str().map_or(0, str::len) as f64
}

/// Of a Replace: each byte of what is found becomes its share of the content.
fn of_replace(part: &Value) -> f64 {
    let content = length(&part["content"]);
    match length(&part["pattern"]["String"]) {
        found if found > 0.0 => (content / found).max(1.0),
        // An expression may find one byte, or nothing in front of one.
        _ => 1.0 + content,
    }
}

fn base64(text: &str) -> Vec<u8> {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut out, mut bits, mut held) = (Vec::new(), 0u32, 0u32);
    for value in text.bytes().filter_map(|c| alphabet.iter().position(|known| *known == c)) {
        bits = (bits << 6 | value as u32) & 0xfff;
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    out
}

/// Of a table of SentencePiece: the length of its index, the index, and texts that end with a zero.
fn of_table(part: &Value) -> f64 {
    let table = base64(part["precompiled_charsmap"].as_str().unwrap_or_default());
    let Some(head) = table.first_chunk::<4>() else { return 1.0 };
    let texts = table.get(4 + u32::from_le_bytes(*head) as usize..).unwrap_or_default();
    texts.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0).max(1) as f64
}

/// How many times as many bytes a normalizer or a decoder makes at most.
fn growth(part: &Value) -> f64 {
    let inside = ["normalizers", "decoders"].iter().find_map(|key| part.get(*key)?.as_array());
    if let Some(inside) = inside {
        return inside.iter().map(growth).product();
    }
    match part["type"].as_str().unwrap_or_default() {
        "Replace" => of_replace(part),
        "Prepend" => 1.0 + length(&part["prepend"]),
        "Precompiled" => of_table(part),
        "NFKC" | "NFKD" => 11.0, // U+FDFA
        "NFC" | "NFD" => 3.0,
        "BertNormalizer" => 9.0, // spaces around a letter, NFD, small letters
        "ByteLevel" => 2.0,
        "Lowercase" => 1.5, // U+0130
        _ => 1.0,
    }
}

/// The parts of tokenizer.json that grow a text; its vocabulary is read over.
struct Parts {
    normalizer: Value,
    decoder: Value,
}

struct PartsVisitor;

impl<'de> Visitor<'de> for PartsVisitor {
    type Value = Parts;

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parts, A::Error> {
        let mut parts = Parts { normalizer: Value::Null, decoder: Value::Null };
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "normalizer" => parts.normalizer = map.next_value()?,
                "decoder" => parts.decoder = map.next_value()?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(parts)
    }
}

impl<'de> Deserialize<'de> for Parts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Parts, D::Error> {
        from.deserialize_map(PartsVisitor)
    }
}

/// An error where the tokenizer makes texts too long.
pub fn check(tokenizer_json: &[u8]) -> Result<(), String> {
    // What is no JSON is told where it is opened.
    let Ok(parts) = serde_json::from_slice::<Parts>(tokenizer_json) else { return Ok(()) };
    for (part, value) in [("normalizer", &parts.normalizer), ("decoder", &parts.decoder)] {
        let times = growth(value);
        if times > LIMIT {
            return Err(format!(
                "the {part} may make a text {times:.0} times as long; at most {LIMIT} is allowed, \
                 so that a text fits in memory: see its Replace and Prepend parts"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parts_in_a_row_multiply() {
        let replace = |from: &str, to: &str| {
            let pattern = json!({ "String": from });
            json!({"type": "Replace", "pattern": pattern, "content": to})
        };
        let row = |parts: Vec<Value>| json!({"type": "Sequence", "normalizers": parts});
        assert_eq!(growth(&replace("ab", "abcdef")), 3.0);
        assert_eq!(growth(&replace("abc", "")), 1.0);
        let llama =
            row(vec![json!({"type": "Prepend", "prepend": "\u{2581}"}), replace(" ", "\u{2581}")]);
        assert_eq!(growth(&llama), 12.0);
        let spaces = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "});
        assert_eq!(growth(&row(vec![llama, row(vec![spaces])])), 24.0);
        let long = "b".repeat(1000);
        let bomb = |part: &str| {
            json!({part: row(vec![replace("a", &long), replace("b", &long)])}).to_string()
        };
        assert!(check(bomb("normalizer").as_bytes()).unwrap_err().contains("1000000 times"));
        assert!(check(bomb("decoder").as_bytes()).is_err());
        assert!(check(bomb("other").as_bytes()).is_ok());
        assert!(check(b"{").is_ok());
    }

    #[test]
    fn a_table_has_the_length_of_its_longest_text() {
        // An index of 4 bytes, then "ab", "cde" and "f".
        let table =
            json!({"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAABhYgBjZGUAZgA="});
        assert_eq!(growth(&table), 3.0);
        assert_eq!(growth(&json!({"type": "Precompiled", "precompiled_charsmap": ""})), 1.0);
    }
}
