//! What Jinja templates see of Python: how values print, json.dumps, a few more string methods.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use unicode_categories::UnicodeCategories;

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, text.into())
}

/// repr(float): the shortest digits, with an exponent outside 1e-4 .. 1e16.
fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{value}");
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(v) => float(v),
        Err(_) => value.to_string(),
    }
}

/// str(value).
pub fn text(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Map => {
            let mut out = String::new();
            repr(value, &mut out)?;
            Ok(out)
        }
        ValueKind::None => Ok("None".into()),
        ValueKind::Bool => Ok(if value.is_true() { "True".into() } else { "False".into() }),
        ValueKind::Number => Ok(number(value)),
        _ => Ok(value.to_string()),
    }
}

/// The `trim` filter: str(value).strip(characters).
pub fn trim(value: Value, characters: Option<String>) -> Result<String, Error> {
    let text = text(&value)?;
    Ok(match characters {
        None => text.trim().to_string(),
        Some(characters) => text.trim_matches(|c| characters.contains(c)).to_string(),
    })
}

fn repr(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Seq => {
            out.push('[');
            for (i, item) in value.try_iter()?.enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                repr(&item, out)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                repr(&key, out)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, out)?;
            }
            out.push('}');
        }
        ValueKind::String => repr_string(value.as_str().unwrap_or_default(), out),
        ValueKind::Undefined => out.push_str("Undefined"),
        _ => out.push_str(&text(value)?),
    }
    Ok(())
}

/// str.isprintable, but for characters that Unicode has not assigned.
fn printable(c: char) -> bool {
    let other = c.is_other_control() || c.is_other_format() || c.is_other_private_use();
    c == ' ' || !(other || c.is_separator())
}

fn repr_string(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if printable(c) => out.push(c),
            c if (c as u32) < 0x100 => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if (c as u32) < 0x10000 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push_str(&format!("\\U{:08x}", c as u32)),
        }
    }
    out.push(quote);
}

struct Dump {
    ascii: bool,
    indent: Option<String>,
    comma: String,
    colon: String,
    sort: bool,
}

/// The `tojson` filter of chat templates: json.dumps(value, ensure_ascii=False, indent, separators,
/// sort_keys).
pub fn tojson(value: Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let pick = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        let found = match args.get(index) {
            Some(value) => Some(value.clone()),
            None => kwargs.get::<Option<Value>>(name)?,
        };
        Ok(found.filter(|v| !v.is_none() && !v.is_undefined()))
    };

    // As json.dumps: with an indent no space follows a comma, and separators overrule both.
    let indent = match pick(1, "indent")? {
        None => None,
        Some(v) if v.kind() == ValueKind::String => Some(v.to_string()),
        Some(v) => Some(" ".repeat(usize::try_from(v)?.min(64))),
    };
    let mut comma = if indent.is_some() { "," } else { ", " }.to_string();
    let mut colon = ": ".to_string();
    if let Some(pair) = pick(2, "separators")? {
        comma = pair.get_item_by_index(0)?.to_string();
        colon = pair.get_item_by_index(1)?.to_string();
    }

    // Keyword arguments that nothing has asked for are refused.
    let ascii = pick(0, "ensure_ascii")?.is_some_and(|v| v.is_true());
    let sort = pick(3, "sort_keys")?.is_some_and(|v| v.is_true());
    kwargs.assert_all_used()?;

    let mut out = String::new();
    Dump { ascii, indent, comma, colon, sort }.write(&value, 0, &mut out)?;
    Ok(Value::from(out))
}

impl Dump {
    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&match number(value).as_str() {
                "nan" => "NaN".to_string(),
                "inf" => "Infinity".to_string(),
                "-inf" => "-Infinity".to_string(),
                finite => finite.to_string(),
            }),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth, out)?,
            ValueKind::Map => self.map(value, depth, out)?,
            kind => {
                let what = format!("tojson: a value of kind {kind} is not JSON serializable");
                return Err(invalid(what));
            }
        }
        Ok(())
    }

    fn list(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        let items: Vec<Value> = value.try_iter()?.collect();
        out.push('[');
        for (i, item) in items.iter().enumerate() {
            out.push_str(if i == 0 { "" } else { &self.comma });
            self.line(depth + 1, out);
            self.write(item, depth + 1, out)?;
        }
        if !items.is_empty() {
            self.line(depth, out);
        }
        out.push(']');
        Ok(())
    }

    fn map(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort {
            keys.sort();
        }
        out.push('{');
        for (i, key) in keys.iter().enumerate() {
            out.push_str(if i == 0 { "" } else { &self.comma });
            self.line(depth + 1, out);
            let name = match key.kind() {
                ValueKind::String => key.to_string(),
                ValueKind::None => "null".into(),
                ValueKind::Bool => if key.is_true() { "true" } else { "false" }.into(),
                ValueKind::Number => number(key),
                kind => return Err(invalid(format!("tojson: a key of kind {kind}"))),
            };
            self.string(&name, out);
            out.push_str(&self.colon);
            self.write(&value.get_item(key)?, depth + 1, out)?;
        }
        if !keys.is_empty() {
            self.line(depth, out);
        }
        out.push('}');
        Ok(())
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
                c if self.ascii && (c as u32) > 0x7e => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// str.rsplit(part, limit); without a limit, or with one below 0, at every `part`.
fn rsplit(text: &str, part: &str, limit: Option<&Value>) -> Result<Value, Error> {
    let limit = match limit {
        Some(limit) => i64::try_from(limit.clone())?,
        None => -1,
    };
    let mut pieces: Vec<String> = match usize::try_from(limit) {
        Ok(limit) => text.rsplitn(limit + 1, part).map(str::to_string).collect(),
        Err(_) => text.rsplit(part).map(str::to_string).collect(),
    };
    pieces.reverse();
    Ok(Value::from(pieces))
}

/// Methods that minijinja-contrib's pycompat lacks; the rest goes there.
pub fn method(state: &State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (Some(text), Some(part)) = (value.as_str(), args.first().and_then(Value::as_str)) else {
        return minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args);
    };
    let triple = |a: &str, b: &str, c: &str| Value::from([a, b, c].map(str::to_string).to_vec());
    match (name, args.len()) {
        ("removeprefix", 1) => Ok(Value::from(text.strip_prefix(part).unwrap_or(text))),
        ("removesuffix", 1) => Ok(Value::from(text.strip_suffix(part).unwrap_or(text))),
        ("partition", 1) if !part.is_empty() => Ok(match text.split_once(part) {
            Some((head, tail)) => triple(head, part, tail),
            None => triple(text, "", ""),
        }),
        ("rpartition", 1) if !part.is_empty() => Ok(match text.rsplit_once(part) {
            Some((head, tail)) => triple(head, part, tail),
            None => triple("", "", text),
        }),
        ("rsplit", 1 | 2) if !part.is_empty() => rsplit(text, part, args.get(1)),
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}
