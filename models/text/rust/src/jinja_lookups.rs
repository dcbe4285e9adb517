//! Lookups and calls of methods as Jinja's sandbox makes them.

use minijinja::{Error, State, Value};

use crate::budget::{built, read};
use crate::python;
use crate::python_call::{index, whole, Arguments};
use crate::python_operators::{equal, hashable, lookup};
use crate::python_text;
use crate::python_value::{
    dictionary, from_integer, integer, invalid, items, pairs, tuple, type_name, type_of, undefined,
    Method, Type, View,
};

const OF_DICTIONARIES: [&str; 6] = ["copy", "fromkeys", "get", "items", "keys", "values"];
const OF_LISTS: [&str; 3] = ["copy", "count", "index"];
const OF_TUPLES: [&str; 2] = ["count", "index"];

/// Methods that change a value, which the sandbox does not give.
const CHANGE_DICTIONARIES: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];
const CHANGE_LISTS: [&str; 8] =
    ["append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"];

enum Own {
    Method,
    Unsafe,
    Missing, // Python has it, the templates here do not
    Not,
}

/// Whether Python's type of a value has an attribute, which goes before what the value holds.
fn own(value: &Value, name: &str) -> Own {
    let (methods, changes, missing): (&[&str], &[&str], &[&str]) = match type_of(value) {
        Type::Text => (&python_text::METHODS, &[], &python_text::MISSING),
        Type::Dictionary => (&OF_DICTIONARIES, &CHANGE_DICTIONARIES, &[]),
        Type::List => (&OF_LISTS, &CHANGE_LISTS, &[]),
        Type::Tuple | Type::Range => (&OF_TUPLES, &[], &[]),
        Type::Int | Type::Bool => (
            &["bit_length", "conjugate"],
            &[],
            &[
                "as_integer_ratio",
                "bit_count",
                "denominator",
                "from_bytes",
                "imag",
                "numerator",
                "real",
                "to_bytes",
            ],
        ),
        Type::Float => (
            &["conjugate", "is_integer"],
            &[],
            &["as_integer_ratio", "fromhex", "hex", "imag", "real"],
        ),
        _ => (&[], &[], &[]),
    };
    if methods.contains(&name) {
        Own::Method
    } else if changes.contains(&name) {
        Own::Unsafe
    } else if missing.contains(&name) {
        Own::Missing
    } else {
        Own::Not
    }
}

fn not_supported(value: &Value, name: &str) -> Error {
    let of = type_name(value);
    invalid(format!("the template uses the attribute '{name}' of {of}, which is not supported"))
}

/// value.name
pub fn attribute(_: &State, value: &Value, name: &str) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(undefined());
    }
    match own(value, name) {
        Own::Method => {
            return Ok(Value::from_object(Method { of: value.clone(), name: name.to_string() }))
        }
        Own::Unsafe => return Ok(Value::UNDEFINED),
        Own::Missing => return Err(not_supported(value, name)),
        Own::Not => {}
    }
    match type_of(value) {
        Type::Dictionary | Type::Other | Type::Tuple => {
            let found = value.as_object().and_then(|object| object.get_value(&Value::from(name)));
            Ok(found.unwrap_or_default())
        }
        _ => Ok(Value::UNDEFINED),
    }
}

/// The place of an index that may count from the end.
fn place(index: i128, length: usize) -> Option<usize> {
    let length = length as i128;
    let at = if index < 0 { index + length } else { index };
    (0..length).contains(&at).then_some(at as usize)
}

/// value[key]
pub fn item(state: &State, value: &Value, key: &Value) -> Result<Value, Error> {
    let found = match (type_of(value), integer(key)) {
        (Type::Undefined, _) => return Err(undefined()),
        (Type::Dictionary, _) if hashable(key).is_ok() => lookup(value, key)?,
        (Type::Text, Some(index)) => {
            let text = value.as_str().unwrap_or_default();
            let at = place(index, text.chars().count());
            at.and_then(|at| text.chars().nth(at)).map(|c| Value::from(c.to_string()))
        }
        (Type::List | Type::Tuple | Type::Range, Some(index)) => {
            let at = place(index, value.len().unwrap_or(0));
            at.and_then(|at| value.get_item_by_index(at).ok())
        }
        _ => None,
    };
    match (found, key.as_str()) {
        (Some(found), _) => Ok(found),
        (None, Some(name)) => attribute(state, value, name),
        (None, None) => Ok(Value::UNDEFINED),
    }
}

