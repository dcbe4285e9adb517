//! Which names a template sets on its top level only after blocks have read them. In Jinja such a
//! name is missing in the blocks up to there, whatever the context has under it; where the top
//! level itself reads it first, or sets it under a condition, it is the context's.

use std::collections::HashSet;

use crate::jinja_lexer::Token;

#[derive(Default)]
pub struct Scopes {
    read_inside: HashSet<String>,
    contexts: HashSet<String>, // of the context at first
    stored: HashSet<String>,
    pub missing: Vec<String>,
}

fn operator(token: Option<&Token>) -> &str {
    match token {
        Some(Token::Operator(operator)) => operator,
        _ => "",
    }
}

/// The names that tokens read; one that is no variable does no harm.
fn names(tokens: &[Token]) -> impl Iterator<Item = &String> {
    tokens.iter().enumerate().filter_map(move |(i, token)| match token {
        Token::Name(name) => {
            let is_part = i > 0 && operator(tokens.get(i - 1)) == ".";
            let is_parameter = operator(tokens.get(i + 1)) == "=";
            (!is_part && !is_parameter).then_some(name)
        }
        _ => None,
    })
}

/// Where the condition of a loop begins, which is asked in the loop.
fn condition(tokens: &[Token]) -> usize {
    let mut depth = 0;
    let begins = |token: &Token| {
        match token {
            Token::Operator("(" | "[" | "{") => depth += 1,
            Token::Operator(")" | "]" | "}") => depth -= 1,
            Token::Name(name) => return depth == 0 && name == "if",
            _ => {}
        }
        false
    };
    tokens.iter().position(begins).unwrap_or(tokens.len())
}

impl Scopes {
    /// A tag and the blocks around it; an expression has no word.
    pub fn tag(&mut self, word: &str, tokens: &[Token], open: &[String]) {
        if open.iter().any(|block| block != "if") {
            self.read_inside.extend(names(tokens).cloned());
            return;
        }
        let ends = |token: &Token| matches!(token, Token::Operator("=" | "|"));
        let (targets, read) = match word {
            "set" => {
                let end = tokens.iter().position(ends).unwrap_or(tokens.len());
                match tokens[..end].iter().any(|token| matches!(token, Token::Operator("."))) {
                    true => (&[][..], tokens),
                    false => tokens.split_at(end),
                }
            }
            "macro" => tokens.split_at(tokens.len().min(1)),
            "for" => {
                let (read, inside) = tokens.split_at(condition(tokens));
                self.read_inside.extend(names(inside).cloned());
                (&[][..], read)
            }
            _ => (&[][..], tokens),
        };
        for name in names(read).filter(|name| !self.stored.contains(*name)) {
            self.contexts.insert(name.clone());
        }
        for target in targets {
            let Token::Name(name) = target else { continue };
            if self.stored.contains(name) || self.contexts.contains(name) {
                continue;
            }
            if !open.is_empty() {
                self.contexts.insert(name.clone());
                continue;
            }
            self.stored.insert(name.clone());
            if self.read_inside.contains(name) {
                self.missing.push(name.clone());
            }
        }
    }
}
