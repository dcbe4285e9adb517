//! A fast tokenizer with the special tokens of its folder.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;
use tokenizers::models::ModelWrapper;
use tokenizers::{AddedToken, Tokenizer};

use crate::files::Specials;
use crate::tokenizer_class::difference;
use crate::tokenizer_growth;

pub struct TextTokenizer {
    inner: Tokenizer,
    clean_up: bool,
    pub vocab_size: i64,
    pub eos: i32,
    pub bos: i32,
    pub pad: i32,
    /// Where transformers makes another tokenizer of the files; else empty.
    pub class_difference: String,
}

/// Tokens of the configuration files that tokenizer.json lacks, or has with other flags.
fn missing_tokens(inner: &Tokenizer, specials: &Specials) -> Vec<AddedToken> {
    let same = |a: &AddedToken, b: &AddedToken| {
        a.content == b.content
            && a.special == b.special
            && a.normalized == b.normalized
            && a.lstrip == b.lstrip
            && a.rstrip == b.rstrip
            && a.single_word == b.single_word
    };

    // added_tokens_decoder overrules tokenizer.json; a token that another key names is special.
    let known = inner.get_added_tokens_decoder();
    let mut names: HashSet<String> = known.values().map(|t| t.content.clone()).collect();
    let mut tokens: Vec<AddedToken> = Vec::new();
    for token in &specials.decoder {
        if !known.values().any(|k| same(k, token)) {
            let mut token = token.clone();
            token.special |= specials.named.iter().any(|(_, named)| named.content == token.content);
            names.insert(token.content.clone());
            tokens.push(token);
        }
    }

    // Of the other keys only tokens that are nowhere yet are new.
    let rest = specials.named.iter().map(|(_, token)| token).chain(&specials.extra);
    for token in rest {
        if names.insert(token.content.clone()) {
            tokens.push(token.clone());
        }
    }
    tokens
}

impl TextTokenizer {
    pub fn open(
        json: &[u8],
        config: Option<&[u8]>,
        special_map: Option<&[u8]>,
    ) -> Result<Self, String> {
        let mut specials = Specials::read(config, special_map)?;
        tokenizer_growth::check(json).map_err(|e| format!("tokenizer.json: {e}"))?;
        let mut inner = Tokenizer::from_bytes(json).map_err(|e| format!("tokenizer.json: {e}"))?;
        if let (Some(padding), false) = (inner.get_padding(), specials.names_pad) {
            let pad = AddedToken::from(padding.pad_token.clone(), true);
            specials.named.push(("pad_token".into(), pad));
        }

        // The lengths of batches are the caller's business.
        inner.with_truncation(None).map_err(|e| format!("tokenizer.json: {e}"))?;
        inner.with_padding(None);
        let tokens = missing_tokens(&inner, &specials);
        if !tokens.is_empty() {
            inner.add_tokens(&tokens);
        }

        // Ids go over the C ABI as 32-bit integers, with -1 for none.
        let highest = inner.get_vocab(true).values().copied().max();
        let vocab_size = highest.map_or(0, |id| id as i64 + 1);
        if vocab_size == 0 {
            return Err("tokenizer.json: the vocabulary is empty".into());
        }
        if vocab_size > i32::MAX as i64 {
            return Err(format!(
                "tokenizer.json: token id {} does not fit 31 bits",
                vocab_size - 1
            ));
        }

        let class_difference = match config {
            Some(config) => difference(json, config)?,
            None => String::new(),
        };

        let is_bpe = matches!(inner.get_model(), ModelWrapper::BPE(_));
        let id = |name: &str| {
            specials.get(name).and_then(|token| inner.token_to_id(token)).map_or(-1, |id| id as i32)
        };
        let (eos, bos, pad) = (id("eos_token"), id("bos_token"), id("pad_token"));
        let clean_up = specials.clean_up && (!is_bpe || specials.clean_up_bpe);
        Ok(TextTokenizer { inner, clean_up, vocab_size, eos, bos, pad, class_difference })
    }

