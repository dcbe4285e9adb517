//! The tokens of a tag, as its parser takes them one after another.

use crate::jinja_lexer::Token;

pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Reads the tokens of a tag.
pub struct Parser<'a> {
    pub tokens: &'a [Token],
    pub at: usize,
    pub depth: usize,
    pub in_macro: bool,
    /// Whether a filter that does not exist is an error only where it is met, as in Jinja's `if`.
    pub soft: bool,
}

/// Code in the target's syntax, or what is wrong with the template.
pub type Parsed = Result<String, String>;

impl<'a> Parser<'a> {
    pub fn new(tokens: &'a [Token]) -> Parser<'a> {
        Parser { tokens, at: 0, depth: 0, in_macro: false, soft: false }
    }

    pub fn peek_name(&self) -> Option<&'a str> {
        match self.tokens.get(self.at) {
            Some(Token::Name(name)) => Some(name),
            _ => None,
        }
    }

    pub fn peek_operator(&self) -> Option<&'static str> {
        match self.tokens.get(self.at) {
            Some(Token::Operator(operator)) => Some(operator),
            _ => None,
        }
    }

    pub fn at_end(&self) -> bool {
        self.at >= self.tokens.len()
    }

    pub fn skip_name(&mut self, name: &str) -> bool {
        let found = self.peek_name() == Some(name);
        self.at += usize::from(found);
        found
    }

    pub fn skip_operator(&mut self, operator: &str) -> bool {
        let found = self.peek_operator() == Some(operator);
        self.at += usize::from(found);
        found
    }

    pub fn describe(&self) -> String {
        match self.tokens.get(self.at) {
            None => "end of the tag".into(),
            Some(Token::Name(name)) => format!("'{name}'"),
            Some(Token::Text(text)) => format!("the string {}", quoted(text)),
            Some(Token::Integer(value)) => format!("'{value}'"),
            Some(Token::Float(value)) => format!("'{value}'"),
            Some(Token::Operator(operator)) => format!("'{operator}'"),
        }
    }

    pub fn expect(&mut self, operator: &str) -> Result<(), String> {
        if self.skip_operator(operator) {
            return Ok(());
        }
        Err(format!("expected '{operator}', got {}", self.describe()))
    }

    pub fn name(&mut self) -> Parsed {
        match self.peek_name() {
            Some(name) => {
                self.at += 1;
                Ok(name.to_string())
            }
            None => Err(format!("expected a name, got {}", self.describe())),
        }
    }

    pub fn expect_end(&self) -> Result<(), String> {
        if self.at_end() {
            return Ok(());
        }
        Err(format!("expected end of the tag, got {}", self.describe()))
    }
}
