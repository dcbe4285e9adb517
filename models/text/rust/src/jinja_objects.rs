//! Objects that Jinja has for templates: `joiner` and `cycler`.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr};
use minijinja::{Error, State, Value};

use crate::python_call::Arguments;
use crate::python_value::invalid;

/// The values that a joiner or a cycler holds; None for another value.
pub fn held(value: &Value) -> Option<Vec<Value>> {
    if let Some(joiner) = value.downcast_object_ref::<Joiner>() {
        return Some(vec![joiner.separator.clone()]);
    }
    value.downcast_object_ref::<Cycler>().map(|cycler| cycler.items.clone())
}

/// Gives its separator but the first time that it is called.
#[derive(Debug)]
struct Joiner {
    separator: Value,
    used: AtomicBool,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        Arguments::of("joiner", args)?.bind([], 0)?;
        let used = self.used.swap(true, Ordering::Relaxed);
        Ok(if used { self.separator.clone() } else { Value::from("") })
    }
}

/// Gives its values in turn.
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

impl Cycler {
    fn current(&self) -> Value {
        self.items[self.at.load(Ordering::Relaxed) % self.items.len()].clone()
    }
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("current")).then(|| self.current())
    }

    fn call_method(
        self: &Arc<Self>,
        _: &State<'_, '_>,
        name: &str,
        _: &[Value],
    ) -> Result<Value, Error> {
        match name {
            "next" => {
                let current = self.current();
                self.at.fetch_add(1, Ordering::Relaxed);
                Ok(current)
            }
            "reset" => {
                self.at.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(invalid(format!("'Cycler' object has no attribute '{name}'"))),
        }
    }
}

pub fn joiner(args: &Arguments) -> Result<Value, Error> {
    let [separator] = args.bind(["sep"], 0)?;
    let separator = separator.unwrap_or_else(|| Value::from(", "));
    Ok(Value::from_object(Joiner { separator, used: AtomicBool::new(false) }))
}

pub fn cycler(args: &Arguments) -> Result<Value, Error> {
    if args.positional.is_empty() || !args.named.is_empty() {
        return Err(invalid("cycler: at least one item has to be provided"));
    }
    let items = args.positional.to_vec();
    Ok(Value::from_object(Cycler { items, at: AtomicUsize::new(0) }))
}
