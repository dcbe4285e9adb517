//! Jinja's filters of one value; those of lists are in `jinja_list_filters`.

use minijinja::value::Rest;
use minijinja::{Environment, Error, State, Value};

use crate::budget::{built, letters, read};
use crate::jinja_list_filters as lists;
use crate::jinja_text_filters as texts;
use crate::python;
use crate::python_call::{flag, index, string, whole, Arguments};
use crate::python_json::tojson;
use crate::python_letters::capitalize;
use crate::python_number::{
    calculate, parse_float, parse_integer, round_real, round_whole, too_long, Number,
};
use crate::python_operators::{escaped, markup};
use crate::python_value::{
    from_integer, integer, invalid, items, pairs, tuple, type_name, type_of, undefined, Type,
};

pub type Filter = fn(&State, &Arguments) -> Result<Value, Error>;

/// A filter's name, its parameters' names and what it does are in one place each.
const FILTERS: [(&str, Filter); 50] = [
    ("abs", absolute),
    ("attr", attr),
    ("batch", lists::batch),
    ("capitalize", |_, args| of_text(args, capitalize)),
    ("center", texts::center),
    ("count", length),
    ("d", default),
    ("default", default),
    ("dictsort", lists::dictsort),
    ("e", escape),
    ("escape", escape),
    ("filesizeformat", texts::filesizeformat),
    ("first", lists::first),
    ("float", float),
    ("forceescape", forceescape),
    ("format", texts::format),
    ("groupby", lists::groupby),
    ("indent", texts::indent),
    ("int", int),
    ("items", |_, args| items_of(args)),
    ("join", lists::join),
    ("last", lists::last),
    ("length", length),
    ("list", |_, args| Ok(Value::from(items(&only(args)?)?))),
    ("lower", |_, args| of_text(args, str::to_lowercase)),
    ("map", lists::map),
    ("max", lists::max),
    ("min", lists::min),
    ("reject", lists::reject),
    ("rejectattr", lists::rejectattr),
    ("replace", texts::replaced),
    ("reverse", lists::reverse),
    ("round", round),
    ("safe", |_, args| Ok(Value::from_safe_string(python::text(&only(args)?)?))),
    ("select", lists::select),
    ("selectattr", lists::selectattr),
    ("slice", lists::slice),
    ("sort", lists::sort),
    ("string", stringed),
    ("sum", lists::sum),
    ("title", |_, args| of_text(args, texts::title)),
    ("tojson", tojson_filter),
    ("trim", texts::trim),
    ("truncate", texts::truncate),
    ("unique", lists::unique),
    ("upper", |_, args| of_text(args, str::to_uppercase)),
    ("urlencode", texts::urlencode),
    ("wordcount", texts::wordcount),
    ("xmlattr", texts::xmlattr),
    ("striptags", |_, _| unsupported("striptags")),
];

/// Filters that do not look at all of a value.
const AT_ONCE: [&str; 8] = ["attr", "count", "d", "default", "first", "int", "length", "safe"];

/// Filters that make values of a text's letters.
const OF_ITEMS: [&str; 15] = [
    "batch",
    "groupby",
    "join",
    "list",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "select",
    "selectattr",
    "slice",
    "sort",
    "sum",
    "unique",
];

/// Filters of Jinja that are known and refused when they are used.
const UNSUPPORTED: [&str; 4] = ["pprint", "random", "urlize", "wordwrap"];

/// Whether Jinja has the filter, or the crate for its own use.
pub fn is_filter(name: &str) -> bool {
    let known = FILTERS.iter().any(|(known, _)| *known == name);
    known || UNSUPPORTED.contains(&name) || name == crate::jinja_source::FILTER
}

fn unsupported(name: &str) -> Result<Value, Error> {
    Err(invalid(format!("the template uses the filter '{name}', which is not supported")))
}

