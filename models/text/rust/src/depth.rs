//! How deep the values that a template keeps may hold each other. A loop that puts a list into
//! another one makes one that is as deep as the loop is long, and to print, compare, or free it
//! takes as much stack: a process that runs out of that is gone without a word.

use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::Object;
use minijinja::{Error, State, Value};

use crate::budget::{charge, ENTRY};
use crate::jinja_objects::held;
use crate::python_value::{invalid, is_own, items, pairs, type_of, Generator, Method, Type};

const DEEPEST: usize = 200;
/// Macros, loops and the like that may be kept in one rendering: what they hold is not seen.
const MOST_OPAQUE: usize = 200;

#[derive(Debug, Default)]
struct Opaque(AtomicUsize);

impl Object for Opaque {}

/// What an object holds.
fn inside(state: &State, value: &Value) -> Result<Vec<Value>, Error> {
    if is_own(value, "::Namespace") {
        return Ok(pairs(value)?.into_iter().map(|(_, value)| value).collect());
    }
    if let Some(method) = value.downcast_object_ref::<Method>() {
        return Ok(vec![method.of.clone()]);
    }
    if let Some(values) = held(value) {
        return Ok(values);
    }
    let kept = state.get_or_set_temp_object("_opaque_", Opaque::default);
    if kept.0.fetch_add(1, Ordering::Relaxed) >= MOST_OPAQUE {
        return Err(invalid(format!(
            "the template keeps more than {MOST_OPAQUE} macros, loops and the like"
        )));
    }
    Ok(Vec::new())
}

/// `room`: how many levels more there may be. What is looked at is counted, as a list may hold
/// another twice, and that one too.
fn enter(state: &State, value: &Value, room: usize) -> Result<(), Error> {
    let parts = match type_of(value) {
        Type::List | Type::Tuple | Type::View => items(value)?,
        Type::Dictionary => pairs(value)?.into_iter().flat_map(|(k, v)| [k, v]).collect(),
        Type::Generator => {
            value.downcast_object_ref::<Generator>().map(Generator::rest).unwrap_or_default()
        }
        Type::Other => inside(state, value)?,
        _ => return Ok(()),
    };
    let Some(room) = room.checked_sub(1) else {
        return Err(invalid(format!(
            "the template puts lists or dictionaries into each other, more than {DEEPEST} deep"
        )));
    };
    charge(state, ENTRY + parts.len() as u64)?;
    parts.iter().try_for_each(|part| enter(state, part, room))
}

/// A value that a name is given.
pub fn kept(state: &State, value: Value) -> Result<Value, Error> {
    enter(state, &value, DEEPEST)?;
    Ok(value)
}
