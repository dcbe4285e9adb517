//! The functions that expressions become, and those that Python and Jinja give a template.

use minijinja::value::Rest;
use minijinja::{Environment, Error, State, UndefinedBehavior, Value};

use crate::budget::{built, charge, read};
use crate::depth::kept;
use crate::jinja_lookups::{attribute, item, method, slice};
use crate::jinja_objects::{cycler, joiner};
use crate::jinja_tests::test;
use crate::python;
use crate::python_call::{whole, Arguments};
use crate::python_number::parse_integer;
use crate::python_operators::{apply, compare, equal, hashable, sign};
use crate::python_value::{
    dictionary, invalid, items, pairs, tuple, type_of, undefined, Range, Type,
};

const LONGEST_RANGE: usize = 100_000; // as Jinja's sandbox has it

/// Whether a name that is not given is an error where it is used.
fn strict(state: &State) -> bool {
    let behaviour = state.undefined_behavior();
    matches!(behaviour, UndefinedBehavior::Strict | UndefinedBehavior::SemiStrict)
}

fn check(state: &State, values: &[Value]) -> Result<(), Error> {
    match strict(state) && values.iter().any(Value::is_undefined) {
        true => Err(undefined()),
        false => Ok(()),
    }
}

fn range(args: &Arguments) -> Result<Value, Error> {
    let [first, second, step] = args.bind(["start", "stop", "step"], 1)?;
    let whole = |value: Option<Value>| value.as_ref().map(whole).transpose();
    let (first, second) = (whole(first)?.unwrap_or(0), whole(second)?);
    let (start, stop) = second.map_or((0, first), |second| (first, second));
    let step = whole(step)?.unwrap_or(1);
    if step == 0 {
        return Err(invalid("range() arg 3 must not be zero"));
    }
    let span = if step > 0 { stop - start } else { start - stop };
    let length = span.max(0) / step.abs() + i128::from(span.max(0) % step.abs() != 0);
    if length > LONGEST_RANGE as i128 {
        return Err(invalid(format!(
            "Range too big. The sandbox blocks ranges larger than MAX_RANGE ({LONGEST_RANGE})."
        )));
    }
    Ok(Value::from_object(Range { start, stop, step, length: length as usize }))
}

fn dict(args: &Arguments) -> Result<Value, Error> {
    let mut all = match args.positional {
        [] => Vec::new(),
        [one] if type_of(one) == Type::Dictionary => pairs(one)?,
        [one] => {
            let mut all = Vec::new();
            for pair in items(one)? {
                match items(&pair)?.as_slice() {
                    [key, value] => all.push((key.clone(), value.clone())),
                    _ => return Err(invalid("dict() wants pairs")),
                }
            }
            all
        }
        _ => return Err(invalid("dict expected at most 1 argument")),
    };
    all.extend(args.named.iter().map(|(name, value)| (Value::from(name.as_str()), value.clone())));
    Ok(dictionary(all))
}

/// Sets the value of a key, which stays where an equal one is: 1, 1.0 and True are one key.
fn put(all: &mut Vec<(Value, Value)>, key: &Value, value: &Value) -> Result<(), Error> {
    if type_of(key) != Type::Text {
        for (known, old) in all.iter_mut() {
            if equal(known, key)? {
                *old = value.clone();
                return Ok(());
            }
        }
    }
    all.push((key.clone(), value.clone()));
    Ok(())
}

fn number(text: &str) -> Result<Value, Error> {
    match parse_integer(text, 10)? {
        Some(value) => Ok(crate::python_value::from_integer(value)),
        None => Ok(Value::from(text.parse::<f64>().unwrap_or(f64::NAN))),
    }
}

fn comparison(state: &State, values: &[Value]) -> Result<Value, Error> {
    for window in values.windows(3).step_by(2) {
        let operator = window[1].as_str().unwrap_or_default();
        if strict(state) && operator.ends_with("in") && window[2].is_undefined() {
            return Err(undefined());
        }
        if !compare(&window[0], operator, &window[2])? {
            return Ok(Value::from(false));
        }
    }
    Ok(Value::from(true))
}

type Function = fn(&Arguments) -> Result<Value, Error>;

/// Functions that a template finds under these names.
const FUNCTIONS: [(&str, Function); 5] = [
    ("range", range),
    ("dict", dict),
    ("joiner", joiner),
    ("cycler", cycler),
    ("lipsum", |_| Err(invalid("the template uses the function 'lipsum', which is not supported"))),
];