/// value[start:stop:step]
pub fn slice(value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    let bound = |value: &Value| match value.is_none() {
        true => Ok(None),
        false => index(&Some(value.clone()), 0).map(|i| Some(i as i128)),
    };
    let kind = type_of(value);
    if kind == Type::Undefined {
        return Err(undefined());
    }
    if !matches!(kind, Type::Text | Type::List | Type::Tuple | Type::Range) {
        // Of a literal a slice that there is not is nothing in Jinja.
        let name = type_name(value);
        return Err(invalid(format!("the template slices a '{name}', which is not supported")));
    }
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?);
    let all = items(value)?;
    let length = all.len() as i128;
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(invalid("slice step cannot be zero"));
    }
    let (lowest, highest) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let clamp = |at: i128| (if at < 0 { at + length } else { at }).clamp(lowest, highest);
    let mut at = start.map_or(if step > 0 { lowest } else { highest }, clamp);
    let end = stop.map_or(if step > 0 { highest } else { lowest }, clamp);
    let mut picked = Vec::new();
    while (step > 0 && at < end) || (step < 0 && at > end) {
        picked.push(all[at as usize].clone());
        at += step;
    }
    match kind {
        Type::Text => {
            let text: String = picked.iter().filter_map(Value::as_str).collect();
            Ok(if value.is_safe() { Value::from_safe_string(text) } else { Value::from(text) })
        }
        Type::Tuple => Ok(tuple(picked)),
        Type::Range => Err(invalid("the template slices a range, which is not supported")),
        _ => Ok(Value::from(picked)),
    }
}

fn dictionary_method(of: &Value, name: &str, args: &Arguments) -> Result<Value, Error> {
    let view = |name, items| Value::from_object(View { name, items });
    if name == "get" {
        if !args.named.is_empty() {
            return Err(invalid("get() takes no keyword arguments"));
        }
        let [key, default] = args.bind(["key", "default"], 1)?;
        let found = lookup(of, &key.unwrap_or_default())?;
        return Ok(found.or(default).unwrap_or_else(|| Value::from(())));
    }
    if name == "fromkeys" {
        let [keys, value] = args.bind(["iterable", "value"], 1)?;
        let value = value.unwrap_or_else(|| Value::from(()));
        let keys = items(&keys.unwrap_or_default())?;
        return Ok(dictionary(keys.into_iter().map(|key| (key, value.clone())).collect()));
    }
    args.bind([], 0)?;
    let all = pairs(of)?;
    Ok(match name {
        "items" => {
            view("items", all.into_iter().map(|(key, value)| tuple(vec![key, value])).collect())
        }
        "keys" => view("keys", all.into_iter().map(|(key, _)| key).collect()),
        "values" => view("values", all.into_iter().map(|(_, value)| value).collect()),
        _ => dictionary(all),
    })
}

fn list_method(of: &Value, name: &str, args: &Arguments) -> Result<Value, Error> {
    if name == "copy" {
        args.bind([], 0)?;
        return Ok(of.clone());
    }
    let all = items(of)?;
    let needs = [&args.positional, &[][..]][usize::from(args.positional.is_empty())];
    let Some(wanted) = needs.first() else {
        return Err(invalid(format!("{name}() takes at least 1 argument (0 given)")));
    };
    let mut count = 0;
    let begin = match (name, args.positional.get(1)) {
        ("index", Some(begin)) => whole(begin)?,
        _ => 0,
    };
    for (i, one) in all.iter().enumerate() {
        if equal(one, wanted)? && i as i128 >= begin {
            if name == "index" {
                return Ok(Value::from(i));
            }
            count += 1;
        }
    }
    match name {
        "index" => Err(invalid(format!("{} is not in list", python::repr_text(wanted)?))),
        _ => Ok(Value::from(count)),
    }
}

fn number_method(of: &Value, name: &str) -> Result<Value, Error> {
    match (name, integer(of), f64::try_from(of.clone())) {
        ("conjugate", Some(whole), _) => Ok(from_integer(whole)),
        ("conjugate", _, _) => Ok(of.clone()),
        ("bit_length", Some(value), _) => {
            Ok(Value::from(128 - value.unsigned_abs().leading_zeros()))
        }
        (_, _, Ok(value)) => Ok(Value::from(value.is_finite() && value.fract() == 0.0)),
        _ => Err(not_supported(of, name)),
    }
}

/// value.name(args)
pub fn method(state: &State, of: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if of.is_undefined() {
        return Err(undefined());
    }
    match own(of, name) {
        Own::Method => {}
        Own::Unsafe => {
            let kind = type_name(of);
            let what = format!("access to attribute '{name}' of '{kind}' object is unsafe");
            return Err(invalid(what));
        }
        Own::Missing => return Err(not_supported(of, name)),
        Own::Not => {
            // A loop's own methods, a macro in a namespace, a value that can be called.
            if type_of(of) == Type::Other {
                if name == "cycle" && args.is_empty() {
                    return Err(invalid("no items for cycling given"));
                }
                return of.call_method(state, name, args);
            }
            let found = attribute(state, of, name)?;
            if found.is_undefined() {
                let kind = type_name(of);
                return Err(invalid(format!("'{kind} object' has no attribute '{name}'")));
            }
            return found.call(state, args);
        }
    }
    let bound = Arguments::of(name, args)?;
    if name != "get" {
        read(state, std::slice::from_ref(of))?;
        read(state, args)?;
    }
    let made = match type_of(of) {
        Type::Text => python_text::method(state, of, name, args),
        Type::Dictionary => dictionary_method(of, name, &bound),
        Type::List | Type::Tuple | Type::Range => list_method(of, name, &bound),
        _ => bound.bind([], 0).and_then(|_| number_method(of, name)),
    };
    built(state, made?)
}
