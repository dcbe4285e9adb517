//! Where a rendering that has no marks says what the assistant said.
//!
//! A template that renders each beginning of a conversation as it stands in the whole is asked for
//! the text before and after each answer. Templates that write an earlier turn otherwise than a
//! last one (thoughts that are dropped, an opened thought behind the prompt for an answer, an end
//! of the text) are asked for the same conversation with other words in the answer: what changes
//! is the answer, what follows it in a conversation that ends there is the end of its turn.

use serde_json::{json, Map, Value as Json};

/// Renders messages, with or without the prompt for an answer.
pub type Render<'a> = dyn Fn(&[Json], bool) -> Result<String, String> + 'a;
pub type Spans = Vec<(usize, usize)>;

/// Words that no two of which begin or end alike, so that one at least differs from any answer's
/// first and last character.
const WORDS: [&str; 2] = ["Qz", "Jk"];

/// Why an assistant's message cannot be found.
fn cannot(what: &str, index: usize) -> String {
    format!(
        "the chat template has no {{% generation %}} marks and {what} message {index}, so what \
         the assistant said cannot be located; add the marks to the template, or name one that \
         has them (data.chat_template)"
    )
}

fn is_assistant(message: &Json) -> bool {
    message.get("role").and_then(Json::as_str) == Some("assistant")
}

/// Whether the template renders beginnings of a conversation with thoughts as they stand in the
/// whole. One that does not render such a conversation is taken for one that does.
pub fn keeps_beginnings(render: &Render) -> bool {
    let turn = |role: &str, words: &str| json!({"role": role, "content": words});
    let answer = |words: &str| {
        let thought = "so";
        json!({"role": "assistant", "content": words, "thinking": thought,
               "reasoning_content": thought})
    };
    let messages = [turn("user", "one"), answer("two"), turn("user", "three"), answer("four")];
    match render(&messages, false) {
        Ok(full) => from_beginnings(&full, &messages, render).is_ok(),
        Err(_) => true,
    }
}

/// The spans of the assistant's messages in `full`, the rendering of `messages`.
pub fn locate(
    full: &str,
    messages: &[Json],
    keeps_beginnings: bool,
    render: &Render,
) -> Result<Spans, String> {
    if keeps_beginnings {
        if let Ok(spans) = from_beginnings(full, messages, render) {
            return Ok(spans);
        }
    }
    from_changes(full, messages, render)
}

/// An answer is what rendering up to it adds to rendering before it.
fn from_beginnings(full: &str, messages: &[Json], render: &Render) -> Result<Spans, String> {
    let mut spans = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        if !is_assistant(message) {
            continue;
        }
        let before = render(&messages[..index], true)?;
        let after = render(&messages[..=index], false)?;
        if !full.starts_with(&after) || !after.starts_with(&before) {
            return Err(cannot("renders the beginning of a conversation differently at", index));
        }
        spans.push((before.len(), after.len()));
    }
    Ok(spans)
}

/// How many bytes two texts begin with alike, in whole characters.
fn common_begin(a: &str, b: &str) -> usize {
    let mut length = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    while !a.is_char_boundary(length) || !b.is_char_boundary(length) {
        length -= 1;
    }
    length
}

fn common_end(a: &str, b: &str) -> usize {
    let pairs = a.bytes().rev().zip(b.bytes().rev());
    let mut length = pairs.take_while(|(x, y)| x == y).count();
    while !a.is_char_boundary(a.len() - length) || !b.is_char_boundary(b.len() - length) {
        length -= 1;
    }
    length
}

/// `message` with `words` in place of what it thinks and says: first in the form that it has, which
/// for a call without words is what the tools are given; then as plain content, for a template that
/// does not print that form.
fn with_words(message: &Json, words: &str) -> [Json; 2] {
    let mut fields: Map<String, Json> = message.as_object().cloned().unwrap_or_default();
    for key in ["reasoning_content", "thinking", "reasoning"] {
        if let Some(thought) = fields.get_mut(key).filter(|v| v.is_string()) {
            *thought = words.into();
        }
    }
    let mut plain = fields.clone();
    plain.insert("content".into(), words.into());

    let said = match fields.get("content") {
        Some(Json::String(text)) => !text.is_empty(),
        Some(Json::Array(parts)) => !parts.is_empty(),
        _ => false,
    };
    let own = if said {
        match fields.get_mut("content") {
            Some(Json::Array(parts)) => {
                for text in parts.iter_mut().filter_map(|part| part.get_mut("text")) {
                    *text = words.into();
                }
            }
            _ => fields = plain.clone(),
        }
        fields
    } else {
        if let Some(Json::Array(calls)) = fields.get_mut("tool_calls") {
            for call in calls {
                let inner = call.get("function").is_some();
                let named = if inner { &mut call["function"] } else { call };
                let Some(named) = named.as_object_mut() else { continue };
                // A tool's name may stand in front of what it answers, too.
                match named.get_mut("arguments") {
                    Some(arguments) if arguments.is_object() => *arguments = json!({words: words}),
                    Some(arguments) => *arguments = words.into(),
                    None => drop(named.insert("name".into(), words.into())),
                }
            }
        }
        fields
    };
    [Json::Object(own), Json::Object(plain)]
}