/// The functions that `jinja_expression` calls, and Python's own.
pub fn add_functions(environment: &mut Environment) {
    const OPERATORS: [(&str, &str); 7] = [
        ("_add", "+"),
        ("_subtract", "-"),
        ("_multiply", "*"),
        ("_divide", "/"),
        ("_floor_divide", "//"),
        ("_modulo", "%"),
        ("_power", "**"),
    ];
    for (name, operator) in OPERATORS {
        environment.add_function(name, move |state: &State, values: Rest<Value>| {
            let mut rest = values.iter();
            let first = rest.next().cloned().unwrap_or_default();
            rest.try_fold(first, |left, right| built(state, apply(operator, &left, right)?))
        });
    }
    environment.add_function("_concatenate", |state: &State, values: Rest<Value>| {
        check(state, &values)?;
        read(state, &values)?;
        let texts: Result<Vec<String>, Error> = values.iter().map(python::text).collect();
        built(state, Value::from(texts?.concat()))
    });
    environment.add_function("_negative", |value: Value| sign(true, &value));
    environment.add_function("_positive", |value: Value| sign(false, &value));
    environment.add_function("_compare", |state: &State, all: Rest<Value>| {
        read(state, &all)?;
        comparison(state, &all)
    });
    environment.add_function("_number", |text: String| number(&text));
    environment.add_function("_tuple", |values: Rest<Value>| tuple(values.0));
    environment.add_function("_dictionary", |values: Rest<Value>| {
        let mut all = Vec::new();
        for pair in values.chunks(2) {
            hashable(&pair[0])?;
            put(&mut all, &pair[0], &pair[1])?;
        }
        Ok::<Value, Error>(dictionary(all))
    });
    environment.add_function("_iterable", |state: &State, value: Value| {
        check(state, std::slice::from_ref(&value))?;
        match type_of(&value) {
            Type::List | Type::Tuple | Type::Range | Type::View | Type::Generator => Ok(value),
            _ => built(state, Value::from(items(&value)?)),
        }
    });
    // Whatever is assigned to a name.
    environment.add_function("_kept", kept);
    // Whatever can be iterated over can be assigned to several names.
    environment.add_function("_unpacked", |state: &State, value: Value| {
        built(state, Value::from(items(&value)?))
    });
    environment.add_function("_rows", |state: &State, value: Value| {
        check(state, std::slice::from_ref(&value))?;
        let unpacked = |row: Value| match type_of(&row) {
            Type::Text | Type::Dictionary | Type::View => items(&row).map(Value::from),
            _ => Ok(row),
        };
        let rows: Result<Vec<Value>, Error> = items(&value)?.into_iter().map(unpacked).collect();
        built(state, Value::from(rows?))
    });
    environment.add_function("_attribute", |state: &State, value: Value, name: String| {
        attribute(state, &value, &name)
    });
    environment.add_function("_item", |state: &State, value: Value, key: Value| {
        // A letter is found by counting, a key that is no text by comparing.
        match type_of(&value) {
            Type::Text => charge(state, value.as_str().map_or(0, str::len) as u64 / 4)?,
            Type::Dictionary if type_of(&key) != Type::Text => {
                read(state, std::slice::from_ref(&value))?;
            }
            _ => {}
        }
        item(state, &value, &key)
    });
    environment.add_function(
        "_slice",
        |state: &State, value: Value, start: Value, stop: Value, step: Value| {
            read(state, std::slice::from_ref(&value))?;
            built(state, slice(&value, &start, &stop, &step)?)
        },
    );
    environment.add_function("_method", |state: &State, values: Rest<Value>| {
        match values.as_slice() {
            [of, name, rest @ ..] => method(state, of, name.as_str().unwrap_or_default(), rest),
            _ => Err(undefined()),
        }
    });
    environment.add_function("_is", |state: &State, values: Rest<Value>| {
        let [of, name, rest @ ..] = values.as_slice() else { return Err(undefined()) };
        read(state, rest)?;
        test(name.as_str().unwrap_or_default(), of, rest)
    });
    for (name, function) in FUNCTIONS {
        environment.add_function(name, move |state: &State, values: Rest<Value>| {
            built(state, function(&Arguments::of(name, &values)?)?)
        });
    }
}
