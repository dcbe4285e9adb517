//! Python's formatting of values: `text % values`, str.format and format specifications.

use minijinja::{Error, State, Value};

use crate::budget::fits;
use crate::jinja_lookups::{attribute, item};
use crate::python;
use crate::python_call::Arguments;
use crate::python_number::Number;
use crate::python_spec::{character, digits, filled, formatted, real, sign_of, whole, Spec};
use crate::python_value::{from_integer, invalid, type_name, type_of, undefined, Tuple, Type};

/// One conversion of `%`.
fn converted(kind: char, spec: &mut Spec, value: &Value) -> Result<String, Error> {
    let number = Number::of(value);
    match kind {
        's' => Ok(filled(spec, "", &cut(spec, python::text(value)?), '>')),
        'r' => Ok(filled(spec, "", &cut(spec, python::repr_text(value)?), '>')),
        'a' => Err(invalid("the template uses '%a', which is not supported")),
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
            let whole_number = match number {
                Some(Number::Whole(value)) => value,
                Some(Number::Real(value)) if value.is_finite() && !"xXo".contains(kind) => {
                    value.trunc() as i128
                }
                _ => {
                    let name = type_name(value);
                    let what = if "xXo".contains(kind) { "an integer" } else { "a real number" };
                    return Err(invalid(format!("%{kind} format: {what} is required, not {name}")));
                }
            };
            spec.kind = "xXo".contains(kind).then_some(kind);
            if let Some(precision) = spec.precision {
                let digits = whole(&Spec { kind: spec.kind, ..Spec::plain() }, whole_number.abs());
                let sign = sign_of(spec, whole_number < 0);
                return Ok(filled(spec, &sign, &format!("{digits:0>precision$}"), '>'));
            }
            Ok(whole(spec, whole_number))
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            let Some(number) = number else {
                let name = type_name(value);
                return Err(invalid(format!("must be real number, not {name}")));
            };
            spec.kind = Some(kind);
            Ok(real(spec, number.real()))
        }
        'c' => {
            let text = match (number, value.as_str()) {
                (Some(Number::Whole(code)), _) => character(code)?.to_string(),
                (_, Some(text)) if text.chars().count() == 1 => text.to_string(),
                _ => return Err(invalid("%c requires int or char")),
            };
            Ok(filled(spec, "", &text, '>'))
        }
        _ => Err(invalid(format!("unsupported format character '{kind}'"))),
    }
}

fn cut(spec: &Spec, text: String) -> String {
    match spec.precision {
        Some(precision) => text.chars().take(precision).collect(),
        None => text,
    }
}

/// `text % values`.
pub fn percent(format: &Value, values: &Value) -> Result<Value, Error> {
    let pattern: Vec<char> = format.as_str().unwrap_or_default().chars().collect();
    let is_map = type_of(values) == Type::Dictionary;
    let list = match values.downcast_object_ref::<Tuple>() {
        Some(tuple) => tuple.items.clone(),
        None => vec![values.clone()],
    };
    let escapes = format.is_safe();
    let mut used = 0;
    let mut by_name = false;
    let mut next = || {
        used += 1;
        let missing = || invalid("not enough arguments for format string");
        list.get(used - 1).cloned().ok_or_else(missing)
    };
    let mut out = String::new();
    let mut at = 0;
    while at < pattern.len() {
        if pattern[at] != '%' {
            out.push(pattern[at]);
            at += 1;
            continue;
        }

        // %[(name)][flags][width][.precision][length]type
        at += 1;
        let mut named = None;
        if pattern.get(at) == Some(&'(') {
            let close = pattern[at..].iter().position(|c| *c == ')');
            let close = at + close.ok_or_else(|| invalid("incomplete format key"))?;
            let name: String = pattern[at + 1..close].iter().collect();
            if !is_map {
                return Err(invalid("format requires a mapping"));
            }
            let found = crate::python_operators::lookup(values, &Value::from(name.as_str()))?;
            named = Some(found.ok_or_else(|| invalid(format!("KeyError: '{name}'")))?);
            by_name = true;
            at = close + 1;
        }
        let mut spec = Spec::plain();
        while let Some(flag @ ('-' | '+' | ' ' | '#' | '0')) = pattern.get(at) {
            match flag {
                '-' => spec.align = Some('<'),
                '+' => spec.sign = '+',
                ' ' if spec.sign != '+' => spec.sign = ' ',
                '#' => spec.alternate = true,
                '0' => spec.fill = '0',
                _ => {}
            }
            at += 1;
        }
        spec.width = digits(&pattern, &mut at)?.unwrap_or(0);
        if pattern.get(at) == Some(&'.') {
            at += 1;
            spec.precision = Some(digits(&pattern, &mut at)?.unwrap_or(0));
        }
        while matches!(pattern.get(at), Some('h' | 'l' | 'L')) {
            at += 1;
        }
        let Some(&kind) = pattern.get(at) else { return Err(invalid("incomplete format")) };
        if kind == '*' {
            return Err(invalid("the template uses '*' in a format, which is not supported"));
        }
        at += 1;

        if kind == '%' {
            out.push('%');
            continue;
        }
        let zeros = spec.fill == '0' && spec.align.is_none() && !"srac".contains(kind);
        (spec.fill, spec.align) = if zeros { ('0', Some('=')) } else { (' ', spec.align) };
        let value = match named {
            Some(value) => value,
            None => next()?,
        };
        let text = converted(kind, &mut spec, &value)?;
        let safe = !escapes || !"sr".contains(kind) || value.is_safe();
        out.push_str(&if safe { text } else { crate::python_operators::escaped(&text) });
        fits(out.len())?;
    }

    let spare = !by_name && used < list.len() && !is_map;
    // Python takes what can be indexed for a mapping, of which not all need be used.
    let indexed = matches!(type_of(values), Type::List | Type::Range | Type::Undefined);
    let unused_sequence = indexed && used == 0;
    if spare && !unused_sequence {
        return Err(invalid("not all arguments converted during string formatting"));
    }
    Ok(if escapes { Value::from_safe_string(out) } else { Value::from(out) })
}

