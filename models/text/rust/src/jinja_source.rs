//! Rewrites a template's source before it is compiled: `{% generation %}` becomes a filter block, a
//! statement with the same rules for white space, and line ends become "\n" as Jinja reads them.

/// Name of the filter that `{% generation %}` turns into.
pub const FILTER: &str = "_generation_";

pub struct Source {
    pub text: String,
    pub has_marks: bool,
}

pub fn rewrite(original: &str) -> Source {
    let source = original.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut has_marks = false;
    let mut at = 0;
    while let Some(found) = source[at..].find('{') {
        let open = at + found;
        out.push_str(&source[at..open]);

        // A brace opens a comment, an expression or a statement, or is text of its own. An unclosed
        // tag is left for the compiler to complain about.
        let rest = &source[open..];
        let end = match rest.as_bytes().get(1) {
            Some(b'#') => rest.find("#}").map(|i| i + 2),
            Some(b'{') => tag_end(rest, "}}"),
            Some(b'%') => block_end(rest),
            _ => Some(1),
        };
        let tag = &rest[..end.unwrap_or(rest.len())];

        match generation_tag(tag) {
            Some((rewritten, opens)) => {
                has_marks |= opens;
                out.push_str(&rewritten);
            }
            None => out.push_str(tag),
        }
        at = open + tag.len();
    }
    out.push_str(&source[at..]);
    Source { text: out, has_marks }
}

/// Where the tag at the start of `text` ends: the first `close` outside strings and brackets.
fn tag_end(text: &str, close: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut quote = 0u8; // the one that opened the string here, 0 outside strings
    let mut depth = 0usize; // of brackets
    let mut i = 2;
    while i < bytes.len() {
        let c = bytes[i];
        if quote != 0 {
            match c {
                b'\\' => i += 1,
                _ if c == quote => quote = 0,
                _ => {}
            }
        } else if depth == 0 && bytes[i..].starts_with(close.as_bytes()) {
            return Some(i + close.len());
        } else {
            match c {
                b'\'' | b'"' => quote = c,
                b'{' | b'[' | b'(' => depth += 1,
                b'}' | b']' | b')' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        i += 1;
    }
    None
}

/// As `tag_end`, but a raw block is one piece.
fn block_end(text: &str) -> Option<usize> {
    let end = tag_end(text, "%}")?;
    if tag_word(&text[..end]) != Some("raw") {
        return Some(end);
    }
    let mut at = end;
    while let Some(found) = text[at..].find("{%") {
        let open = at + found;
        let close = open + text[open..].find("%}")? + 2;
        if tag_word(&text[open..close]) == Some("endraw") {
            return Some(close);
        }
        at = open + 2;
    }
    None
}

/// The inside of `{% ... %}` without the signs for white space, if it is a block tag.
fn tag_inside(tag: &str) -> Option<&str> {
    let inside = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    let inside = inside.strip_prefix(['-', '+']).unwrap_or(inside);
    Some(inside.strip_suffix(['-', '+']).unwrap_or(inside).trim())
}

fn tag_word(tag: &str) -> Option<&str> {
    tag_inside(tag).filter(|inside| !inside.contains(char::is_whitespace))
}

/// The replacement of a generation tag, and whether it opens a block.
fn generation_tag(tag: &str) -> Option<(String, bool)> {
    match tag_word(tag)? {
        "generation" => Some((tag.replacen("generation", &format!("filter {FILTER}"), 1), true)),
        "endgeneration" => Some((tag.replacen("endgeneration", "endfilter", 1), false)),
        _ => None,
    }
}
