//! The operands of Jinja's expressions: literals, names, lookups, calls, filters and tests.

use crate::jinja_filters::is_filter;
use crate::jinja_lexer::Token;
use crate::jinja_tests::is_test;
use crate::jinja_tokens::{quoted, Parsed, Parser};

/// An expression in the target's syntax, complete but for an attribute that a call may follow.
pub enum Node {
    Code(String),
    Attribute(String, String),
}

impl Node {
    pub fn code(self) -> String {
        match self {
            Node::Code(code) => code,
            Node::Attribute(of, name) => format!("_attribute({of}, {})", quoted(&name)),
        }
    }
}

impl Parser<'_> {
    pub fn primary(&mut self) -> Parsed {
        let Some(token) = self.tokens.get(self.at) else {
            return Err(format!("unexpected {}", self.describe()));
        };
        match token {
            Token::Name(name) => {
                self.at += 1;
                if self.in_macro && matches!(name.as_str(), "varargs" | "kwargs") {
                    return Err(format!(
                        "the template uses '{name}' in a macro, which is not \
                                        supported"
                    ));
                }
                if name == "self" && self.peek_operator() != Some(".") {
                    return Err("the template uses 'self' alone, which is not supported".into());
                }
                Ok(match name.as_str() {
                    "True" => "true".into(),
                    "False" => "false".into(),
                    "None" => "none".into(),
                    name => name.to_string(),
                })
            }
            Token::Text(_) => {
                let mut whole = String::new();
                while let Some(Token::Text(text)) = self.tokens.get(self.at) {
                    whole.push_str(text);
                    self.at += 1;
                }
                Ok(quoted(&whole))
            }
            Token::Integer(value) => {
                self.at += 1;
                let small = i64::try_from(*value).is_ok();
                Ok(if small { value.to_string() } else { format!("_number(\"{value}\")") })
            }
            Token::Float(value) => {
                self.at += 1;
                Ok(format!("_number(\"{value:?}\")"))
            }
            Token::Operator("(") => self.parentheses(),
            Token::Operator("[") => self.list(),
            Token::Operator("{") => self.dictionary(),
            Token::Operator(_) => Err(format!("unexpected {}", self.describe())),
        }
    }

    fn parentheses(&mut self) -> Parsed {
        self.expect("(")?;
        if self.skip_operator(")") {
            return Ok("_tuple()".into());
        }
        let inside = self.tuple(true, &[])?;
        self.expect(")")?;
        Ok(inside)
    }

    fn list(&mut self) -> Parsed {
        self.expect("[")?;
        let mut items = Vec::new();
        while !self.skip_operator("]") {
            if !items.is_empty() {
                self.expect(",")?;
                if self.skip_operator("]") {
                    break;
                }
            }
            items.push(self.expression()?);
        }
        Ok(format!("[{}]", items.join(", ")))
    }

    fn dictionary(&mut self) -> Parsed {
        self.expect("{")?;
        let mut items = Vec::new();
        while !self.skip_operator("}") {
            if !items.is_empty() {
                self.expect(",")?;
                if self.skip_operator("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.expect(":")?;
            items.push(format!("{key}, {}", self.expression()?));
        }
        Ok(format!("_dictionary({})", items.join(", ")))
    }

    pub fn postfix(&mut self, mut node: Node) -> Result<Node, String> {
        loop {
            node = if self.skip_operator(".") {
                match self.tokens.get(self.at) {
                    Some(Token::Name(name)) => {
                        self.at += 1;
                        Node::Attribute(node.code(), name.clone())
                    }
                    Some(Token::Integer(index)) => {
                        self.at += 1;
                        Node::Code(format!("_item({}, {index})", node.code()))
                    }
                    _ => return Err(format!("expected name or number, got {}", self.describe())),
                }
            } else if self.skip_operator("[") {
                Node::Code(self.subscript(node.code())?)
            } else if self.peek_operator() == Some("(") {
                Node::Code(self.call(node)?)
            } else {
                return Ok(node);
            };
        }
    }

    fn subscript(&mut self, of: String) -> Parsed {
        let mut parts: [String; 3] = ["none".into(), "none".into(), "none".into()];
        let mut colons = 0;
        loop {
            if self.skip_operator("]") {
                break;
            }
            if colons < 2 && self.skip_operator(":") {
                colons += 1;
                continue;
            }
            if self.peek_operator() == Some(",") {
                return Err(
                    "the template uses an index of several parts, which is not supported".into()
                );
            }
            if parts[colons] != "none" {
                return Err(format!("expected ']', got {}", self.describe()));
            }
            parts[colons] = self.expression()?;
        }
        let [start, stop, step] = parts;
        Ok(match colons {
            0 => format!("_item({of}, {start})"),
            _ => format!("_slice({of}, {start}, {stop}, {step})"),
        })
    }

    /// The arguments of a call with their parentheses, `first` before them.
    fn arguments(&mut self, first: &[&str]) -> Parsed {
        self.expect("(")?;
        let mut all: Vec<String> = first.iter().map(|text| text.to_string()).collect();
        let mut named = false;
        let mut begun = false;
        while !self.skip_operator(")") {
            if begun {
                self.expect(",")?;
                if self.skip_operator(")") {
                    break;
                }
            }
            begun = true;
            let assigned = matches!(self.tokens.get(self.at + 1), Some(Token::Operator("=")));
            if self.skip_operator("**") {
                all.push(format!("**{}", self.expression()?));
            } else if self.skip_operator("*") {
                all.push(format!("*{}", self.expression()?));
            } else if let Some(name) = self.peek_name().filter(|_| assigned) {
                self.at += 2;
                named = true;
                all.push(format!("{name}={}", self.expression()?));
            } else if named {
                return Err("a positional argument follows one with a name".into());
            } else {
                all.push(self.expression()?);
            }
        }
        Ok(format!("({})", all.join(", ")))
    }

    fn call(&mut self, node: Node) -> Parsed {
        match node {
            // These two are known to minijinja by their names.
            Node::Attribute(of, name) if of == "self" => {
                Ok(format!("self.{name}{}", self.arguments(&[])?))
            }
            Node::Attribute(of, name) => {
                let arguments = self.arguments(&[&of, &quoted(&name)])?;
                Ok(format!("_method{arguments}"))
            }
            Node::Code(code) => Ok(format!("{code}{}", self.arguments(&[])?)),
        }
    }

    /// A filter's name with its arguments.
    pub fn filter(&mut self) -> Parsed {
        let name = self.name()?;
        if !self.soft && !is_filter(&name) {
            return Err(format!("no filter named '{name}'"));
        }
        Ok(if self.peek_operator() == Some("(") { name + &self.arguments(&[])? } else { name })
    }

    pub fn filters(&mut self, node: Node) -> Parsed {
        let mut node = node;
        loop {
            node = if self.skip_operator("|") {
                let filter = self.filter()?;
                Node::Code(format!("({}|{filter})", node.code()))
            } else if self.peek_name() == Some("is") {
                Node::Code(self.test(node.code())?)
            } else if self.peek_operator() == Some("(") {
                Node::Code(self.call(node)?)
            } else {
                return Ok(node.code());
            };
        }
    }

    fn test(&mut self, of: String) -> Parsed {
        self.skip_name("is");
        let negated = self.skip_name("not");
        let name = self.name()?;
        if !self.soft && !is_test(&name) {
            return Err(format!("no test named '{name}'"));
        }
        let name = quoted(&name);
        let ends = ["else", "or", "and"].map(Some);
        if self.peek_name() == Some("is") {
            return Err("tests cannot be chained with 'is'".into());
        }
        let code = if self.peek_operator() == Some("(") {
            self.arguments(&[&of, &name])?
        } else if self.argument_follows() && !ends.contains(&self.peek_name()) {
            let argument = Node::Code(self.primary()?);
            let argument = self.postfix(argument)?.code();
            format!("({of}, {name}, {argument})")
        } else {
            format!("({of}, {name})")
        };
        Ok(if negated { format!("(not _is{code})") } else { format!("_is{code}") })
    }

    /// Whether a test has an argument without parentheses.
    fn argument_follows(&self) -> bool {
        match self.tokens.get(self.at) {
            None => false,
            Some(Token::Operator(operator)) => matches!(*operator, "(" | "[" | "{"),
            Some(_) => true,
        }
    }
}
