//! What Python's operators do with the values of a template.

use std::cmp::Ordering;

use minijinja::{Error, Value};

use crate::python;
use crate::python_format::percent;
use crate::python_number::{calculate, compare as compare_numbers, Number};
use crate::python_value::{
    from_integer, integer, invalid, items, pairs, tuple, type_name, type_of, undefined, Tuple,
    Type, View,
};

const LONGEST: usize = 10_000_000; // of what `*` repeats
const MOST_COMPARED: u32 = 1_000_000; // values inside two others

/// html.escape as markupsafe writes it.
pub fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('>', "&gt;").replace('<', "&lt;");
    text.replace('\'', "&#39;").replace('"', "&#34;")
}

/// Text that goes into other, safe text.
pub fn markup(value: &Value) -> Result<String, Error> {
    let text = python::text(value)?;
    Ok(if value.is_safe() { text } else { escaped(&text) })
}

fn unsupported(operator: &str, a: &Value, b: &Value) -> Error {
    if a.is_undefined() || b.is_undefined() {
        return undefined();
    }
    if operator == "+" && matches!(type_of(a), Type::Text | Type::List | Type::Tuple) {
        let name = type_name(a);
        let other = type_name(b);
        return invalid(format!("can only concatenate {name} (not \"{other}\") to {name}"));
    }
    let (a, b) = (type_name(a), type_name(b));
    invalid(format!("unsupported operand type(s) for {operator}: '{a}' and '{b}'"))
}

fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    match (type_of(a), type_of(b)) {
        (Type::Text, Type::Text) if a.is_safe() || b.is_safe() => {
            Ok(Value::from_safe_string(markup(a)? + &markup(b)?))
        }
        (Type::Text, Type::Text) => {
            Ok(Value::from([a.as_str().unwrap_or(""), b.as_str().unwrap_or("")].concat()))
        }
        (Type::List, Type::List) => {
            let mut all = items(a)?;
            all.extend(items(b)?);
            Ok(Value::from(all))
        }
        (Type::Tuple, Type::Tuple) => {
            let mut all = items(a)?;
            all.extend(items(b)?);
            Ok(tuple(all))
        }
        _ => Err(unsupported("+", a, b)),
    }
}

fn repeat(what: &Value, times: i128) -> Result<Option<Value>, Error> {
    let length = match type_of(what) {
        Type::Text => what.as_str().unwrap_or("").len(),
        Type::List | Type::Tuple => what.len().unwrap_or(0),
        _ => return Ok(None),
    };
    let times = times.max(0);
    if times.checked_mul(length as i128).is_none_or(|total| total > LONGEST as i128) {
        return Err(invalid(format!(
            "the template repeats something to more than {LONGEST} items, which is not supported"
        )));
    }
    let times = if length == 0 { 0 } else { times as usize };
    let repeated = |all: Vec<Value>| all.iter().cycle().take(times * length).cloned().collect();
    Ok(Some(match type_of(what) {
        Type::Text if what.is_safe() => {
            Value::from_safe_string(what.as_str().unwrap_or("").repeat(times))
        }
        Type::Text => Value::from(what.as_str().unwrap_or("").repeat(times)),
        Type::List => Value::from(repeated(items(what)?)),
        _ => tuple(repeated(items(what)?)),
    }))
}

/// `a operator b`, where the operator is one of + - * / // % **.
pub fn apply(operator: &str, a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (Number::of(a), Number::of(b)) {
        return calculate(operator, a, b);
    }
    let repeated = match operator {
        "+" => return add(a, b),
        "%" if type_of(a) == Type::Text => return percent(a, b),
        "*" => match (integer(a), integer(b)) {
            (Some(times), None) => repeat(b, times)?,
            (None, Some(times)) => repeat(a, times)?,
            _ => None,
        },
        _ => None,
    };
    repeated.ok_or_else(|| unsupported(operator, a, b))
}

pub fn sign(negative: bool, value: &Value) -> Result<Value, Error> {
    match Number::of(value) {
        Some(Number::Whole(whole)) => Ok(from_integer(if negative { -whole } else { whole })),
        Some(Number::Real(real)) => Ok(Value::from(if negative { -real } else { real })),
        None if value.is_undefined() => Err(undefined()),
        None => {
            let operator = if negative { "-" } else { "+" };
            let name = type_name(value);
            Err(invalid(format!("bad operand type for unary {operator}: '{name}'")))
        }
    }
}

/// Python's ==.
pub fn equal(a: &Value, b: &Value) -> Result<bool, Error> {
    let mut left = MOST_COMPARED;
    equal_within(a, b, &mut left)
}

