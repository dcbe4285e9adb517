//! Python's string methods.

use minijinja::{Error, State, Value};

use crate::budget::fits;
use crate::jinja_lexer::is_space;
use crate::python;
use crate::python_call::{flag, given, index, string, whole, Arguments};
use crate::python_letters::{capitalize, casefold, question, swapcase, title};
use crate::python_value::{invalid, items, tuple, type_name, type_of, Tuple, Type};

fn is_line_end(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

pub fn splitlines(text: &str, keep: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(is_line_end).unwrap_or(rest.len());
        let tail = &rest[end..];
        let mark = match tail.chars().next() {
            Some('\r') if tail.starts_with("\r\n") => 2,
            Some(c) => c.len_utf8(),
            None => 0,
        };
        lines.push(rest[..end + if keep { mark } else { 0 }].to_string());
        rest = &rest[end + mark..];
    }
    lines
}

pub fn strip<'a>(text: &'a str, characters: Option<&str>, left: bool, right: bool) -> &'a str {
    let strips = |c: char| characters.map_or(is_space(c), |all| all.contains(c));
    let text = if left { text.trim_start_matches(strips) } else { text };
    if right {
        text.trim_end_matches(strips)
    } else {
        text
    }
}

/// str.split and str.rsplit.
fn split(
    text: &str,
    part: Option<&str>,
    limit: i64,
    from_right: bool,
) -> Result<Vec<String>, Error> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut pieces: Vec<&str> = Vec::new();
    if part.is_some_and(str::is_empty) {
        return Err(invalid("empty separator"));
    }
    let mut rest = if part.is_some() { text } else { strip(text, None, !from_right, from_right) };
    let blank_split = |rest: &str| {
        let found = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
        found.map(|at| (at, rest[at..].chars().next().map_or(1, char::len_utf8)))
    };
    while pieces.len() < limit {
        let found = match part {
            Some(part) => {
                let at = if from_right { rest.rfind(part) } else { rest.find(part) };
                at.map(|at| (at, part.len()))
            }
            None => blank_split(rest),
        };
        let Some((at, length)) = found else { break };
        let (head, tail) = (&rest[..at], &rest[at + length..]);
        if from_right {
            pieces.push(tail);
            rest = if part.is_some() { head } else { strip(head, None, false, true) };
        } else {
            pieces.push(head);
            rest = if part.is_some() { tail } else { strip(tail, None, true, false) };
        }
    }
    if part.is_some() || !rest.is_empty() {
        let rest = match part {
            // What is left keeps the white space on the other side.
            None if pieces.len() < limit => strip(rest, None, true, true),
            _ => rest,
        };
        if part.is_some() || !rest.is_empty() {
            pieces.push(rest);
        }
    }
    let mut pieces: Vec<String> = pieces.into_iter().map(str::to_string).collect();
    if from_right {
        pieces.reverse();
    }
    Ok(pieces)
}

pub fn replace(text: &str, old: &str, new: &str, limit: i64) -> Result<String, Error> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if new.len() > old.len() {
        let times = text.matches(old).take(limit).count();
        fits(text.len().saturating_add(times.saturating_mul(new.len())))?;
    }
    Ok(text.replacen(old, new, limit))
}

pub fn padded(text: &str, width: i64, fill: char, side: char) -> Result<String, Error> {
    let length = text.chars().count();
    if width > 1_000_000 {
        let what = "the template pads to more than 1000000 characters, which is not supported";
        return Err(invalid(what));
    }
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(length);
    let fill = |count: usize| fill.to_string().repeat(count);
    Ok(match side {
        '<' => format!("{text}{}", fill(missing)),
        '>' => format!("{}{text}", fill(missing)),
        _ => {
            // CPython puts the odd one left where the width is odd.
            let left = missing / 2 + (missing & usize::try_from(width).unwrap_or(0) & 1);
            format!("{}{text}{}", fill(left), fill(missing - left))
        }
    })
}

