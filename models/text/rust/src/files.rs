//! tokenizer_config.json and special_tokens_map.json, read as transformers 5 reads them.

use serde_json::{Map, Value};
use tokenizers::AddedToken;

pub const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

fn object(json: &[u8], file: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_slice(json) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(format!("{file}: expected a JSON object")),
        Err(e) => Err(format!("{file}: {e}")),
    }
}

/// The templates of tokenizer_config.json by their names, as a JSON object: a string is the one
/// named default, a list has {name, template}.
pub fn config_templates(config_json: &[u8]) -> Result<Value, String> {
    let config = object(config_json, "tokenizer_config.json")?;
    let mut templates = Map::new();
    let list = match config.get("chat_template") {
        None | Some(Value::Null) => return Ok(Value::Object(templates)),
        Some(Value::String(source)) => {
            templates.insert("default".into(), source.clone().into());
            return Ok(Value::Object(templates));
        }
        Some(Value::Array(list)) => list,
        Some(_) => {
            return Err("tokenizer_config.json: chat_template is neither a string nor a list".into())
        }
    };
    for entry in list {
        let field = |key: &str| entry.get(key).and_then(Value::as_str);
        let (Some(name), Some(source)) = (field("name"), field("template")) else {
            let what = "an entry of chat_template lacks name or template";
            return Err(format!("tokenizer_config.json: {what}"));
        };
        templates.insert(name.into(), source.into());
    }
    Ok(Value::Object(templates))
}

/// What the configuration files say about special tokens.
pub struct Specials {
    /// (attribute, token) in transformers' order; the standard seven first.
    pub named: Vec<(String, AddedToken)>,
    pub extra: Vec<AddedToken>,
    /// Whether a file has the key pad_token, be it null.
    pub names_pad: bool,
    /// `added_tokens_decoder` of tokenizer_config.json, by id.
    pub decoder: Vec<AddedToken>,
    pub clean_up: bool,
    pub clean_up_bpe: bool,
}

fn flag(map: &Map<String, Value>, key: &str, default: bool, what: &str) -> Result<bool, String> {
    match map.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => Err(format!("{what}: '{key}' is not true or false")),
    }
}

fn added_token(value: &Value, special: Option<bool>, what: &str) -> Result<AddedToken, String> {
    match value {
        Value::String(content) => Ok(AddedToken::from(content.clone(), special.unwrap_or(false))),
        Value::Object(map) => {
            let content = map.get("content").and_then(Value::as_str);
            let content = content.ok_or_else(|| format!("{what}: a token without 'content'"))?;
            let special = match special {
                Some(value) => value,
                None => flag(map, "special", false, what)?,
            };
            let mut token = AddedToken::from(content.to_string(), special);
            token.lstrip = flag(map, "lstrip", false, what)?;
            token.rstrip = flag(map, "rstrip", false, what)?;
            token.single_word = flag(map, "single_word", false, what)?;
            token.normalized = flag(map, "normalized", !special, what)?;
            Ok(token)
        }
        _ => Err(format!("{what}: a token is neither a string nor an object")),
    }
}

/// The tokens of `added_tokens_decoder`, an object of tokens by id, in the order of their ids.
fn tokens_by_id(value: &Value, what: &str) -> Result<Vec<AddedToken>, String> {
    let entries = value.as_object();
    let entries = entries.ok_or(format!("{what}: added_tokens_decoder is not an object"))?;
    let mut tokens = Vec::new();
    for (id, token) in entries {
        let number: u32 = id
            .parse()
            .map_err(|_| format!("{what}: added_tokens_decoder: '{id}' is not a token id"))?;
        tokens.push((number, added_token(token, None, what)?));
    }
    tokens.sort_by_key(|(id, _)| *id);
    Ok(tokens.into_iter().map(|(_, token)| token).collect())
}

impl Specials {
    pub fn read(config: Option<&[u8]>, special_map: Option<&[u8]>) -> Result<Specials, String> {
        const CONFIG: &str = "tokenizer_config.json";
        let mut settings = match config {
            Some(json) => object(json, CONFIG)?,
            None => Map::new(),
        };

        // The older file is consulted only where the newer one does not list its tokens, as
        // transformers does.
        let mut decoder = Vec::new();
        if let Some(value) = settings.get("added_tokens_decoder").filter(|v| !v.is_null()) {
            decoder = tokens_by_id(value, CONFIG)?;
        } else if let Some(json) = special_map {
            settings.extend(object(json, "special_tokens_map.json")?);
        }

        let mut specials = Specials {
            named: Vec::new(),
            extra: Vec::new(),
            names_pad: settings.contains_key("pad_token"),
            decoder,
            clean_up: flag(&settings, "clean_up_tokenization_spaces", false, CONFIG)?,
            clean_up_bpe: flag(
                &settings,
                "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
                false,
                CONFIG,
            )?,
        };
        specials.read_named(&settings)?;
        Ok(specials)
    }

    fn read_named(&mut self, settings: &Map<String, Value>) -> Result<(), String> {
        // The standard seven come first, then whatever else is called a token.
        for name in NAMED {
            if let Some(value) = settings.get(name).filter(|v| !v.is_null()) {
                self.named.push((name.to_string(), added_token(value, Some(true), name)?));
            }
        }
        for (key, value) in settings {
            if key.ends_with("_token") && !NAMED.contains(&key.as_str()) && value.is_string() {
                self.named.push((key.clone(), added_token(value, Some(true), key)?));
            }
        }

        // additional_special_tokens is the older name; an empty value under the newer one does not
        // hide it.
        let extra = settings.get("extra_special_tokens").filter(|v| match v {
            Value::Array(list) => !list.is_empty(),
            Value::Object(map) => !map.is_empty(),
            _ => false,
        });
        match extra.or_else(|| settings.get("additional_special_tokens")) {
            None | Some(Value::Null) => {}
            Some(Value::Array(list)) => {
                for value in list {
                    self.extra.push(added_token(value, Some(true), "extra_special_tokens")?);
                }
            }
            Some(Value::Object(map)) => {
                for (key, value) in map {
                    let token = added_token(value, Some(true), "extra_special_tokens")?;
                    self.named.push((key.clone(), token));
                }
            }
            Some(_) => return Err("extra_special_tokens is neither a list nor an object".into()),
        }
        Ok(())
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.named.iter().find(|(key, _)| key == name).map(|(_, token)| token.content.as_str())
    }

    /// What a chat template sees: the named tokens that exist.
    pub fn variables(&self) -> Value {
        let named = self.named.iter();
        Value::Object(
            named.map(|(key, token)| (key.clone(), token.content.clone().into())).collect(),
        )
    }
}