/// `left`: how many values more may be compared. A list may hold another twice, and that one too.
fn equal_within(a: &Value, b: &Value, left: &mut u32) -> Result<bool, Error> {
    *left = left.checked_sub(1).ok_or_else(|| {
        invalid(format!("the template compares lists of more than {MOST_COMPARED} parts"))
    })?;
    if let (Some(a), Some(b)) = (Number::of(a), Number::of(b)) {
        return Ok(compare_numbers(a, b) == Some(Ordering::Equal));
    }
    let (kind, other_kind) = (type_of(a), type_of(b));
    if kind != other_kind {
        return Ok(false);
    }
    match kind {
        Type::Undefined | Type::None => Ok(true),
        Type::Text => Ok(a.as_str() == b.as_str()),
        Type::List | Type::Tuple | Type::Range => all_equal(&items(a)?, &items(b)?, left),
        Type::Dictionary => {
            let (ours, theirs) = (pairs(a)?, pairs(b)?);
            if ours.len() != theirs.len() {
                return Ok(false);
            }
            for (key, value) in ours {
                let mut found = false;
                for (other, their_value) in &theirs {
                    found |= equal_within(&key, other, left)?
                        && equal_within(&value, their_value, left)?;
                }
                if !found {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        _ => Ok(a == b),
    }
}

fn all_equal(a: &[Value], b: &[Value], left: &mut u32) -> Result<bool, Error> {
    for (one, other) in a.iter().zip(b) {
        if !equal_within(one, other, left)? {
            return Ok(false);
        }
    }
    Ok(a.len() == b.len())
}

/// Python's order of two values; none between a number and a nan.
pub fn order(sign: &str, a: &Value, b: &Value) -> Result<Option<Ordering>, Error> {
    if let (Some(a), Some(b)) = (Number::of(a), Number::of(b)) {
        return Ok(compare_numbers(a, b));
    }
    match (type_of(a), type_of(b)) {
        (Type::Text, Type::Text) => Ok(Some(a.as_str().cmp(&b.as_str()))),
        (Type::List, Type::List) | (Type::Tuple, Type::Tuple) => {
            let (left, right) = (items(a)?, items(b)?);
            for (one, other) in left.iter().zip(&right) {
                if !equal(one, other)? {
                    return order(sign, one, other);
                }
            }
            Ok(Some(left.len().cmp(&right.len())))
        }
        (Type::Undefined, _) | (_, Type::Undefined) => Err(undefined()),
        _ => Err(invalid(format!(
            "'{sign}' not supported between instances of '{}' and '{}'",
            type_name(a),
            type_name(b)
        ))),
    }
}

pub fn contains(container: &Value, item: &Value) -> Result<bool, Error> {
    match type_of(container) {
        Type::Text => match item.as_str() {
            Some(text) => Ok(container.as_str().unwrap_or("").contains(text)),
            None => {
                let name = type_name(item);
                Err(invalid(format!("'in <string>' requires string as left operand, not {name}")))
            }
        },
        Type::Undefined => Ok(false),
        Type::Dictionary => Ok(lookup(container, item)?.is_some()),
        Type::View if view_of(container) == "keys" => {
            hashable(item)?;
            any_equal(container, item)
        }
        Type::None | Type::Bool | Type::Int | Type::Float | Type::Other => {
            Err(invalid(format!("argument of type '{}' is not iterable", type_name(container))))
        }
        _ => any_equal(container, item),
    }
}

/// Whether a view is of a dictionary's keys, its values or both.
fn view_of(value: &Value) -> &'static str {
    value.downcast_object_ref::<View>().map_or("", |view| view.name)
}

fn any_equal(container: &Value, item: &Value) -> Result<bool, Error> {
    for one in items(container)? {
        if equal(&one, item)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a value can be a key.
pub fn hashable(value: &Value) -> Result<(), Error> {
    if let Some(tuple) = value.downcast_object_ref::<Tuple>() {
        return tuple.items.iter().try_for_each(hashable);
    }
    match type_of(value) {
        Type::List | Type::Dictionary => {
            Err(invalid(format!("unhashable type: '{}'", type_name(value))))
        }
        _ => Ok(()),
    }
}

/// The value of a key of a dictionary.
pub fn lookup(dictionary: &Value, key: &Value) -> Result<Option<Value>, Error> {
    hashable(key)?;
    if type_of(key) == Type::Text {
        let object = dictionary.as_object();
        return Ok(object.and_then(|object| object.get_value(key)));
    }
    for (known, value) in pairs(dictionary)? {
        if equal(&known, key)? {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

/// One comparison; `not in` is two words.
pub fn compare(a: &Value, operator: &str, b: &Value) -> Result<bool, Error> {
    Ok(match operator {
        "==" => equal(a, b)?,
        "!=" => !equal(a, b)?,
        "in" => contains(b, a)?,
        "not in" => !contains(b, a)?,
        "<" => order("<", a, b)? == Some(Ordering::Less),
        ">" => order(">", a, b)? == Some(Ordering::Greater),
        "<=" => order("<=", a, b)?.is_some_and(Ordering::is_le),
        _ => order(">=", a, b)?.is_some_and(Ordering::is_ge),
    })
}
