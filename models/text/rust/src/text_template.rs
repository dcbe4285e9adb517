//! Texts with places to be filled in, by named values.

use minijinja::{Environment, UndefinedBehavior, Value};
use serde_json::Value as Json;

use crate::template::{explain, new_environment};

const NAME: &str = "template";

pub struct TextTemplate {
    environment: Environment<'static>,
}

impl TextTemplate {
    pub fn open(source: &str) -> Result<TextTemplate, String> {
        let mut environment = new_environment();
        // A name that is written wrong must not become an empty place.
        environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
        environment.add_template_owned(NAME, source.to_owned()).map_err(|e| explain(&e))?;
        Ok(TextTemplate { environment })
    }

    pub fn render(&self, variables_json: &str) -> Result<String, String> {
        let variables: Json = serde_json::from_str(variables_json)
            .map_err(|e| format!("the template's variables: {e}"))?;
        let template = self.environment.get_template(NAME).map_err(|e| explain(&e))?;
        template.render(Value::from_serialize(&variables)).map_err(|e| explain(&e))
    }
}