pub fn add_filters(environment: &mut Environment) {
    for (name, filter) in FILTERS {
        environment.add_filter(name, move |state: &State, values: Rest<Value>| {
            if !AT_ONCE.contains(&name) {
                read(state, &values)?;
            }
            if let Some(first) = values.first().filter(|_| OF_ITEMS.contains(&name)) {
                letters(state, first)?;
            }
            built(state, filter(state, &Arguments::of(name, &values)?)?)
        });
    }
    for name in UNSUPPORTED {
        environment.add_filter(name, move |_: Rest<Value>| unsupported(name));
    }
}

/// The value of a filter that has no other argument.
pub fn only(args: &Arguments) -> Result<Value, Error> {
    let [value] = args.bind(["value"], 1)?;
    Ok(value.unwrap_or_default())
}

fn of_text(args: &Arguments, change: impl Fn(&str) -> String) -> Result<Value, Error> {
    let value = only(args)?;
    let changed = change(&python::text(&value)?);
    Ok(if value.is_safe() { Value::from_safe_string(changed) } else { Value::from(changed) })
}

fn tojson_filter(_: &State, args: &Arguments) -> Result<Value, Error> {
    tojson(args)
}

/// What has no length is an error.
fn length(_: &State, args: &Arguments) -> Result<Value, Error> {
    let value = only(args)?;
    match type_of(&value) {
        Type::Undefined => Ok(Value::from(0)),
        Type::Text => Ok(Value::from(value.as_str().unwrap_or_default().chars().count())),
        Type::List | Type::Tuple | Type::Dictionary | Type::View | Type::Range => {
            Ok(Value::from(value.len().unwrap_or(0)))
        }
        _ => Err(invalid(format!("object of type '{}' has no len()", type_name(&value)))),
    }
}

fn absolute(_: &State, args: &Arguments) -> Result<Value, Error> {
    let value = only(args)?;
    match Number::of(&value) {
        Some(Number::Whole(whole)) => whole.checked_abs().map(from_integer).ok_or_else(too_long),
        Some(Number::Real(real)) => Ok(Value::from(real.abs())),
        None if value.is_undefined() => Err(undefined()),
        None => Err(invalid(format!("bad operand type for abs(): '{}'", type_name(&value)))),
    }
}

/// The attribute alone, where a lookup would go on to the items.
fn attr(state: &State, args: &Arguments) -> Result<Value, Error> {
    let [value, name] = args.bind(["obj", "name"], 2)?;
    let (value, name) = (value.unwrap_or_default(), name.unwrap_or_default());
    if type_of(&value) == Type::Dictionary {
        let empty = crate::python_value::dictionary(Vec::new());
        let found = crate::jinja_lookups::attribute(state, &empty, string(&name)?)?;
        return match found.is_undefined() {
            true => Ok(found),
            false => crate::jinja_lookups::attribute(state, &value, string(&name)?),
        };
    }
    if value.is_undefined() {
        return Ok(Value::UNDEFINED);
    }
    crate::jinja_lookups::attribute(state, &value, string(&name)?)
}

fn default(_: &State, args: &Arguments) -> Result<Value, Error> {
    let [value, default, boolean] = args.bind(["value", "default_value", "boolean"], 1)?;
    let value = value.unwrap_or_default();
    let absent = value.is_undefined() || (flag(&boolean, false) && !value.is_true());
    Ok(if absent { default.unwrap_or_else(|| Value::from("")) } else { value })
}

fn escape(_: &State, args: &Arguments) -> Result<Value, Error> {
    Ok(Value::from_safe_string(markup(&only(args)?)?))
}

fn forceescape(_: &State, args: &Arguments) -> Result<Value, Error> {
    Ok(Value::from_safe_string(escaped(&python::text(&only(args)?)?)))
}

fn stringed(_: &State, args: &Arguments) -> Result<Value, Error> {
    let value = only(args)?;
    Ok(if value.is_safe() { value } else { Value::from(python::text(&value)?) })
}

fn items_of(args: &Arguments) -> Result<Value, Error> {
    let value = only(args)?;
    let all = match type_of(&value) {
        Type::Undefined => Vec::new(),
        Type::Dictionary => pairs(&value)?,
        _ => return Err(invalid("Can only get item pairs from a mapping.")),
    };
    let all = all.into_iter().map(|(key, value)| tuple(vec![key, value])).collect();
    Ok(crate::python_value::Generator::of(all))
}