/// The part of the text from one character to another, and how many bytes stand before it.
fn window(
    text: &str,
    start: &Option<Value>,
    end: &Option<Value>,
) -> Result<Option<(usize, String)>, Error> {
    let length = text.chars().count() as i64;
    let place = |value: &Option<Value>, default: i64| -> Result<i64, Error> {
        let at = match given(value) {
            None => default,
            Some(value) => index(&Some(value.clone()), default)?,
        };
        Ok(if at < 0 { (at + length).max(0) } else { at })
    };
    let (start, end) = (place(start, 0)?, place(end, length)?.min(length));
    if start > end {
        return Ok(None);
    }
    let part = text.chars().skip(start as usize).take((end - start) as usize).collect();
    Ok(Some((start as usize, part)))
}

fn find(text: &str, args: &Arguments, from_right: bool) -> Result<i64, Error> {
    let [part, start, end] = args.bind(["sub", "start", "end"], 1)?;
    let part = part.unwrap_or_default();
    let part = string(&part)?;
    let Some((before, inside)) = window(text, &start, &end)? else { return Ok(-1) };
    let found = if from_right { inside.rfind(part) } else { inside.find(part) };
    Ok(found.map_or(-1, |at| (before + inside[..at].chars().count()) as i64))
}

/// startswith and endswith, with one text or a tuple of them.
fn affix(text: &str, args: &Arguments, at_end: bool) -> Result<bool, Error> {
    let [affixes, start, end] = args.bind(["prefix", "start", "end"], 1)?;
    let affixes = affixes.unwrap_or_default();
    let all = match affixes.downcast_object_ref::<Tuple>() {
        Some(tuple) => tuple.items.clone(),
        None => vec![affixes],
    };
    let inside = window(text, &start, &end)?;
    for affix in &all {
        let Some(affix) = affix.as_str() else {
            let name = type_name(affix);
            return Err(invalid(format!("first arg must be str or a tuple of str, not {name}")));
        };
        let fits =
            |text: &str| if at_end { text.ends_with(affix) } else { text.starts_with(affix) };
        if inside.as_ref().is_some_and(|(_, inside)| fits(inside)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn partition(text: &str, part: &str, from_right: bool) -> Result<Value, Error> {
    if part.is_empty() {
        return Err(invalid("empty separator"));
    }
    let triple = |a: &str, b: &str, c: &str| tuple([a, b, c].map(Value::from).to_vec());
    let found = if from_right { text.rsplit_once(part) } else { text.split_once(part) };
    Ok(match found {
        Some((head, tail)) => triple(head, part, tail),
        None if from_right => triple("", "", text),
        None => triple(text, "", ""),
    })
}

fn expandtabs(text: &str, size: usize) -> String {
    let mut out = String::new();
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' if size > 0 => {
                let missing = size - column % size;
                out.push_str(&" ".repeat(missing));
                column += missing;
            }
            '\t' => {}
            c => {
                out.push(c);
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    out
}

fn zfill(text: &str, width: i64) -> Result<String, Error> {
    let (sign, digits) = match text.strip_prefix(['+', '-']) {
        Some(digits) => (&text[..1], digits),
        None => ("", text),
    };
    Ok(sign.to_string() + &padded(digits, width.saturating_sub(sign.len() as i64), '0', '>')?)
}

fn join(separator: &str, list: &Value) -> Result<String, Error> {
    let mut parts = Vec::new();
    if list.is_undefined() || matches!(type_of(list), Type::None | Type::Int | Type::Float) {
        return items(list).map(|_| String::new());
    }
    let mut length = 0;
    for (i, item) in items(list)?.iter().enumerate() {
        match item.as_str() {
            Some(text) => {
                length += text.len() + separator.len();
                fits(length)?;
                parts.push(text.to_string());
            }
            None => {
                let name = type_name(item);
                let what = format!("sequence item {i}: expected str instance, {name} found");
                return Err(invalid(what));
            }
        }
    }
    Ok(parts.join(separator))
}

fn pad(text: &str, args: &Arguments, side: char) -> Result<Value, Error> {
    let [width, fill] = args.bind(["width", "fillchar"], 1)?;
    let fill = fill.unwrap_or_else(|| Value::from(" "));
    let mut chars = string(&fill)?.chars();
    let (Some(fill), None) = (chars.next(), chars.next()) else {
        return Err(invalid("The fill character must be exactly one character long"));
    };
    Ok(Value::from(padded(text, index(&width, 0)?, fill, side)?))
}

/// The names of the methods that are here.
pub const METHODS: [&str; 44] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
];

/// Methods of Python's strings that are not here.
pub const MISSING: [&str; 3] = ["encode", "maketrans", "translate"];

pub fn method(state: &State, of: &Value, name: &str, values: &[Value]) -> Result<Value, Error> {
    let text = of.as_str().unwrap_or_default();
    let args = Arguments::of(name, values)?;
    if let Some(answer) = question(text, name) {
        args.bind([], 0)?;
        return Ok(answer);
    }
    let made = match name {
        "capitalize" => args.bind([], 0).map(|_| capitalize(text))?,
        "casefold" => args.bind([], 0).map(|_| casefold(text))?,
        "lower" => args.bind([], 0).map(|_| text.to_lowercase())?,
        "upper" => args.bind([], 0).map(|_| text.to_uppercase())?,
        "title" => args.bind([], 0).map(|_| title(text))?,
        "swapcase" => args.bind([], 0).map(|_| swapcase(text))?,
        "strip" | "lstrip" | "rstrip" => {
            let [characters] = args.bind(["chars"], 0)?;
            let characters = given(&characters).map(string).transpose()?;
            strip(text, characters, name != "rstrip", name != "lstrip").to_string()
        }
        "split" | "rsplit" => {
            let [part, limit] = args.bind(["sep", "maxsplit"], 0)?;
            let part = given(&part).map(string).transpose()?;
            return Ok(Value::from(split(text, part, index(&limit, -1)?, name == "rsplit")?));
        }
        "splitlines" => {
            let [keep] = args.bind(["keepends"], 0)?;
            return Ok(Value::from(splitlines(text, flag(&keep, false))));
        }
        "startswith" | "endswith" => {
            return affix(text, &args, name == "endswith").map(Value::from)
        }
        "find" | "rfind" => return find(text, &args, name == "rfind").map(Value::from),
        "index" | "rindex" => match find(text, &args, name == "rindex")? {
            -1 => return Err(invalid("substring not found")),
            at => return Ok(Value::from(at)),
        },
        "count" => {
            let [part, start, end] = args.bind(["sub", "start", "end"], 1)?;
            let part = part.unwrap_or_default();
            let (part, inside) = (string(&part)?, window(text, &start, &end)?);
            let inside = inside.map(|(_, inside)| inside);
            return Ok(Value::from(match inside {
                None => 0,
                Some(inside) if part.is_empty() => inside.chars().count() + 1,
                Some(inside) => inside.matches(part).count(),
            }));
        }
        "replace" => {
            let [old, new, count] = args.bind(["old", "new", "count"], 2)?;
            let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
            replace(text, string(&old)?, string(&new)?, index(&count, -1)?)?
        }
        "removeprefix" | "removesuffix" => {
            let [part] = args.bind(["part"], 1)?;
            let part = part.unwrap_or_default();
            let part = string(&part)?;
            let rest = match name {
                "removeprefix" => text.strip_prefix(part),
                _ => text.strip_suffix(part),
            };
            rest.unwrap_or(text).to_string()
        }
        "partition" | "rpartition" => {
            let [part] = args.bind(["sep"], 1)?;
            return partition(text, string(&part.unwrap_or_default())?, name == "rpartition");
        }
        "join" => {
            let [list] = args.bind(["iterable"], 1)?;
            join(text, &list.unwrap_or_default())?
        }
        "center" => return pad(text, &args, '^'),
        "ljust" => return pad(text, &args, '<'),
        "rjust" => return pad(text, &args, '>'),
        "zfill" => {
            let [width] = args.bind(["width"], 1)?;
            zfill(text, index(&width, 0)?)?
        }
        "expandtabs" => {
            let [size] = args.bind(["tabsize"], 0)?;
            let size = size.map_or(Ok(8), |size| whole(&size))?;
            expandtabs(text, size.clamp(0, 1000) as usize)
        }
        "format" => python::formatted(state, text, &args)?,
        "format_map" => {
            let [map] = args.bind(["mapping"], 1)?;
            let mut named = Vec::new();
            for (key, value) in crate::python_value::pairs(&map.unwrap_or_default())? {
                named.push((key.to_string(), value));
            }
            python::formatted(state, text, &Arguments { what: name, positional: &[], named })?
        }
        _ => return Err(invalid(format!("'str' object has no attribute '{name}'"))),
    };
    Ok(Value::from(made))
}
