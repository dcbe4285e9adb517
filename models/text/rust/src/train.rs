//! Training a byte-level BPE.

use std::collections::HashSet;

use serde_json::Value;
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::{BpeTrainerBuilder, BPE};
use tokenizers::models::TrainerWrapper;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

/// Words with one leading mark or space, single digits, runs of punctuation, line ends, other
/// space.
const PIECES: &str = concat!(
    r"(?i:'(?:s|t|re|ve|m|ll|d))|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
    r"|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// The stretches of `text` between special tokens: their letters must not become merges.
fn between<'a>(text: &'a str, specials: &[&str]) -> Vec<&'a str> {
    let mut pieces = vec![text];
    for special in specials {
        pieces = pieces.into_iter().flat_map(|piece| piece.split(special)).collect();
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

/// tokenizer.json and the size of its vocabulary. The result depends on the texts, not on their
/// order or on threads: pairs are merged by count, ties by the lower ids.
pub fn train(
    texts: &[&str],
    specials: &[&str],
    vocab_size: usize,
) -> Result<(String, usize), String> {
    let fail = |e: tokenizers::Error| format!("training a tokenizer: {e}");

    // Texts are split into PIECES, and each piece into bytes.
    let pattern = SplitPattern::Regex(PIECES.into());
    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(fail)?;
    let mut tokenizer = Tokenizer::new(BPE::default());
    tokenizer.with_pre_tokenizer(Some(PreTokenizerWrapper::Sequence(Sequence::new(vec![
        PreTokenizerWrapper::Split(split),
        PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, false)),
    ]))));
    tokenizer.with_decoder(Some(ByteLevel::new(false, true, false)));

    let trainer = BpeTrainerBuilder::new()
        .vocab_size(vocab_size)
        .min_frequency(2)
        .show_progress(false)
        .special_tokens(specials.iter().map(|s| AddedToken::from(s.to_string(), true)).collect())
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();

    let corpus: Vec<&str> = texts.iter().flat_map(|text| between(text, specials)).collect();
    tokenizer.train(&mut TrainerWrapper::BpeTrainer(trainer), corpus.into_iter()).map_err(fail)?;
    let json = tokenizer.to_string(true).map_err(fail)?;
    refuse_learnt_specials(&json, specials)?;
    Ok((json, tokenizer.get_vocab_size(true)))
}

/// A special token that is spelt like a byte or like a merge would share its id.
fn refuse_learnt_specials(json: &str, specials: &[&str]) -> Result<(), String> {
    let all: Value = serde_json::from_str(json).map_err(|e| e.to_string())?;
    let part = |merge: &Value, i: usize| merge[i].as_str().unwrap_or_default().to_string();
    let merges = all["model"]["merges"].as_array().cloned().unwrap_or_default();
    let mut ordinary: HashSet<String> =
        merges.iter().map(|merge| part(merge, 0) + &part(merge, 1)).collect();
    ordinary.extend(ByteLevel::alphabet().iter().map(char::to_string));
    match specials.iter().find(|special| ordinary.contains(**special)) {
        None => Ok(()),
        Some(special) => Err(format!(
            "the special token '{special}' is also an ordinary token of this vocabulary: spell it \
             as no text is, for example <|{special}|>"
        )),
    }
}
