//! How Python prints values: str() and repr().

use minijinja::{Error, State, Value};

use crate::budget::prints;
use crate::python_call::Arguments;
use crate::python_format;
use crate::python_letters::printable;
use crate::python_number::number;
use crate::python_value::{invalid, items, pairs, type_of, Range, Tuple, Type, View};

/// str(value).
pub fn text(value: &Value) -> Result<String, Error> {
    match type_of(value) {
        Type::Text => Ok(value.as_str().unwrap_or_default().to_string()),
        Type::Undefined => Ok(String::new()),
        _ => repr_text(value),
    }
}

/// repr(value).
pub fn repr_text(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    repr(value, &mut out)?;
    Ok(out)
}

/// str.format.
pub fn formatted(state: &State, pattern: &str, args: &Arguments) -> Result<String, Error> {
    python_format::format(state, pattern, args, 2)
}

fn list(items: &[Value], brackets: [&str; 2], out: &mut String) -> Result<(), Error> {
    out.push_str(brackets[0]);
    for (i, item) in items.iter().enumerate() {
        out.push_str(if i == 0 { "" } else { ", " });
        repr(item, out)?;
        prints(out.len())?;
    }
    out.push_str(brackets[1]);
    Ok(())
}

fn repr(value: &Value, out: &mut String) -> Result<(), Error> {
    match type_of(value) {
        Type::None => out.push_str("None"),
        Type::Undefined => out.push_str("Undefined"),
        Type::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        Type::Int | Type::Float => out.push_str(&number(value)),
        Type::Text if value.is_safe() => {
            out.push_str("Markup(");
            repr_string(value.as_str().unwrap_or_default(), out);
            out.push(')');
        }
        Type::Text => repr_string(value.as_str().unwrap_or_default(), out),
        Type::List => list(&items(value)?, ["[", "]"], out)?,
        Type::Tuple => {
            let items = value.downcast_object_ref::<Tuple>().map_or(&[][..], |tuple| &tuple.items);
            list(items, ["(", if items.len() == 1 { ",)" } else { ")" }], out)?;
        }
        Type::Dictionary => {
            out.push('{');
            for (i, (key, value)) in pairs(value)?.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                repr(key, out)?;
                out.push_str(": ");
                repr(value, out)?;
                prints(out.len())?;
            }
            out.push('}');
        }
        Type::View => {
            let name = value.downcast_object_ref::<View>().map_or("", |view| view.name);
            list(&items(value)?, [&format!("dict_{name}(["), "])"], out)?;
        }
        Type::Range => {
            if let Some(range) = value.downcast_object_ref::<Range>() {
                out.push_str(&range.text());
            }
        }
        Type::Generator | Type::Other => {
            return Err(invalid(
                "the template prints an object, whose text in Python is its \
                                address in memory, which is not supported",
            ))
        }
    }
    Ok(())
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
