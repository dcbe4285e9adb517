//! Arguments of a call, bound to the names of parameters as Python binds them.

use minijinja::value::Kwargs;
use minijinja::{Error, Value};

use crate::python_value::{integer, invalid, type_name};

pub struct Arguments<'a> {
    pub what: &'a str,
    pub positional: &'a [Value],
    pub named: Vec<(String, Value)>,
}

impl<'a> Arguments<'a> {
    pub fn of(what: &'a str, values: &'a [Value]) -> Result<Arguments<'a>, Error> {
        let Some(last) = values.last().filter(|value| value.is_kwargs()) else {
            return Ok(Arguments { what, positional: values, named: Vec::new() });
        };
        let kwargs = Kwargs::try_from(last.clone())?;
        let mut named = Vec::new();
        for name in kwargs.args() {
            named.push((name.to_string(), kwargs.peek(name)?));
        }
        Ok(Arguments { what, positional: &values[..values.len() - 1], named })
    }

    /// The arguments with names as one value, which a call takes as its last.
    pub fn named_value(&self) -> Value {
        Value::from(self.named.iter().cloned().collect::<Kwargs>())
    }

    /// The values of the parameters, of which the first `needed` must be there.
    pub fn bind<const N: usize>(
        &self,
        names: [&str; N],
        needed: usize,
    ) -> Result<[Option<Value>; N], Error> {
        let what = self.what;
        if self.positional.len() > N {
            return Err(invalid(format!(
                "{what} takes at most {N} arguments ({} given)",
                self.positional.len()
            )));
        }
        let mut bound: [Option<Value>; N] =
            std::array::from_fn(|i| self.positional.get(i).cloned());
        for (name, value) in &self.named {
            let Some(at) = names.iter().position(|known| known == name) else {
                return Err(invalid(format!("{what} got an unexpected argument '{name}'")));
            };
            if bound[at].is_some() {
                return Err(invalid(format!("{what} got two values for '{name}'")));
            }
            bound[at] = Some(value.clone());
        }
        match bound.iter().take(needed).position(Option::is_none) {
            Some(missing) => Err(invalid(format!("{what} lacks '{}'", names[missing]))),
            None => Ok(bound),
        }
    }
}

/// A parameter that is absent or None.
pub fn given(value: &Option<Value>) -> Option<&Value> {
    value.as_ref().filter(|value| !value.is_none())
}

pub fn flag(value: &Option<Value>, default: bool) -> bool {
    value.as_ref().map_or(default, Value::is_true)
}

pub fn whole(value: &Value) -> Result<i128, Error> {
    integer(value).ok_or_else(|| {
        invalid(format!("'{}' object cannot be interpreted as an integer", type_name(value)))
    })
}

/// An integer, or `default` where there is none; as large as a machine's index at most.
pub fn index(value: &Option<Value>, default: i64) -> Result<i64, Error> {
    match value {
        None => Ok(default),
        Some(value) => Ok(whole(value)?.clamp(i64::MIN.into(), i64::MAX.into()) as i64),
    }
}

pub fn string(value: &Value) -> Result<&str, Error> {
    value.as_str().ok_or_else(|| invalid(format!("expected str, not {}", type_name(value))))
}
