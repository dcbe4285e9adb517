//! Jinja's lexer with the settings that transformers gives it: trim_blocks and lstrip_blocks.

pub enum Token {
    Name(String),
    Text(String),
    Integer(i128),
    Float(f64),
    Operator(&'static str),
}

pub enum Piece {
    Data(String),
    Expression(Vec<Token>),
    Statement(Vec<Token>),
}

/// A piece and the line that it begins on.
pub struct Placed {
    pub line: usize,
    pub piece: Piece,
}

/// Why a template cannot be read, and where.
#[derive(Debug)]
pub struct SyntaxError {
    pub line: usize,
    pub text: String,
}

const OPERATORS: [&str; 28] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",", ";", "!", "@",
];

/// str.isspace of one character, which is what the regular expressions of Jinja call white space.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: usize,
    line_starts: bool, // whether what was last read ended a line
    pieces: Vec<Placed>,
}

pub fn lex(original: &str) -> Result<Vec<Placed>, SyntaxError> {
    let source = original.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer = Lexer { source, at: 0, line: 1, line_starts: true, pieces: Vec::new() };
    while lexer.piece()? {}
    Ok(lexer.pieces)
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn fail<T>(&self, text: impl Into<String>) -> Result<T, SyntaxError> {
        Err(SyntaxError { line: self.line, text: text.into() })
    }

    fn skip(&mut self, bytes: usize) {
        let skipped = &self.source[self.at..self.at + bytes];
        self.line += skipped.matches('\n').count();
        self.at += bytes;
    }

    fn push(&mut self, line: usize, piece: Piece) {
        self.pieces.push(Placed { line, piece });
    }

    /// Text without the white space that the tag behind it takes away.
    fn data(&self, text: &'a str, sign: Option<char>, lstrip: bool) -> &'a str {
        if sign == Some('-') {
            return text.trim_end_matches(is_space);
        }
        let begin = text.rfind('\n').map_or(0, |i| i + 1);
        let whole_line = begin > 0 || self.line_starts;
        let blank = begin < text.len() && text[begin..].chars().all(is_space);
        if sign != Some('+') && lstrip && whole_line && blank {
            &text[..begin]
        } else {
            text
        }
    }

    /// The text up to the next tag, and the tag; false at the end.
    fn piece(&mut self) -> Result<bool, SyntaxError> {
        let rest = self.rest();
        let mut opening = None;
        for (i, pair) in rest.as_bytes().windows(2).enumerate() {
            if matches!(pair, b"{%" | b"{{" | b"{#") {
                opening = Some((i, pair[1]));
                break;
            }
        }
        let Some((begin, kind)) = opening else {
            if !rest.is_empty() {
                self.push(self.line, Piece::Data(rest.to_string()));
            }
            return Ok(false);
        };

        let sign = rest[begin + 2..].chars().next().filter(|c| matches!(c, '-' | '+'));
        let text = self.data(&rest[..begin], sign, kind != b'{');
        if !text.is_empty() {
            self.push(self.line, Piece::Data(text.to_string()));
        }
        self.skip(begin + 2 + sign.map_or(0, char::len_utf8));

        self.line_starts = false;
        match kind {
            b'#' => self.comment()?,
            b'{' => self.tag(false)?,
            _ if self.raw_begins() => self.raw()?,
            _ => self.tag(true)?,
        }
        Ok(true)
    }

    /// The length of a tag's end here, with the white space that it takes away.
    fn end_of(&self, text: &str, close: &str, trims: bool) -> Option<usize> {
        let blank = |tail: &str| tail.len() - tail.trim_start_matches(is_space).len();
        if let Some(tail) = text.strip_prefix('-').and_then(|t| t.strip_prefix(close)) {
            return Some(1 + close.len() + blank(tail));
        }
        if trims && text.strip_prefix('+').is_some_and(|t| t.starts_with(close)) {
            return Some(1 + close.len());
        }
        let tail = text.strip_prefix(close)?;
        Some(close.len() + usize::from(trims && tail.starts_with('\n')))
    }

    fn end(&mut self, bytes: usize) {
        self.line_starts = self.rest()[..bytes].ends_with('\n');
        self.skip(bytes);
    }

    fn comment(&mut self) -> Result<(), SyntaxError> {
        let rest = self.rest();
        for (i, c) in rest.char_indices() {
            if matches!(c, '-' | '+' | '#') {
                if let Some(length) = self.end_of(&rest[i..], "#}", true) {
                    self.skip(i);
                    self.end(length);
                    return Ok(());
                }
            }
        }
        self.fail("missing end of comment tag")
    }

    /// The length of the tag `word` with nothing else in it, from behind its sign.
    fn bare_tag(&self, text: &str, word: &str, trims: bool) -> Option<usize> {
        let inside = text.trim_start_matches(is_space).strip_prefix(word)?;
        let tail = inside.trim_start_matches(is_space);
        if !trims && tail.starts_with("%}") {
            return Some(text.len() - tail.len() + 2);
        }
        Some(text.len() - tail.len() + self.end_of(tail, "%}", trims)?)
    }

    fn raw_begins(&self) -> bool {
        self.bare_tag(self.rest(), "raw", false).is_some()
    }

    fn raw(&mut self) -> Result<(), SyntaxError> {
        let length = self.bare_tag(self.rest(), "raw", false).unwrap_or(0);
        self.end(length);
        let rest = self.rest();
        for (i, _) in rest.match_indices("{%") {
            let sign = rest[i + 2..].chars().next().filter(|c| matches!(c, '-' | '+'));
            let inside = i + 2 + sign.map_or(0, char::len_utf8);
            let Some(length) = self.bare_tag(&rest[inside..], "endraw", true) else { continue };
            let text = self.data(&rest[..i], sign, true);
            if !text.is_empty() {
                self.push(self.line, Piece::Data(text.to_string()));
            }
            self.skip(inside);
            self.end(length);
            return Ok(());
        }
        self.fail("missing end of raw directive")
    }

    fn tag(&mut self, statement: bool) -> Result<(), SyntaxError> {
        let line = self.line;
        let close = if statement { "%}" } else { "}}" };
        let mut tokens = Vec::new();
        let mut open: Vec<&str> = Vec::new(); // brackets
        loop {
            let rest = self.rest();
            let Some(c) = rest.chars().next() else {
                return self.fail("unexpected end of template inside a tag");
            };

            if open.is_empty() {
                if let Some(length) = self.end_of(rest, close, statement) {
                    self.end(length);
                    break;
                }
            }
            if is_space(c) {
                self.skip(c.len_utf8());
                continue;
            }
            let after_dot = matches!(tokens.last(), Some(Token::Operator(".")))
                && self.source[..self.at].ends_with('.');
            tokens.push(match c {
                '0'..='9' => self.number(after_dot)?,
                '\'' | '"' => self.string(c)?,
                c if c.is_alphanumeric() || c == '_' => self.name(),
                _ => self.operator(&mut open)?,
            });
        }
        let piece = if statement { Piece::Statement(tokens) } else { Piece::Expression(tokens) };
        self.push(line, piece);
        Ok(())
    }

    fn name(&mut self) -> Token {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        self.skip(end);
        Token::Name(rest[..end].to_string())
    }

    fn operator(&mut self, open: &mut Vec<&'static str>) -> Result<Token, SyntaxError> {
        let rest = self.rest();
        let Some(&found) = OPERATORS.iter().find(|operator| rest.starts_with(**operator)) else {
            return self.fail(format!("unexpected char {:?}", rest.chars().next().unwrap_or(' ')));
        };
        match found {
            "(" => open.push(")"),
            "[" => open.push("]"),
            "{" => open.push("}"),
            ")" | "]" | "}" => match open.pop() {
                Some(expected) if expected == found => {}
                Some(expected) => {
                    return self.fail(format!("unexpected '{found}', expected '{expected}'"))
                }
                None => return self.fail(format!("unexpected '{found}'")),
            },
            "!" | "@" => return self.fail(format!("unexpected char '{found}'")),
            _ => {}
        }
        self.skip(found.len());
        Ok(Token::Operator(found))
    }

    fn number(&mut self, after_dot: bool) -> Result<Token, SyntaxError> {
        let rest = self.rest();
        let float = if after_dot { 0 } else { float_length(rest) };
        if float > 0 {
            self.skip(float);
            let digits = rest[..float].replace('_', "");
            return match digits.parse() {
                Ok(value) => Ok(Token::Float(value)),
                Err(_) => self.fail(format!("'{digits}' is not a number")),
            };
        }
        let (radix, skip) = match rest.as_bytes().get(1).map(u8::to_ascii_lowercase) {
            Some(b'b') if rest.starts_with('0') => (2, 2),
            Some(b'o') if rest.starts_with('0') => (8, 2),
            Some(b'x') if rest.starts_with('0') => (16, 2),
            _ => (10, 0),
        };
        let of_number = |c: char| c.is_digit(radix) || c == '_';
        let mut length = rest[skip..].chars().take_while(|c| of_number(*c)).count();
        if radix == 10 && rest.starts_with('0') {
            length = rest.chars().take_while(|c| matches!(c, '0' | '_')).count();
        }
        let mut digits = &rest[skip..skip + length];
        digits = digits.trim_end_matches('_');
        self.skip(skip + digits.len());
        match i128::from_str_radix(&digits.replace('_', ""), radix) {
            Ok(value) => Ok(Token::Integer(value)),
            Err(_) => self.fail(
                "the template uses an integer of more than 127 bits, which is \
                                 not supported",
            ),
        }
    }

    fn string(&mut self, quote: char) -> Result<Token, SyntaxError> {
        let rest = self.rest();
        let mut escaped = false;
        for (i, c) in rest.char_indices().skip(1) {
            if !escaped && c == quote {
                self.skip(i + 1);
                return match unescape(&rest[1..i]) {
                    Ok(text) => Ok(Token::Text(text)),
                    Err(text) => self.fail(text),
                };
            }
            escaped = !escaped && c == '\\';
        }
        self.fail(format!("unexpected char {quote:?}: a string does not end"))
    }
}

/// The bytes of digits, which single underscores may part.
fn digits_length(text: &str) -> usize {
    let mut length = 0;
    let bytes = text.as_bytes();
    while let Some(c) = bytes.get(length) {
        let joins = *c == b'_' && length > 0 && bytes[length - 1] != b'_';
        if !c.is_ascii_digit() && !joins {
            break;
        }
        length += 1;
    }
    text[..length].trim_end_matches('_').len()
}

/// The bytes of a float here, 0 if there is none.
fn float_length(text: &str) -> usize {
    let whole = digits_length(text);
    let mut end = whole;
    if let Some(tail) = text[whole..].strip_prefix('.') {
        let fraction = digits_length(tail);
        end += if fraction > 0 { 1 + fraction } else { 0 };
    }
    if let Some(tail) = text[end..].strip_prefix(['e', 'E']) {
        let signed = tail.strip_prefix(['+', '-']).unwrap_or(tail);
        let exponent = digits_length(signed);
        if exponent > 0 {
            return end + 1 + (tail.len() - signed.len()) + exponent;
        }
    }
    if end > whole {
        end
    } else {
        0
    }
}

/// Python's unicode-escape of what stands between the quotes.
fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(c) = rest.chars().next() else { return Err("\\ at end of string".into()) };
        let mut taken = c.len_utf8();
        match c {
            '\n' => {}
            '\\' | '\'' | '"' => out.push(c),
            'a' => out.push('\u{7}'),
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'v' => out.push('\u{b}'),
            '0'..='7' => {
                let octal = rest.chars().take(3).take_while(|c| c.is_digit(8)).count();
                let code = u32::from_str_radix(&rest[..octal], 8).unwrap_or(0);
                out.push(char::from_u32(code).unwrap_or('\0'));
                taken = octal;
            }
            'x' | 'u' | 'U' => {
                let length = [2, 4, 8]["xuU".find(c).unwrap_or(0)];
                let code = rest.get(1..1 + length).and_then(|t| u32::from_str_radix(t, 16).ok());
                let Some(code) = code else { return Err(format!("truncated \\{c} escape")) };
                let Some(found) = char::from_u32(code) else {
                    return Err(format!(
                        "the template uses the character \\u{code:04x}, half of a \
                                        pair, which is not supported"
                    ));
                };
                out.push(found);
                taken = 1 + length;
            }
            'N' => return Err("the template uses the escape \\N, which is not supported".into()),
            // As in Python, an escape of no meaning stays as it is.
            c => out.extend(['\\', c]),
        }
        rest = &rest[taken..];
    }
    out.push_str(rest);
    Ok(out)
}