/// What of a rendering an answer's words decide: bytes [from, to), and how far the text in front
/// stays whatever they are.
struct Changed {
    from: usize,
    to: usize,
    fixed: usize,
}

/// None: the rendering has nothing of the answer.
fn changed(
    text: &str,
    messages: &[Json],
    index: usize,
    render: &Render,
) -> Result<Option<Changed>, String> {
    for form in 0..2 {
        let (mut begin, mut end) = (text.len(), text.len());
        for words in WORDS {
            let mut others = messages.to_vec();
            others[index] = with_words(&messages[index], words)[form].clone();
            let other = render(&others, false)
                .map_err(|e| format!("{}: {e}", cannot("refuses other words in", index)))?;
            if other == text {
                continue; // the answer says these words, or none of it is printed
            }
            begin = begin.min(common_begin(text, &other));
            end = end.min(common_end(text, &other));
        }

        if begin < text.len() || end < text.len() {
            // Where words only add to the text, what stands on both sides of them may overlap.
            let last = text.len() - end;
            return Ok(Some(Changed { from: begin.min(last), to: begin.max(last), fixed: begin }));
        }
    }
    Ok(None)
}

/// The prompt for an answer behind messages, or behind a question where there are none.
fn prompt_for_answer(messages: &[Json], render: &Render) -> String {
    let added = |messages: &[Json]| -> Option<String> {
        let with = render(messages, true).ok()?;
        let without = render(messages, false).ok()?;
        Some(with[common_begin(&with, &without)..].to_string())
    };
    let question = [json!({"role": "user", "content": "one"})];
    let behind = if messages.is_empty() { None } else { added(messages) };
    behind.or_else(|| added(&question)).unwrap_or_default()
}

/// How much of `text`, which other text may go on from, ends outside a token in brackets: two
/// tokens may begin alike, as "<|user|>" and "<|endoftext|>".
fn outside_tokens(text: &str) -> usize {
    match (text.rfind(['<', '[']), text.rfind(['>', ']'])) {
        (Some(open), None) => open,
        (Some(open), Some(close)) if close < open => open,
        _ => text.len(),
    }
}

/// Where `text` has the last `prompt`, or enough of its beginning: the place behind it.
fn behind_prompt(text: &str, prompt: &str) -> Option<usize> {
    let lengths = (1..=prompt.len()).rev().filter(|&length| prompt.is_char_boundary(length));
    for length in lengths.filter(|&length| outside_tokens(&prompt[..length]) == length) {
        let end = text.rfind(&prompt[..length]).map(|at| at + length);
        if end.is_some() && (2 * length >= prompt.len() || end == Some(text.len())) {
            return end;
        }
    }
    None
}

/// How much of `rest`, which stands behind an answer, belongs to its turn. `last`: the same where
/// the conversation ends with it. White space behind the sign that ends the turn is not of it.
fn turn_end(rest: &str, last: &str) -> usize {
    let mut end = common_begin(rest, last);
    if end < last.len() {
        let outside = outside_tokens(&rest[..end]);
        // A turn in the middle may end with a token of its own: "<|end|>" and "<|return|>".
        let close = rest[outside..].find(['>', ']']).filter(|_| outside < end);
        let is_first = rest[..outside].trim_end().is_empty();
        end = close.filter(|_| is_first).map_or(outside, |close| outside + close + 1);
    }
    match rest[..end].trim_end().len() {
        0 => end,
        length => length,
    }
}

/// What stands behind an answer in a conversation that ends with it.
fn behind_last(messages: &[Json], index: usize, render: &Render) -> Result<String, String> {
    let alone = messages[..=index].to_vec();
    // Some templates want a question before an answer.
    let asked = [&[json!({"role": "user", "content": "one"})], &alone[..]].concat();
    let mut why = String::new();
    for shown in [alone, asked] {
        match render(&shown, false) {
            Ok(last) => {
                let there = changed(&last, &shown, shown.len() - 1, render)?;
                return Ok(there.map_or("", |there| &last[there.to..]).to_string());
            }
            Err(error) => why = error,
        }
    }
    Err(format!("{}: {why}", cannot("refuses a conversation that ends with", index)))
}

/// Whether what changes with an answer, which ends at `end`, holds the question or the tool's
/// output behind it.
fn reaches_next(full: &str, messages: &[Json], index: usize, end: usize, render: &Render) -> bool {
    let role = messages.get(index + 1).and_then(|next| next.get("role")).and_then(Json::as_str);
    if !matches!(role, Some("user" | "tool")) {
        return false; // other roles may be printed in front of all
    }
    match changed(full, messages, index + 1, render) {
        Ok(Some(there)) => there.from < end,
        _ => false,
    }
}

