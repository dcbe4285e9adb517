//! Jinja's filters that make text of a value.

use minijinja::{Error, State, Value};

use crate::budget::fits;
use crate::jinja_filters::only;
use crate::jinja_lexer::is_space;
use crate::python;
use crate::python_call::{flag, given, index, string, Arguments};
use crate::python_number::{parse_float, Number};
use crate::python_operators::{escaped, markup};
use crate::python_text::{padded, replace, splitlines, strip};
use crate::python_value::{invalid, items, pairs, tuple, type_of, undefined, Type};

pub fn center(_: &State, args: &Arguments) -> Result<Value, Error> {
    let [value, width] = args.bind(["value", "width"], 1)?;
    let text = python::text(&value.unwrap_or_default())?;
    Ok(Value::from(padded(&text, index(&width, 80)?, ' ', '^')?))
}

pub fn trim(_: &State, args: &Arguments) -> Result<Value, Error> {
    let [value, characters] = args.bind(["value", "chars"], 1)?;
    let value = value.unwrap_or_default();
    let text = python::text(&value)?;
    let characters = given(&characters).map(string).transpose()?;
    let trimmed = strip(&text, characters, true, true);
    Ok(if value.is_safe() {
        Value::from_safe_string(trimmed.to_string())
    } else {
        Value::from(trimmed)
    })
}

pub fn replaced(_: &State, args: &Arguments) -> Result<Value, Error> {
    let [value, old, new, count] = args.bind(["s", "old", "new", "count"], 3)?;
    let text = |value: Option<Value>| python::text(&value.unwrap_or_default());
    let count = given(&count).cloned();
    let (value, old, new) = (text(value)?, text(old)?, text(new)?);
    Ok(Value::from(replace(&value, &old, &new, index(&count, -1)?)?))
}

pub fn format(_: &State, args: &Arguments) -> Result<Value, Error> {
    let Some((value, rest)) = args.positional.split_first() else {
        return Err(invalid("format lacks 'value'"));
    };
    if !rest.is_empty() && !args.named.is_empty() {
        return Err(invalid("can't handle positional and keyword arguments at the same time"));
    }
    let named = args.named.iter().map(|(k, v)| (Value::from(k.as_str()), v.clone())).collect();
    let values = match args.named.is_empty() {
        true => tuple(rest.to_vec()),
        false => crate::python_value::dictionary(named),
    };
    let value = match value.is_safe() {
        true => value.clone(),
        false => Value::from(python::text(value)?),
    };
    crate::python_format::percent(&value, &values)
}

/// Jinja's own title, which begins a word behind white space, a hyphen and opening brackets.
pub fn title(text: &str) -> String {
    let begins = |c: char| is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    let mut out = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_mark = begins(first);
        let end = rest.find(|c| begins(c) != is_mark).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        let mut chars = word.chars();
        out.extend(chars.next().into_iter().flat_map(char::to_uppercase));
        out.push_str(&chars.as_str().to_lowercase());
        rest = tail;
    }
    out
}

pub fn indent(_: &State, args: &Arguments) -> Result<Value, Error> {
    let [value, width, first, blank] = args.bind(["s", "width", "first", "blank"], 1)?;
    let value = value.unwrap_or_default();
    if value.is_undefined() {
        return Err(undefined());
    }
    let indention = match &width {
        Some(width) if width.as_str().is_some() => width.to_string(),
        width => " ".repeat(index(width, 4)?.clamp(0, 10_000) as usize),
    };
    // A line end more is how Jinja keeps that of the last line.
    let lines = splitlines(&(string(&value)?.to_string() + "\n"), false);
    let blank = flag(&blank, false);
    let mut out = String::new();
    for (i, line) in lines.iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if (i > 0 && (blank || !line.is_empty())) || (i == 0 && flag(&first, false)) {
            out.push_str(&indention);
        }
        out.push_str(line);
        fits(out.len())?;
    }
    Ok(if value.is_safe() { Value::from_safe_string(out) } else { Value::from(out) })
}