/// Whether int() and float() take the type at all.
fn truncated(value: f64) -> Result<Option<Value>, Error> {
    if !value.is_finite() {
        return Ok(None);
    }
    if value.abs() >= 1.7e38 {
        return Err(too_long());
    }
    Ok(Some(from_integer(value.trunc() as i128)))
}

fn int(_: &State, args: &Arguments) -> Result<Value, Error> {
    let [value, default, base] = args.bind(["value", "default", "base"], 1)?;
    let value = value.unwrap_or_default();
    let default = default.unwrap_or_else(|| Value::from(0));
    if value.is_undefined() {
        return Err(undefined());
    }
    let found = match (value.as_str(), Number::of(&value)) {
        (Some(text), _) => {
            let base = u32::try_from(index(&base, 10)?).ok().filter(|b| *b == 0 || *b > 1);
            let base = base.filter(|base| *base <= 36);
            let whole = match base {
                Some(base) => parse_integer(text, base)?,
                None => None,
            };
            match whole {
                Some(whole) => Some(from_integer(whole)),
                None => parse_float(text).map(truncated).transpose()?.flatten(),
            }
        }
        (None, Some(Number::Whole(whole))) => Some(from_integer(whole)),
        (None, Some(Number::Real(real))) if real.is_infinite() => {
            return Err(invalid("cannot convert float infinity to integer"))
        }
        (None, Some(Number::Real(real))) => truncated(real)?,
        _ => None,
    };
    Ok(found.unwrap_or(default))
}

fn float(_: &State, args: &Arguments) -> Result<Value, Error> {
    let [value, default] = args.bind(["value", "default"], 1)?;
    let value = value.unwrap_or_default();
    if value.is_undefined() {
        return Err(undefined());
    }
    let found = match value.as_str() {
        Some(text) => parse_float(text),
        None => Number::of(&value).map(Number::real),
    };
    Ok(found.map(Value::from).or(default).unwrap_or_else(|| Value::from(0.0)))
}

fn round(_: &State, args: &Arguments) -> Result<Value, Error> {
    let [value, precision, method] = args.bind(["value", "precision", "method"], 1)?;
    let value = value.unwrap_or_default();
    let digits = index(&precision, 0)?;
    let method = method.unwrap_or_else(|| Value::from("common"));
    let method = method.as_str().unwrap_or_default();
    let Some(number) = Number::of(&value) else {
        if value.is_undefined() {
            return Err(undefined());
        }
        let name = type_name(&value);
        return Err(invalid(format!("type {name} doesn't define __round__ method")));
    };
    match (method, number) {
        ("common", Number::Whole(whole)) if digits >= 0 => Ok(from_integer(whole)),
        ("common", Number::Whole(whole)) => Ok(from_integer(round_whole(whole, digits))),
        ("common", Number::Real(real)) => Ok(Value::from(round_real(real, digits))),
        ("ceil" | "floor", number) => {
            let scale = calculate("**", Number::Whole(10), Number::Whole(digits.into()))?;
            let scale = Number::of(&scale).unwrap_or(Number::Whole(1));
            let scaled = calculate("*", number, scale)?;
            let up = method == "ceil";
            let moved = match Number::of(&scaled) {
                Some(Number::Real(real)) => {
                    let real = if up { real.ceil() } else { real.floor() };
                    let whole = truncated(real)?.and_then(|value| integer(&value));
                    whole.ok_or_else(|| invalid("cannot convert float to integer"))?
                }
                _ => integer(&scaled).unwrap_or(0),
            };
            calculate("/", Number::Whole(moved), scale)
        }
        _ => Err(invalid("method must be common, ceil or floor")),
    }
}

/// An index that a filter takes, such as how many items a row has.
pub fn count(value: &Option<Value>) -> Result<i128, Error> {
    whole(value.as_ref().unwrap_or(&Value::UNDEFINED))
}