    pub fn encode(
        &self,
        text: &str,
        special: bool,
        offsets: bool,
    ) -> Result<(Vec<i32>, Vec<u32>), String> {
        let encoding = if offsets {
            self.inner.encode(text, special)
        } else {
            self.inner.encode_fast(text, special)
        };
        let encoding = encoding.map_err(|e| format!("the text cannot be encoded: {e}"))?;
        let ids = encoding.get_ids().iter().map(|&id| id as i32).collect();
        let mut flat = Vec::new();
        if offsets {
            flat.reserve(encoding.len() * 2);
            for &(begin, end) in encoding.get_offsets() {
                flat.push(u32::try_from(begin).map_err(|_| "a text of more than 4 GiB")?);
                flat.push(u32::try_from(end).map_err(|_| "a text of more than 4 GiB")?);
            }
        }
        Ok((ids, flat))
    }

    pub fn decode(&self, ids: &[i32], skip_special_tokens: bool) -> Result<String, String> {
        let mut unsigned = Vec::with_capacity(ids.len());
        for &id in ids {
            let id = u32::try_from(id)
                .map_err(|_| format!("cannot decode the negative token id {id}"))?;
            unsigned.push(id);
        }
        let text = self.inner.decode(&unsigned, skip_special_tokens);
        let text = text.map_err(|e| format!("the ids cannot be decoded: {e}"))?;
        Ok(if self.clean_up { clean_up_spaces(&text) } else { text })
    }

    pub fn id_to_token(&self, id: i32) -> String {
        u32::try_from(id).ok().and_then(|id| self.inner.id_to_token(id)).unwrap_or_default()
    }

    pub fn token_to_id(&self, token: &str) -> i32 {
        self.inner.token_to_id(token).map_or(-1, |id| id as i32)
    }

    pub fn vocabulary(&self, limit: i64) -> Vec<u8> {
        let special: HashSet<u32> = self
            .inner
            .get_added_tokens_decoder()
            .into_iter()
            .filter(|(_, token)| token.special)
            .map(|(id, _)| id)
            .collect();
        let mut entries: Vec<(u32, String)> =
            self.inner.get_vocab(true).into_iter().map(|(token, id)| (id, token)).collect();
        entries.sort();
        let mut bytes = Vec::with_capacity(entries.len() * 16);
        for (id, token) in entries {
            if limit > 0 && id as i64 >= limit {
                continue;
            }
            bytes.extend_from_slice(&id.to_le_bytes());
            bytes.extend_from_slice(&(token.len() as u32).to_le_bytes());
            bytes.extend_from_slice(token.as_bytes());
            bytes.push(special.contains(&id) as u8);
        }
        bytes
    }

    pub fn processing(&self) -> Result<String, String> {
        let mut all = serde_json::to_value(&*self.inner).map_err(|e| e.to_string())?;
        let is_unigram = all["model"]["type"] == "Unigram";
        if let Some(model) = all.get_mut("model").and_then(Value::as_object_mut) {
            // A unigram's vocabulary carries the scores that decide the split.
            if !is_unigram {
                model.remove("vocab");
            }
        }
        let mut kept = BTreeMap::new();
        for key in ["model", "normalizer", "pre_tokenizer"] {
            let mut part = all[key].take();
            part.sort_all_objects();
            kept.insert(key, part);
        }
        serde_json::to_string(&kept).map_err(|e| e.to_string())
    }
}

/// transformers' clean_up_tokenization, in its order.
fn clean_up_spaces(text: &str) -> String {
    let mut text = text.to_string();
    for tight in [".", "?", "!", ","] {
        text = text.replace(&format!(" {tight}"), tight);
    }
    text = text.replace(" ' ", "'");
    for tight in ["n't", "'m", "'s", "'ve", "'re"] {
        text = text.replace(&format!(" {tight}"), tight);
    }
    text
}
