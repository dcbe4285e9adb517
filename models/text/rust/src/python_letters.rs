//! Cases and kinds of characters, as Python's strings know them.

use minijinja::Value;
use unicode_categories::UnicodeCategories;

use crate::jinja_lexer::is_space;

/// str.isprintable of one character, but for those that Unicode has not assigned.
pub fn printable(c: char) -> bool {
    let other = c.is_other_control() || c.is_other_format() || c.is_other_private_use();
    c == ' ' || !(other || c.is_separator())
}

/// A character that begins a title; of those that are two letters only the first is large.
fn titled(c: char) -> String {
    match c {
        'Ǆ' | 'ǅ' | 'ǆ' => return "ǅ".into(),
        'Ǉ' | 'ǈ' | 'ǉ' => return "ǈ".into(),
        'Ǌ' | 'ǋ' | 'ǌ' => return "ǋ".into(),
        'Ǳ' | 'ǲ' | 'ǳ' => return "ǲ".into(),
        'ŉ' => return "ʼN".into(),
        _ => {}
    }
    let mut upper = c.to_uppercase();
    match upper.next() {
        Some(first) => first.to_string() + &upper.collect::<String>().to_lowercase(),
        None => String::new(),
    }
}

pub fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => titled(first) + &lower_tail(text, chars.as_str()),
        None => String::new(),
    }
}

/// The end of a text in lower case; a final sigma is one by what stands before it in the text.
fn lower_tail(text: &str, tail: &str) -> String {
    let head = &text[..text.len() - tail.len()];
    text.to_lowercase()[head.to_lowercase().len()..].to_string()
}

fn cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || c.is_letter_titlecase()
}

/// A character in lower case where it stands: a sigma has a form for the end of a word.
fn lower_at(text: &str, at: usize, c: char) -> String {
    let before = text[..at].chars().next_back().is_some_and(cased);
    let behind = text[at + c.len_utf8()..].chars().next().is_some_and(cased);
    match c {
        'Σ' if before && !behind => "ς".into(),
        c => c.to_lowercase().collect(),
    }
}

pub fn title(text: &str) -> String {
    let mut out = String::new();
    let mut inside = false;
    for (at, c) in text.char_indices() {
        match inside {
            true => out.push_str(&lower_at(text, at, c)),
            false => out.push_str(&titled(c)),
        }
        inside = cased(c);
    }
    out
}

pub fn swapcase(text: &str) -> String {
    let swapped = |(at, c): (usize, char)| match c.is_uppercase() {
        true => lower_at(text, at, c),
        false => c.to_uppercase().collect(),
    };
    text.char_indices().map(swapped).collect()
}

/// Unicode's folding, but for a few letters whose large form has another small one.
pub fn casefold(text: &str) -> String {
    let folded = |c: char| match c {
        'ı' => c.to_string(),
        c => c.to_uppercase().flat_map(char::to_lowercase).collect(),
    };
    text.chars().map(folded).collect()
}

/// Whether all characters (of which there is one) are of a kind.
fn all(text: &str, is: impl Fn(char) -> bool) -> Value {
    Value::from(!text.is_empty() && text.chars().all(is))
}

fn is_digit(c: char) -> bool {
    let raised = matches!(c, '²' | '³' | '¹' | '⁰' | '⁴'..='⁹');
    let other = raised || matches!(c, '₀'..='₉' | '①'..='⑨');
    c.is_number_decimal_digit() || other
}

pub fn is_lower(text: &str) -> bool {
    text.chars().any(char::is_lowercase)
        && !text.chars().any(|c| c.is_uppercase() || c.is_letter_titlecase())
}

pub fn is_upper(text: &str) -> bool {
    text.chars().any(char::is_uppercase)
        && !text.chars().any(|c| c.is_lowercase() || c.is_letter_titlecase())
}

fn is_title(text: &str) -> bool {
    let mut inside = false;
    let mut any = false;
    for c in text.chars() {
        let large = c.is_uppercase() || c.is_letter_titlecase();
        if (large && inside) || (c.is_lowercase() && !inside) {
            return false;
        }
        inside = cased(c);
        any |= inside;
    }
    any
}

/// The questions that a string answers.
pub fn question(text: &str, name: &str) -> Option<Value> {
    let alphabetic = |c: char| c.is_letter();
    Some(match name {
        "isalnum" => all(text, |c| alphabetic(c) || c.is_number()),
        "isalpha" => all(text, alphabetic),
        "isascii" => Value::from(text.is_ascii()),
        "isdecimal" => all(text, |c| c.is_number_decimal_digit()),
        "isdigit" => all(text, is_digit),
        "isidentifier" => {
            let first = text.chars().next().is_some_and(|c| alphabetic(c) || c == '_');
            Value::from(first && text.chars().all(|c| c.is_alphanumeric() || c == '_'))
        }
        "islower" => Value::from(is_lower(text)),
        "isnumeric" => all(text, |c| c.is_number()),
        "isprintable" => Value::from(text.chars().all(printable)),
        "isspace" => all(text, is_space),
        "istitle" => Value::from(is_title(text)),
        "isupper" => Value::from(is_upper(text)),
        _ => return None,
    })
}