/// An answer is what changes with its words, from behind the prompt for it to the end of its turn.
fn from_changes(full: &str, messages: &[Json], render: &Render) -> Result<Spans, String> {
    let mut spans: Spans = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        if !is_assistant(message) {
            continue;
        }
        let floor = spans.last().map_or(0, |&(_, end)| end);
        let Some(there) = changed(full, messages, index, render)? else {
            spans.push((floor, floor)); // nothing of it is there to be learned
            continue;
        };
        if there.from < floor || there.fixed < floor {
            return Err(cannot("mixes the answers before with", index));
        }

        if reaches_next(full, messages, index, there.to, render) {
            return Err(cannot("mixes the messages behind with", index));
        }

        let prompt = prompt_for_answer(&messages[..index], render);
        let head = &full[floor..there.fixed];
        let begin = behind_prompt(head, &prompt).map_or(there.from, |at| floor + at);
        let last = behind_last(messages, index, render)?;
        let end = there.to + turn_end(&full[there.to..], &last);
        spans.push((begin, end));
    }
    Ok(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spans as texts, of a template given as a function of messages and prompt.
    fn said(messages: Json, write: fn(&[Json], bool) -> String) -> Vec<String> {
        let messages = messages.as_array().unwrap().clone();
        let render = |m: &[Json], prompt: bool| Ok(write(m, prompt));
        let full = write(&messages, false);
        let spans = locate(&full, &messages, keeps_beginnings(&render), &render).unwrap();
        spans.iter().map(|&(a, b)| full[a..b].to_string()).collect()
    }

    fn field<'a>(message: &'a Json, key: &str) -> &'a str {
        message.get(key).and_then(Json::as_str).unwrap_or("")
    }

    fn plain(messages: &[Json], prompt: bool) -> String {
        let turn = |m: &Json| format!("<{}>{}</>\n", field(m, "role"), field(m, "content"));
        let turns: String = messages.iter().map(turn).collect();
        turns + if prompt { "<assistant>" } else { "" }
    }

    /// Thoughts of the last answer alone, a thought opened by the prompt, an end of the text.
    fn thinking(messages: &[Json], prompt: bool) -> String {
        let mut out = String::new();
        for (i, m) in messages.iter().enumerate() {
            out += &format!("<{}>", field(m, "role"));
            if is_assistant(m) && i + 1 == messages.len() {
                out += &format!("<think>{}</think>", field(m, "thinking"));
            }
            out += &format!("{}</>\n", field(m, "content"));
        }
        out + if prompt { "<assistant><think>" } else { "<eos>" }
    }

    #[test]
    fn beginnings_that_stand_are_used() {
        let chat = json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"},
                          {"role": "user", "content": "r"}, {"role": "assistant", "content": ""}]);
        assert_eq!(said(chat, plain), ["a</>\n", "</>\n"]);
    }

    /// A tool's name in front of its answer; the prompt opens a thought.
    fn naming(messages: &[Json], prompt: bool) -> String {
        let mut out = String::new();
        for m in messages {
            let call = &m["tool_calls"][0];
            match field(m, "role") {
                "tool" => out += &format!("<w>{}</>", field(m, "content")),
                role => out += &format!("<{role}>{}", field(m, "content")),
            }
            if call.is_object() {
                out += &format!("<call>{}{}</call>", call["name"], call["arguments"]);
            }
            out += "</>";
        }
        out + if prompt { "<assistant><think>" } else { "" }
    }

    #[test]
    fn a_call_is_found_by_what_the_tool_is_given() {
        let call = json!([{"name": "w", "arguments": {"a": 1}}]);
        let chat = json!([{"role": "user", "content": "q"},
                          {"role": "assistant", "tool_calls": call},
                          {"role": "tool", "content": "r"}, {"role": "assistant", "content": "a"}]);
        assert_eq!(said(chat, naming), ["<call>\"w\"{\"a\":1}</call></>", "a</>"]);
    }

    /// The answer is repeated behind the next question.
    fn echoing(messages: &[Json], prompt: bool) -> String {
        let mut out = String::new();
        for (i, m) in messages.iter().enumerate() {
            out += &format!("<{}>{}", field(m, "role"), field(m, "content"));
            if i >= 1 && !is_assistant(m) {
                out += field(&messages[i - 1], "content");
            }
        }
        out + if prompt { "<assistant><think>" } else { "" }
    }

    #[test]
    fn an_answer_that_stands_elsewhere_too_is_refused() {
        let chat = [
            json!({"role": "user", "content": "q"}),
            json!({"role": "assistant", "content": "a"}),
            json!({"role": "user", "content": "r"}),
        ];
        let render = |m: &[Json], prompt: bool| Ok(echoing(m, prompt));
        let text = locate(&echoing(&chat, false), &chat, false, &render).unwrap_err();
        assert!(text.contains("message 1") && text.contains("generation"), "{text}");
    }

    #[test]
    fn answers_are_found_by_changing_their_words() {
        for answer in ["a", "QzQz", "Jk", "<b>é", "é</>\n</>", "  ", "Q"] {
            let chat = json!([{"role": "user", "content": "a"},
                              {"role": "assistant", "content": answer, "thinking": "t"},
                              {"role": "user", "content": answer},
                              {"role": "assistant", "content": answer, "thinking": "t"}]);
            let last = format!("t</think>{answer}</>\n<eos>");
            assert_eq!(said(chat, thinking), [format!("{answer}</>"), last], "{answer}");
        }
    }
}
