//! Jinja's expressions, by its grammar, written as those of minijinja: what an operator, a lookup
//! or a test does is a call of a function of `jinja_calls`, which does as Python does. What
//! operators stand between is in `jinja_operand`.

use crate::jinja_lexer::Token;
use crate::jinja_operand::Node;
use crate::jinja_tokens::{Parsed, Parser};

const DEEPEST: usize = 100; // of expressions in each other, below minijinja's own limit

impl Parser<'_> {
    /// One expression or, with commas, a tuple, up to the tag's end or one of `ends`.
    pub fn tuple(&mut self, conditional: bool, ends: &[&str]) -> Parsed {
        let mut items = Vec::new();
        let mut is_tuple = false;
        loop {
            let name_ends = self.peek_name().is_some_and(|name| ends.contains(&name));
            if self.at_end() || self.peek_operator() == Some(")") || name_ends {
                break;
            }
            items.push(if conditional { self.expression()? } else { self.or()? });
            if !self.skip_operator(",") {
                break;
            }
            is_tuple = true;
        }
        match items.pop() {
            None => Err(format!("expected an expression, got {}", self.describe())),
            Some(only) if !is_tuple => Ok(only),
            Some(last) => {
                items.push(last);
                Ok(format!("_tuple({})", items.join(", ")))
            }
        }
    }

    pub fn expression(&mut self) -> Parsed {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(format!(
                "an expression is nested more than {DEEPEST} deep, which is not \
                                supported"
            ));
        }
        let outer = self.soft;
        let mut value = self.or()?;
        while self.skip_name("if") {
            self.soft = true;
            let condition = self.or()?;
            value = if self.skip_name("else") {
                format!("({value} if {condition} else {})", self.expression()?)
            } else {
                format!("({value} if {condition})")
            };
        }
        self.soft = outer;
        self.depth -= 1;
        Ok(value)
    }

    pub fn or(&mut self) -> Parsed {
        let mut terms = vec![self.and()?];
        while self.skip_name("or") {
            terms.push(self.and()?);
        }
        Ok(joined(terms, " or "))
    }

    fn and(&mut self) -> Parsed {
        let mut terms = vec![self.not()?];
        while self.skip_name("and") {
            terms.push(self.not()?);
        }
        Ok(joined(terms, " and "))
    }

    fn not(&mut self) -> Parsed {
        let mut negations = 0;
        while self.skip_name("not") {
            negations += 1;
        }
        let value = self.comparison()?;
        Ok(match negations {
            0 => value,
            n if n % 2 == 1 => format!("(not {value})"),
            _ => format!("(not (not {value}))"),
        })
    }

    fn comparison_operator(&mut self) -> Option<&'static str> {
        const SIGNS: [&str; 6] = ["==", "!=", "<", "<=", ">", ">="];
        if let Some(sign) = self.peek_operator().filter(|sign| SIGNS.contains(sign)) {
            self.at += 1;
            return Some(sign);
        }
        if self.skip_name("in") {
            return Some("in");
        }
        let negated =
            matches!(self.tokens.get(self.at + 1), Some(Token::Name(name)) if name == "in");
        if self.peek_name() == Some("not") && negated {
            self.at += 2;
            return Some("not in");
        }
        None
    }

    fn comparison(&mut self) -> Parsed {
        let mut code = self.sum()?;
        let mut compared = false;
        while let Some(operator) = self.comparison_operator() {
            compared = true;
            code.push_str(&format!(", \"{operator}\", {}", self.sum()?));
        }
        Ok(if compared { format!("_compare({code})") } else { code })
    }

    /// Operators of one rank, from the left.
    fn ranked(&mut self, signs: &[(&str, &str)], operand: fn(&mut Self) -> Parsed) -> Parsed {
        let mut code = operand(self)?;
        let mut function = ""; // of the calls around `code`, which has room for one more argument
        loop {
            let sign = self.peek_operator();
            let Some((_, name)) = signs.iter().find(|(s, _)| Some(*s) == sign) else { break };
            self.at += 1;
            let right = operand(self)?;
            if function == *name {
                code.push_str(&format!(", {right}"));
            } else {
                let left = if function.is_empty() { code } else { code + ")" };
                code = format!("{name}({left}, {right}");
                function = name;
            }
        }
        Ok(if function.is_empty() { code } else { code + ")" })
    }

    fn sum(&mut self) -> Parsed {
        self.ranked(&[("+", "_add"), ("-", "_subtract")], Parser::concatenation)
    }

    fn concatenation(&mut self) -> Parsed {
        self.ranked(&[("~", "_concatenate")], Parser::product)
    }

    fn product(&mut self) -> Parsed {
        let signs =
            [("*", "_multiply"), ("/", "_divide"), ("//", "_floor_divide"), ("%", "_modulo")];
        self.ranked(&signs, Parser::power)
    }

    fn power(&mut self) -> Parsed {
        self.ranked(&[("**", "_power")], |parser| parser.unary(true))
    }

    fn unary(&mut self, filters: bool) -> Parsed {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(format!(
                "an expression is nested more than {DEEPEST} deep, which is not \
                                supported"
            ));
        }
        let node = if self.skip_operator("-") {
            Node::Code(format!("_negative({})", self.unary(false)?))
        } else if self.skip_operator("+") {
            Node::Code(format!("_positive({})", self.unary(false)?))
        } else {
            Node::Code(self.primary()?)
        };
        let node = self.postfix(node)?;
        let code = if filters { self.filters(node)? } else { node.code() };
        self.depth -= 1;
        Ok(code)
    }
}

fn joined(mut terms: Vec<String>, word: &str) -> String {
    match terms.len() {
        1 => terms.remove(0),
        _ => format!("({})", terms.join(word)),
    }
}
