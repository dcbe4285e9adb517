//! Values as Python has them: what type each is, and those that minijinja has no kind for.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Type {
    Undefined,
    None,
    Bool,
    Int,
    Float,
    Text,
    List,
    Tuple,
    Dictionary,
    View, // of a dictionary
    Range,
    Generator,
    Other,
}

pub fn type_of(value: &Value) -> Type {
    match value.kind() {
        ValueKind::Undefined => Type::Undefined,
        ValueKind::None => Type::None,
        ValueKind::Bool => Type::Bool,
        ValueKind::Number if value.is_integer() => Type::Int,
        ValueKind::Number => Type::Float,
        ValueKind::String => Type::Text,
        ValueKind::Seq if value.downcast_object_ref::<Tuple>().is_some() => Type::Tuple,
        ValueKind::Seq if value.downcast_object_ref::<Range>().is_some() => Type::Range,
        ValueKind::Seq => Type::List,
        ValueKind::Map if is_namespace(value) => Type::Other,
        ValueKind::Map => Type::Dictionary,
        ValueKind::Iterable if value.downcast_object_ref::<View>().is_some() => Type::View,
        ValueKind::Iterable if value.downcast_object_ref::<Generator>().is_some() => {
            Type::Generator
        }
        _ => Type::Other,
    }
}

/// Whether a value with named parts is one of minijinja's own: a namespace, a loop, a macro.
fn is_namespace(value: &Value) -> bool {
    ["::Namespace", "::Loop", "::Macro"].iter().any(|end| is_own(value, end))
}

/// Whether a value is an object of minijinja's own whose type's name ends so.
pub fn is_own(value: &Value, end: &str) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with(end))
}

/// The name of a value's type in Python.
pub fn type_name(value: &Value) -> &'static str {
    match type_of(value) {
        Type::Undefined => "Undefined",
        Type::None => "NoneType",
        Type::Bool => "bool",
        Type::Int => "int",
        Type::Float => "float",
        Type::Text => "str",
        Type::List => "list",
        Type::Tuple => "tuple",
        Type::Dictionary => "dict",
        Type::View => "dict view",
        Type::Range => "range",
        Type::Generator => "generator",
        Type::Other => "object",
    }
}

pub fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, text.into())
}

pub fn undefined() -> Error {
    Error::from(ErrorKind::UndefinedError)
}

/// An integer, which a boolean is in Python.
pub fn integer(value: &Value) -> Option<i128> {
    match type_of(value) {
        Type::Bool => Some(i128::from(value.is_true())),
        Type::Int => i128::try_from(value.clone()).ok(),
        _ => None,
    }
}

pub fn from_integer(value: i128) -> Value {
    match i64::try_from(value) {
        Ok(small) => Value::from(small),
        Err(_) => Value::from(value),
    }
}

pub fn tuple(items: Vec<Value>) -> Value {
    Value::from_object(Tuple { items, grouped: false })
}

pub fn dictionary(pairs: Vec<(Value, Value)>) -> Value {
    Value::from_iter(pairs)
}

/// The keys and values of a dictionary, in order.
pub fn pairs(value: &Value) -> Result<Vec<(Value, Value)>, Error> {
    let keys: Vec<Value> = value.try_iter()?.collect();
    keys.into_iter().map(|key| Ok((key.clone(), value.get_item(&key)?))).collect()
}

/// What iterating over a value gives, as list(value).
pub fn items(value: &Value) -> Result<Vec<Value>, Error> {
    match type_of(value) {
        Type::Text => {
            let text = value.as_str().unwrap_or_default();
            Ok(text.chars().map(|c| Value::from(c.to_string())).collect())
        }
        Type::Undefined => Ok(Vec::new()),
        Type::None | Type::Bool | Type::Int | Type::Float | Type::Other => {
            Err(invalid(format!("'{}' object is not iterable", type_name(value))))
        }
        _ => Ok(value.try_iter()?.collect()),
    }
}

#[derive(Debug)]
pub struct Tuple {
    pub items: Vec<Value>,
    pub grouped: bool, // whether the two parts have the names that `groupby` gives them
}

impl Object for Tuple {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let index = match key.as_str() {
            Some("grouper") if self.grouped => 0,
            Some("list") if self.grouped => 1,
            _ => key.as_usize()?,
        };
        self.items.get(index).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items.len())
    }
}

#[derive(Debug)]
pub struct Range {
    pub start: i128,
    pub stop: i128,
    pub step: i128,
    pub length: usize,
}

impl Range {
    pub fn item(&self, index: usize) -> Value {
        from_integer(self.start + self.step * index as i128)
    }

    /// repr(range).
    pub fn text(&self) -> String {
        let (start, stop) = (self.start, self.stop);
        match self.step {
            1 => format!("range({start}, {stop})"),
            step => format!("range({start}, {stop}, {step})"),
        }
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        key.as_usize().filter(|index| *index < self.length).map(|index| self.item(index))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.length)
    }
}

/// dict.keys(), dict.values() or dict.items().
#[derive(Debug)]
pub struct View {
    pub name: &'static str,
    pub items: Vec<Value>,
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }
}

/// What can be iterated over once.
pub struct Generator {
    rest: Mutex<VecDeque<Value>>,
}

impl Generator {
    pub fn of(items: Vec<Value>) -> Value {
        Value::from_object(Generator { rest: Mutex::new(items.into()) })
    }

    fn take(&self) -> Option<Value> {
        self.rest.lock().ok()?.pop_front()
    }

    /// Those that it has not given yet.
    pub fn rest(&self) -> Vec<Value> {
        self.rest.lock().map_or(Vec::new(), |rest| rest.iter().cloned().collect())
    }

    fn left(&self) -> usize {
        self.rest.lock().map_or(0, |rest| rest.len())
    }
}

impl fmt::Debug for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<generator>")
    }
}

struct Rest(Arc<Generator>);

impl Iterator for Rest {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        self.0.take()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.left(), Some(self.0.left()))
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Iter(Box::new(Rest(self.clone())))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}

/// A method that has not been called yet.
#[derive(Debug)]
pub struct Method {
    pub of: Value,
    pub name: String,
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        crate::jinja_lookups::method(state, &self.of, &self.name, args)
    }
}
