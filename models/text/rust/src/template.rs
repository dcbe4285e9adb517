//! Chat templates as transformers' apply_chat_template renders them.

use std::collections::hash_map::RandomState;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;

use chrono::{DateTime, Local, NaiveDate, NaiveTime, Utc};
use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::{Map, Value as Json};

use crate::answers;
use crate::budget::out_of_steps;
use crate::environment::{add_template, new_environment};
use crate::jinja_source::{rewrite, FILTER};

const NAME: &str = "chat_template";

/// What every rendering is given under these names; a caller's variables cannot have them.
const TAKEN: [&str; 2] = ["messages", "add_generation_prompt"];

pub struct ChatTemplate {
    environment: Environment<'static>,
    variables: BTreeMap<String, Value>,
    day: Option<NaiveDate>,
    pub has_marks: bool,
    keeps_beginnings: OnceLock<bool>, // asked for where there are no marks
}

pub struct Rendered {
    pub text: String,
    pub spans: Vec<(usize, usize)>,
}

/// Strings around generated text that occur nowhere else.
struct Marks {
    begin: String,
    end: String,
}

impl Marks {
    /// Private-use characters around 128 random bits, drawn anew for every rendering: a message
    /// cannot hold them but by guessing them.
    fn draw() -> Marks {
        let word = || RandomState::new().build_hasher().finish();
        let nonce = format!("{:016x}{:016x}", word(), word());
        let mark = |sign: char| format!("\u{10fffd}{sign}{nonce}\u{10fffd}");
        Marks { begin: mark('<'), end: mark('>') }
    }

    /// Removes the marks from `marked` and says where they were.
    fn strip(&self, marked: &str) -> Result<Rendered, String> {
        let mut text = String::with_capacity(marked.len());
        let mut spans = Vec::new();
        let mut open = Vec::new(); // where in `text` the blocks around this place began
        let mut rest = marked;
        loop {
            let begin = rest.find(&self.begin).unwrap_or(rest.len());
            let end = rest.find(&self.end).unwrap_or(rest.len());
            let next = begin.min(end);
            text.push_str(&rest[..next]);
            if next == rest.len() {
                break;
            }

            // Of blocks inside each other the outermost is the span.
            if begin < end {
                open.push(text.len());
                rest = &rest[begin + self.begin.len()..];
            } else {
                let start = open.pop().ok_or("a generation block ends twice")?;
                if open.is_empty() {
                    spans.push((start, text.len()));
                }
                rest = &rest[end + self.end.len()..];
            }
        }

        if !open.is_empty() {
            return Err("a generation block does not end".into());
        }
        Ok(Rendered { text, spans })
    }
}

pub fn explain(error: &Error) -> String {
    let mut text = match error.kind() {
        ErrorKind::OutOfFuel => out_of_steps(),
        _ => error.to_string(),
    };
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(&format!("; because: {cause}"));
        source = cause.source();
    }
    text
}

/// What `strftime_now` prints: the beginning of a fixed day, or this moment.
#[derive(Clone, Copy)]
enum Moment {
    Day(DateTime<Utc>),
    Now(DateTime<Local>),
}

impl Moment {
    fn of(day: Option<NaiveDate>) -> Moment {
        match day {
            Some(day) => Moment::Day(day.and_time(NaiveTime::MIN).and_utc()),
            None => Moment::Now(Local::now()),
        }
    }
}

fn strftime_now(moment: Moment) -> impl Fn(String) -> Result<String, Error> {
    move |format: String| {
        let mut out = String::new();
        let written = match moment {
            Moment::Day(day) => write!(out, "{}", day.format(&format)),
            Moment::Now(now) => write!(out, "{}", now.format(&format)),
        };
        match written {
            Ok(()) => Ok(out),
            Err(_) => {
                let what = format!("strftime_now: bad format '{format}'");
                Err(Error::new(ErrorKind::InvalidOperation, what))
            }
        }
    }
}

/// A conversation as the template sees it: fields that are null dropped, reasoning under each of
/// its names.
fn read_messages(json: &str) -> Result<Vec<Json>, String> {
    let list = match serde_json::from_str(json) {
        Ok(Json::Array(list)) => list,
        Ok(_) => return Err("the conversation is not a JSON array of messages".into()),
        Err(e) => return Err(format!("the conversation is not JSON: {e}")),
    };

    let mut messages = Vec::with_capacity(list.len());
    for (index, message) in list.into_iter().enumerate() {
        let Json::Object(mut fields) = message else {
            return Err(format!("message {index} of the conversation is not an object"));
        };
        fields.retain(|_, value| !value.is_null());

        // "thinking" comes before what the message has and may be overwritten by it;
        // "reasoning_content" comes after it.
        let names = ["reasoning_content", "thinking", "reasoning"];
        let reasoning = names.iter().find_map(|key| fields.get(*key)).cloned();
        if let Some(reasoning) = reasoning {
            let mut aliased = Map::new();
            aliased.insert("thinking".into(), reasoning.clone());
            aliased.extend(fields);
            aliased.insert("reasoning_content".into(), reasoning);
            fields = aliased;
        }
        messages.push(Json::Object(fields));
    }

    if messages.is_empty() {
        return Err("the conversation is empty: a chat template needs at least one message".into());
    }
    Ok(messages)
}