/// str.format; `depth` is how deep a specification may hold places of its own.
pub fn format(state: &State, pattern: &str, args: &Arguments, depth: u8) -> Result<String, Error> {
    let mut numbering = Numbering { next: 0, by_hand: false };
    format_with(state, pattern, args, depth, &mut numbering)
}

/// How the places of a format without names have had their numbers so far.
struct Numbering {
    next: usize,
    by_hand: bool,
}

fn format_with(
    state: &State,
    pattern: &str,
    args: &Arguments,
    depth: u8,
    numbering: &mut Numbering,
) -> Result<String, Error> {
    let mut out = String::new();
    let mut rest = pattern;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let brace = &rest[at..at + 1];
        rest = &rest[at + 1..];
        if rest.starts_with(brace) {
            out.push_str(brace);
            rest = &rest[1..];
            continue;
        }
        if brace == "}" {
            return Err(invalid("Single '}' encountered in format string"));
        }

        let mut open = 1;
        let end = rest.find(|c| {
            open += i32::from(c == '{') - i32::from(c == '}');
            open == 0
        });
        let end = end.ok_or_else(|| invalid("expected '}' before end of string"))?;
        if depth == 0 {
            return Err(invalid("Max string recursion exceeded"));
        }
        let field = &rest[..end];
        rest = &rest[end + 1..];
        let split = field.find(['!', ':']).unwrap_or(field.len());
        let mut value = field_value(state, &field[..split], args, numbering)?;
        let mut tail = &field[split..];
        if let Some(conversion) = tail.strip_prefix('!') {
            let kind = conversion.chars().next().unwrap_or(' ');
            value = match kind {
                's' => Value::from(python::text(&value)?),
                'r' => Value::from(python::repr_text(&value)?),
                _ => return Err(invalid(format!("Unknown conversion specifier '{kind}'"))),
            };
            tail = &conversion[kind.len_utf8()..];
            if !tail.is_empty() && !tail.starts_with(':') {
                return Err(invalid("expected ':' after conversion specifier"));
            }
        }
        let spec = tail.strip_prefix(':').unwrap_or("");
        let spec = format_with(state, spec, args, depth - 1, numbering)?;
        out.push_str(&formatted(&value, &spec)?);
        fits(out.len())?;
    }
    out.push_str(rest);
    Ok(out)
}

fn field_value(
    state: &State,
    field: &str,
    args: &Arguments,
    numbering: &mut Numbering,
) -> Result<Value, Error> {
    let end = field.find(['.', '[']).unwrap_or(field.len());
    let first = &field[..end];
    let at = match first.parse::<usize>() {
        _ if field.is_empty() && numbering.by_hand => {
            return Err(invalid(
                "cannot switch from manual field specification to automatic field \
                                numbering",
            ));
        }
        _ if field.is_empty() => {
            numbering.next += 1;
            Some(numbering.next - 1)
        }
        Ok(_) if end == field.len() && numbering.next > 0 => {
            return Err(invalid(
                "cannot switch from automatic field numbering to manual field \
                                specification",
            ));
        }
        Ok(at) => {
            numbering.by_hand |= end == field.len();
            Some(at)
        }
        Err(_) => None,
    };
    let mut value = match at {
        Some(at) => args.positional.get(at).cloned().ok_or_else(|| {
            invalid(format!("Replacement index {at} out of range for positional args tuple"))
        })?,
        None => {
            let found = args.named.iter().find(|(name, _)| name == first);
            found.ok_or_else(|| invalid(format!("KeyError: '{first}'")))?.1.clone()
        }
    };
    let mut rest = &field[end..];
    while !rest.is_empty() {
        if value.is_undefined() {
            return Err(undefined());
        }
        if let Some(tail) = rest.strip_prefix('.') {
            let end = tail.find(['.', '[']).unwrap_or(tail.len());
            value = attribute(state, &value, &tail[..end])?;
            rest = &tail[end..];
        } else {
            let tail = rest.strip_prefix('[').unwrap_or(rest);
            let end = tail.find(']').ok_or_else(|| invalid("Missing ']' in format string"))?;
            let key = match tail[..end].parse::<i128>() {
                Ok(index) if !tail.starts_with(['-', '+']) => from_integer(index),
                _ => Value::from(&tail[..end]),
            };
            value = item(state, &value, &key)?;
            rest = &tail[end + 1..];
        }
    }
    Ok(value)
}
