//! Texts with places to be filled in, by named values.

use minijinja::{Environment, UndefinedBehavior, Value};
use serde_json::Value as Json;

use crate::environment::{add_template, new_environment};
use crate::template::explain;

const NAME: &str = "template";

pub struct TextTemplate {
    environment: Environment<'static>,
}

impl TextTemplate {
    /// `names_json`: the names of the values that there will be.
    pub fn open(source: &str, names_json: &str) -> Result<TextTemplate, String> {
        let names: Vec<String> =
            serde_json::from_str(names_json).map_err(|e| format!("the template's names: {e}"))?;
        let mut environment = new_environment();
        // A name that is written wrong must not become an empty place.
        environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
        add_template(&mut environment, NAME, source)?;

        // Static: also where only a condition asks for it.
        let template = environment.get_template(NAME).map_err(|e| explain(&e))?;
        let globals: Vec<String> = environment.globals().map(|(name, _)| name.to_owned()).collect();
        let mut unknown: Vec<String> = template.undeclared_variables(false).into_iter().collect();
        unknown.retain(|name| !names.contains(name) && !globals.contains(name));
        unknown.sort();
        if !unknown.is_empty() {
            return Err(format!(
                "there is no {}; the template may use {}",
                unknown.join(", "),
                names.join(", ")
            ));
        }
        Ok(TextTemplate { environment })
    }

    pub fn render(&self, variables_json: &str) -> Result<String, String> {
        let variables: Json = serde_json::from_str(variables_json)
            .map_err(|e| format!("the template's variables: {e}"))?;
        let template = self.environment.get_template(NAME).map_err(|e| explain(&e))?;
        template.render(Value::from_serialize(&variables)).map_err(|e| explain(&e))
    }
}