pub fn truncate(_: &State, args: &Arguments) -> Result<Value, Error> {
    let [value, length, kill, end, leeway] =
        args.bind(["s", "length", "killwords", "end", "leeway"], 1)?;
    let value = value.unwrap_or_default();
    if value.is_undefined() {
        return Ok(value);
    }
    let text = string(&value)?;
    let length = index(&length, 255)?;
    let end = end.unwrap_or_else(|| Value::from("..."));
    let end = string(&end)?;
    let room = length - end.chars().count() as i64;
    let leeway = index(&given(&leeway).cloned(), 5)?;
    if room < 0 || leeway < 0 {
        return Err(invalid("truncate: the length is below that of the end, or leeway below 0"));
    }
    if text.chars().count() as i64 <= length + leeway {
        return Ok(value);
    }
    let cut: String = text.chars().take(room as usize).collect();
    let kept =
        if flag(&kill, false) { &cut } else { cut.rsplit_once(' ').map_or(&*cut, |(h, _)| h) };
    Ok(Value::from(format!("{kept}{end}")))
}

pub fn wordcount(_: &State, args: &Arguments) -> Result<Value, Error> {
    let text = python::text(&only(args)?)?;
    let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    Ok(Value::from(words.filter(|word| !word.is_empty()).count()))
}

pub fn filesizeformat(_: &State, args: &Arguments) -> Result<Value, Error> {
    let [value, binary] = args.bind(["value", "binary"], 1)?;
    let value = value.unwrap_or_default();
    let bytes = match value.as_str() {
        Some(text) => parse_float(text),
        None => Number::of(&value).map(Number::real),
    };
    let bytes = bytes.ok_or_else(|| invalid("filesizeformat: the value is not a number"))?;
    let binary = flag(&binary, false);
    let base: f64 = if binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return Ok(Value::from("1 Byte"));
    }
    if bytes < base {
        return Ok(Value::from(format!("{:.0} Bytes", bytes.trunc() + 0.0)));
    }
    let mut unit = base;
    let mut text = String::new();
    for prefix in ["k", "M", "G", "T", "P", "E", "Z", "Y"] {
        unit *= base;
        let prefix = if binary { format!("{}i", prefix.to_uppercase()) } else { prefix.into() };
        text = format!("{:.1} {prefix}B", base * bytes / unit);
        if bytes < unit {
            break;
        }
    }
    Ok(Value::from(text))
}

/// urllib.parse.quote, which leaves '/' but in a query.
fn url_quoted(value: &Value, query: bool) -> Result<String, Error> {
    let mut out = String::new();
    for byte in python::text(value)?.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                out.push(byte as char)
            }
            b'/' if !query => out.push('/'),
            b' ' if query => out.push('+'),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    Ok(out)
}

pub fn urlencode(_: &State, args: &Arguments) -> Result<Value, Error> {
    let value = only(args)?;
    let all = match type_of(&value) {
        Type::Dictionary => pairs(&value)?,
        Type::List | Type::Tuple | Type::View | Type::Generator => {
            let mut all = Vec::new();
            for pair in items(&value)? {
                match items(&pair)?.as_slice() {
                    [key, value] => all.push((key.clone(), value.clone())),
                    _ => return Err(invalid("urlencode: an item is not a pair")),
                }
            }
            all
        }
        _ => return url_quoted(&value, false).map(Value::from),
    };
    let mut parts = Vec::new();
    for (key, value) in all {
        parts.push(format!("{}={}", url_quoted(&key, true)?, url_quoted(&value, true)?));
    }
    Ok(Value::from(parts.join("&")))
}

pub fn xmlattr(_: &State, args: &Arguments) -> Result<Value, Error> {
    let [value, autospace] = args.bind(["d", "autospace"], 1)?;
    let value = value.unwrap_or_default();
    if type_of(&value) != Type::Dictionary {
        return Err(invalid("xmlattr: the value is not a dictionary"));
    }
    let mut parts = Vec::new();
    for (key, value) in pairs(&value)? {
        if value.is_none() || value.is_undefined() {
            continue;
        }
        let name = string(&key)?;
        if name.contains([' ', '\t', '\n', '\r', '\u{b}', '\u{c}', '/', '>', '=']) {
            return Err(invalid(format!("Invalid character in attribute name: '{name}'")));
        }
        parts.push(format!("{}=\"{}\"", escaped(name), markup(&value)?));
    }
    let space = flag(&autospace, true) && !parts.is_empty();
    Ok(Value::from(if space { " " } else { "" }.to_string() + &parts.join(" ")))
}
