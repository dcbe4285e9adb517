//! The environment that templates render in: Jinja's, with the settings that transformers gives it.

use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior, Value};

use crate::budget::{charge, STEPS};
use crate::jinja_calls::add_functions;
use crate::jinja_filters::add_filters;
use crate::jinja_source::FILTER;
use crate::jinja_statement::translate;
use crate::python;
use crate::template::explain;

fn raise_exception(message: Value) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, python::text(&message)?))
}

pub fn new_environment() -> Environment<'static> {
    let mut environment = Environment::new();
    // What white space goes is decided when a template is translated.
    environment.set_keep_trailing_newline(true);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_formatter(|out, state: &State, value| {
        let text = python::text(value)?;
        charge(state, text.len() as u64)?;
        out.write_str(&text).map_err(Error::from)
    });
    environment.set_fuel(Some(STEPS));
    add_functions(&mut environment);
    add_filters(&mut environment);
    environment.add_filter(FILTER, |body: String| body);
    environment.add_function("raise_exception", raise_exception);
    environment
}

/// Adds a template written in Jinja's language.
pub fn add_template(
    environment: &mut Environment<'static>,
    name: &'static str,
    source: &str,
) -> Result<(), String> {
    let translated = translate(source)
        .map_err(|error| format!("syntax error: {} (in {name}:{})", error.text, error.line))?;
    environment.add_template_owned(name, translated).map_err(|error| explain(&error))
}
