//! Jinja's tests.

use minijinja::{Error, Value};

use crate::jinja_filters::is_filter;
use crate::python;
use crate::python_call::{string, Arguments};
use crate::python_letters::{is_lower, is_upper};
use crate::python_operators::{apply, compare};
use crate::python_value::{integer, invalid, type_of, undefined, Type};

const NAMES: [&str; 39] = [
    "odd",
    "even",
    "divisibleby",
    "defined",
    "undefined",
    "filter",
    "test",
    "none",
    "boolean",
    "false",
    "true",
    "integer",
    "float",
    "lower",
    "upper",
    "string",
    "mapping",
    "number",
    "sequence",
    "iterable",
    "callable",
    "sameas",
    "escaped",
    "in",
    "==",
    "eq",
    "equalto",
    "!=",
    "ne",
    ">",
    "gt",
    "greaterthan",
    "ge",
    ">=",
    "<",
    "lt",
    "lessthan",
    "<=",
    "le",
];

pub fn is_test(name: &str) -> bool {
    NAMES.contains(&name)
}

fn remainder(value: &Value, by: &Value) -> Result<Value, Error> {
    apply("%", value, by)
}

/// Whether two values are one object in Python, as far as that is known of values without identity:
/// None and the booleans are one each, small integers are kept, and others differ by their values.
fn same(a: &Value, b: &Value) -> Result<bool, Error> {
    let (left, right) = (type_of(a), type_of(b));
    if left != right {
        return Ok(false);
    }
    match left {
        Type::None | Type::Bool => compare(a, "==", b),
        Type::Int if integer(a).is_some_and(|value| (-5..=256).contains(&value)) => {
            compare(a, "==", b)
        }
        _ if !compare(a, "==", b)? => Ok(false),
        _ => Err(invalid(
            "the template asks whether equal values are one object, which is not \
                          supported",
        )),
    }
}

/// `value is name(args)`.
pub fn test(name: &str, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let args = Arguments::of(name, args)?;
    let kind = type_of(value);
    let operator = match name {
        "==" | "eq" | "equalto" => "==",
        "!=" | "ne" => "!=",
        ">" | "gt" | "greaterthan" => ">",
        ">=" | "ge" => ">=",
        "<" | "lt" | "lessthan" => "<",
        "<=" | "le" => "<=",
        "in" => "in",
        _ => "",
    };
    if !operator.is_empty() {
        let [other] = args.bind(["other"], 1)?;
        return compare(value, operator, &other.unwrap_or_default()).map(Value::from);
    }
    if matches!(name, "divisibleby" | "sameas") {
        let [other] = args.bind([if name == "sameas" { "other" } else { "num" }], 1)?;
        let other = other.unwrap_or_default();
        return Ok(Value::from(match name {
            "sameas" => same(value, &other)?,
            _ => compare(&remainder(value, &other)?, "==", &Value::from(0))?,
        }));
    }
    if !is_test(name) {
        return Err(invalid(format!("no test named '{name}'")));
    }
    args.bind([], 0)?;
    Ok(Value::from(match name {
        "odd" => compare(&remainder(value, &Value::from(2))?, "==", &Value::from(1))?,
        "even" => compare(&remainder(value, &Value::from(2))?, "==", &Value::from(0))?,
        "defined" => kind != Type::Undefined,
        "undefined" => kind == Type::Undefined,
        "none" => kind == Type::None,
        "boolean" => kind == Type::Bool,
        "true" => kind == Type::Bool && value.is_true(),
        "false" => kind == Type::Bool && !value.is_true(),
        "integer" => kind == Type::Int,
        "float" => kind == Type::Float,
        "number" => matches!(kind, Type::Bool | Type::Int | Type::Float),
        "string" => kind == Type::Text,
        "mapping" => kind == Type::Dictionary,
        "lower" => is_lower(&python::text(value)?),
        "upper" => is_upper(&python::text(value)?),
        "sequence" => {
            let sized = matches!(kind, Type::Text | Type::List | Type::Tuple | Type::Range);
            sized || matches!(kind, Type::Dictionary | Type::Undefined)
        }
        // An undefined value is iterated over as an empty one.
        "iterable" => {
            !matches!(kind, Type::None | Type::Bool | Type::Int | Type::Float | Type::Other)
        }
        "callable" => is_callable(value),
        "escaped" => value.is_safe(),
        "filter" => is_filter(string(value)?),
        "test" => is_test(string(value)?),
        _ => return Err(undefined()),
    }))
}

fn is_callable(value: &Value) -> bool {
    match type_of(value) {
        // Python can call what is undefined, and is told that it must not.
        Type::Undefined => true,
        Type::Other => {
            let name = value.as_object().map_or("", |object| object.type_name());
            !name.ends_with("::Namespace")
        }
        _ => false,
    }
}