/// Named values that the template sees.
fn read_variables(json: &str) -> Result<BTreeMap<String, Value>, String> {
    let fields: Map<String, Json> =
        serde_json::from_str(json).map_err(|e| format!("the template's variables: {e}"))?;
    if let Some(name) = TAKEN.iter().find(|name| fields.contains_key(**name)) {
        return Err(format!("a chat template's variable cannot be named '{name}'"));
    }
    let named = |(name, value)| (name, Value::from_serialize(value));
    Ok(fields.into_iter().map(named).collect())
}

/// A conversation and the variables of this rendering alone.
struct Chat {
    messages: Vec<Json>,
    variables: BTreeMap<String, Value>,
    moment: Moment,
}

impl ChatTemplate {
    /// `day`: what strftime_now prints, as 2026-11-23; empty: the moment of each rendering.
    pub fn open(source: &str, variables_json: &str, day: &str) -> Result<ChatTemplate, String> {
        let source = rewrite(source);
        let mut environment = new_environment();
        add_template(&mut environment, NAME, &source.text)?;
        let variables = read_variables(variables_json)?;
        let read_day = |day| {
            NaiveDate::parse_from_str(day, "%Y-%m-%d")
                .map_err(|_| format!("'{day}' is not a day; expected one like 2026-11-23"))
        };
        let day = if day.is_empty() { None } else { Some(read_day(day)?) };
        Ok(ChatTemplate {
            environment,
            variables,
            day,
            has_marks: source.has_marks,
            keeps_beginnings: OnceLock::new(),
        })
    }

    fn run(
        &self,
        environment: &Environment,
        chat: &Chat,
        messages: &[Json],
        prompt: bool,
    ) -> Result<String, String> {
        let mut context = self.variables.clone();
        context.entry("tools".into()).or_insert(Value::from(()));
        context.entry("documents".into()).or_insert(Value::from(()));
        context.extend(chat.variables.clone());
        context.insert("messages".into(), Value::from_serialize(messages));
        context.insert("add_generation_prompt".into(), Value::from(prompt));
        let template = environment.get_template(NAME).map_err(|e| explain(&e))?;
        template.render(Value::from(context)).map_err(|e| explain(&e))
    }

    fn render_messages(
        &self,
        chat: &Chat,
        messages: &[Json],
        prompt: bool,
    ) -> Result<Rendered, String> {
        let mut environment = self.environment.clone();
        environment.add_function("strftime_now", strftime_now(chat.moment));
        let text = self.run(&environment, chat, messages, prompt)?;
        if !self.has_marks {
            return Ok(Rendered { text, spans: Vec::new() });
        }

        // A second rendering brackets the generated text; but for the marks it is the first.
        let marks = Marks::draw();
        let (begin, end) = (marks.begin.clone(), marks.end.clone());
        environment.add_filter(FILTER, move |body: String| format!("{begin}{body}{end}"));
        let rendered = marks.strip(&self.run(&environment, chat, messages, prompt)?)?;
        if rendered.text != text {
            return Err("the template changes the text of a {% generation %} block after the \
                        block ends, so what the assistant said cannot be located"
                .into());
        }
        Ok(rendered)
    }

    fn read(&self, messages_json: &str, variables_json: &str) -> Result<Chat, String> {
        Ok(Chat {
            messages: read_messages(messages_json)?,
            variables: read_variables(variables_json)?,
            moment: Moment::of(self.day),
        })
    }

    /// `variables_json`: an object of values that this rendering sees before those of `open`.
    pub fn render(
        &self,
        messages_json: &str,
        variables_json: &str,
        prompt: bool,
    ) -> Result<Rendered, String> {
        let chat = self.read(messages_json, variables_json)?;
        self.render_messages(&chat, &chat.messages, prompt)
    }

    /// The whole conversation with the assistant's spans, from marks or as `answers` finds them.
    pub fn render_assistant(
        &self,
        messages_json: &str,
        variables_json: &str,
    ) -> Result<Rendered, String> {
        let chat = self.read(messages_json, variables_json)?;
        let mut full = self.render_messages(&chat, &chat.messages, false)?;
        if self.has_marks {
            return Ok(full);
        }
        let keeps = self.keeps_beginnings(chat.moment);
        full.spans = answers::locate(&full.text, &chat.messages, keeps, &|messages, prompt| {
            Ok(self.render_messages(&chat, messages, prompt)?.text)
        })?;
        Ok(full)
    }

    /// Whether each beginning of a conversation is rendered as it stands in the whole.
    fn keeps_beginnings(&self, moment: Moment) -> bool {
        *self.keeps_beginnings.get_or_init(|| {
            let chat = Chat { messages: Vec::new(), variables: BTreeMap::new(), moment };
            answers::keeps_beginnings(&|messages, prompt| {
                Ok(self.render_messages(&chat, messages, prompt)?.text)
            })
        })
    }
}
