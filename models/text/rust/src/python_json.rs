//! json.dumps, as the `tojson` filter of chat templates.

use minijinja::{Error, Value};

use crate::budget::prints;
use crate::python_call::{flag, given, string, Arguments};
use crate::python_number::number;
use crate::python_operators::order;
use crate::python_value::{integer, invalid, items, pairs, type_name, type_of, Type};

struct Dump {
    ascii: bool,
    indent: Option<String>,
    comma: String,
    colon: String,
    sort: bool,
}

/// The `tojson` filter: json.dumps(value, ensure_ascii=False, indent, separators, sort_keys).
pub fn tojson(args: &Arguments) -> Result<Value, Error> {
    let [value, ascii, indent, separators, sort] =
        args.bind(["x", "ensure_ascii", "indent", "separators", "sort_keys"], 1)?;

    // As json.dumps: with an indent no space follows a comma, and separators overrule both.
    let indent = match given(&indent) {
        None => None,
        Some(indent) => match (indent.as_str(), integer(indent)) {
            (Some(text), _) => Some(text.to_string()),
            (None, Some(count)) => Some(" ".repeat(count.clamp(0, 64) as usize)),
            _ => return Err(invalid("tojson: indent is neither an integer nor a string")),
        },
    };
    let mut comma = if indent.is_some() { "," } else { ", " }.to_string();
    let mut colon = ": ".to_string();
    if let Some(pair) = given(&separators) {
        let pair = items(pair)?;
        let [first, second] = pair.as_slice() else {
            return Err(invalid("tojson: separators is not a pair"));
        };
        comma = string(first)?.to_string();
        colon = string(second)?.to_string();
    }

    let mut out = String::new();
    let (ascii, sort) = (flag(&ascii, false), flag(&sort, false));
    let dump = Dump { ascii, indent, comma, colon, sort };
    dump.write(&value.unwrap_or_default(), 0, &mut out)?;
    Ok(Value::from(out))
}

/// Sorted by the keys, which Python must be able to compare.
fn sorted(mut all: Vec<(Value, Value)>) -> Result<Vec<(Value, Value)>, Error> {
    let mut failure = None;
    all.sort_by(|(a, _), (b, _)| match order("<", a, b) {
        Ok(found) => found.unwrap_or(std::cmp::Ordering::Equal),
        Err(error) => {
            failure = Some(error);
            std::cmp::Ordering::Equal
        }
    });
    failure.map_or(Ok(all), Err)
}

fn json_number(value: &Value) -> String {
    match number(value).as_str() {
        "nan" => "NaN".to_string(),
        "inf" => "Infinity".to_string(),
        "-inf" => "-Infinity".to_string(),
        finite => finite.to_string(),
    }
}

impl Dump {
    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        prints(out.len())?;
        match type_of(value) {
            Type::None => out.push_str("null"),
            Type::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            Type::Int | Type::Float => out.push_str(&json_number(value)),
            Type::Text => self.string(value.as_str().unwrap_or_default(), out),
            Type::List | Type::Tuple => self.list(value, depth, out)?,
            Type::Dictionary => self.map(value, depth, out)?,
            _ => {
                let name = type_name(value);
                return Err(invalid(format!("Object of type {name} is not JSON serializable")));
            }
        }
        Ok(())
    }

    fn list(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        let items = items(value)?;
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
        let mut all = pairs(value)?;
        if self.sort {
            all = sorted(all)?;
        }
        out.push('{');
        for (i, (key, value)) in all.iter().enumerate() {
            out.push_str(if i == 0 { "" } else { &self.comma });
            self.line(depth + 1, out);
            let name = match type_of(key) {
                Type::Text => key.to_string(),
                Type::None => "null".into(),
                Type::Bool => if key.is_true() { "true" } else { "false" }.into(),
                Type::Int | Type::Float => json_number(key),
                _ => {
                    let name = type_name(key);
                    return Err(invalid(format!("tojson: a key of type {name}")));
                }
            };
            self.string(&name, out);
            out.push_str(&self.colon);
            self.write(value, depth + 1, out)?;
        }
        if !all.is_empty() {
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
