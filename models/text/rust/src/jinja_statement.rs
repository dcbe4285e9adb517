//! Rewrites a template before minijinja compiles it: what white space the tags take away is decided
//! here, by Jinja's rules, and expressions become calls of Python's operators (`jinja_expression`).

use crate::budget::SHORT;
use crate::jinja_lexer::{lex, Piece, SyntaxError, Token};
use crate::jinja_scopes::Scopes;
use crate::jinja_tokens::{quoted, Parser};

/// Template text that minijinja, trimming nothing, renders as Jinja renders `source`. Every tag
/// stays on its line.
pub fn translate(source: &str) -> Result<String, SyntaxError> {
    let mut translator =
        Translator { out: String::new(), line: 1, open: Vec::new(), scopes: Scopes::default() };
    let pieces = lex(source)?;
    for (i, placed) in pieces.iter().enumerate() {
        let tag_follows =
            pieces.get(i + 1).is_some_and(|next| !matches!(next.piece, Piece::Data(_)));
        let fail = |text: String| SyntaxError { line: placed.line, text };
        match &placed.piece {
            Piece::Data(text) => translator.data(text, tag_follows, placed.line),
            Piece::Expression(tokens) => {
                translator.scopes.tag("", tokens, &translator.open);
                let mut parser = translator.parser(tokens);
                let code = parser.tuple(true, &[]).map_err(fail)?;
                parser.expect_end().map_err(fail)?;
                translator.tag("{{ ", &code, " }}", placed.line);
            }
            Piece::Statement(tokens) => {
                let [before, code, behind] = translator.statement(tokens).map_err(fail)?;
                translator.push(&before);
                translator.tag("{% ", &code, " %}", placed.line);
                translator.push(&behind);
            }
        }
    }
    let missing = &translator.scopes.missing;
    let first: String = missing.iter().map(|name| format!("{{% set {name} = [][0] %}}")).collect();
    Ok(first + &translator.out)
}

struct Translator {
    out: String,
    line: usize,       // of the end of `out`
    open: Vec<String>, // the blocks around this place
    scopes: Scopes,
}

impl Translator {
    fn push(&mut self, text: &str) {
        self.line += text.matches('\n').count();
        self.out.push_str(text);
    }

    fn data(&mut self, text: &str, tag_follows: bool, line: usize) {
        let tags = ["{{", "{%", "{#"].iter().any(|open| text.contains(open));
        // A long text is a value, so that it is counted when it is written.
        if tags || text.len() > SHORT || (tag_follows && text.ends_with('{')) {
            self.tag("{{ ", &quoted(text), " }}", line);
        } else {
            self.push(text);
        }
    }

    fn tag(&mut self, open: &str, code: &str, close: &str, line: usize) {
        self.push(open);
        while self.line < line {
            self.push("\n");
        }
        self.push(code);
        self.push(close);
    }

    fn parser<'a>(&self, tokens: &'a [Token]) -> Parser<'a> {
        let mut parser = Parser::new(tokens);
        parser.in_macro = self.open.iter().any(|block| block == "macro" || block == "call");
        parser.soft = self.open.last().is_some_and(|block| block == "if");
        parser
    }

    /// The code of a tag, and what goes before and behind it.
    fn statement(&mut self, tokens: &[Token]) -> Result<[String; 3], String> {
        let mut parser = self.parser(tokens);
        let word = parser.name()?;
        self.scopes.tag(&word, &tokens[1..], &self.open);
        let (mut before, mut behind) = (String::new(), String::new());
        let code = match word.as_str() {
            "if" | "elif" => {
                parser.soft = true;
                format!("{word} {}", parser.tuple(false, &[])?)
            }
            "for" => for_loop(&mut parser)?,
            "set" => self.set(&mut parser)?,
            "with" => with(&mut parser)?,
            "macro" => {
                let name = parser.name()?;
                format!("macro {name}{}", signature(&mut parser, &mut behind)?)
            }
            "call" => call(&mut parser, &mut behind)?,
            "filter" => format!("filter {}", filters(&mut parser)?),
            "block" => block(&mut parser)?,
            "endblock" => match parser.at_end() {
                true => word.clone(),
                false => format!("endblock {}", parser.name()?),
            },
            "else" | "endif" | "endfor" | "endset" | "endwith" | "endmacro" | "endcall"
            | "endfilter" | "break" | "continue" => word.clone(),
            "include" | "import" | "from" | "extends" | "autoescape" => {
                return Err(format!("the template uses {{% {word} %}}, which is not supported"))
            }
            _ => return Err(format!("unknown tag '{word}'")),
        };
        parser.expect_end()?;

        // What is set inside a filter's block or one that is assigned ends with it.
        let scope = word == "filter" || self.open.last().is_some_and(|block| block == "set:new");
        if scope {
            behind.push_str("{% with %}");
        }
        match word.as_str() {
            "set" if scope => {
                self.open.pop();
                self.open.push("set".into());
            }
            "if" | "for" | "with" | "macro" | "call" | "filter" | "block" => self.open.push(word),
            "endset" | "endfilter" => {
                before.push_str("{% endwith %}");
                self.open.pop();
            }
            word if word.starts_with("end") => drop(self.open.pop()),
            _ => {}
        }
        Ok([before, code, behind])
    }

    fn set(&mut self, parser: &mut Parser) -> Result<String, String> {
        let target = targets(parser, "=", true)?;
        if parser.skip_operator("=") {
            let value = parser.tuple(true, &[])?;
            let unpacks = target.contains(',');
            let value = if unpacks { format!("_unpacked({value})") } else { value };
            return Ok(format!("set {target} = _kept({value})"));
        }
        self.open.push("set:new".into());
        match parser.skip_operator("|") {
            true => Ok(format!("set {target} | {}", filters(parser)?)),
            false => Ok(format!("set {target}")),
        }
    }
}

/// Names to assign to, up to `end` or the tag's end.
fn targets(parser: &mut Parser, end: &str, dotted: bool) -> Result<String, String> {
    let mut names = Vec::new();
    loop {
        let ends = parser.peek_name() == Some(end) || parser.peek_operator() == Some(end);
        if parser.at_end() || ends || parser.peek_operator() == Some(")") {
            break;
        }
        names.push(if parser.skip_operator("(") {
            let inner = targets(parser, ")", dotted)?;
            parser.expect(")")?;
            format!("({inner})")
        } else {
            let name = parser.name()?;
            match dotted && parser.skip_operator(".") {
                true => format!("{name}.{}", attribute(parser)?),
                false => name,
            }
        });
        if !parser.skip_operator(",") {
            return Ok(names.join(", "));
        }
    }
    match names.len() {
        0 => Err(format!("expected a name to assign to, got {}", parser.describe())),
        _ => Ok(names.join(", ") + ","),
    }
}

/// A name on a namespace, where transformers allows no underscore before it.
fn attribute(parser: &mut Parser) -> Result<String, String> {
    let name = parser.name()?;
    if name.starts_with('_') {
        return Err(format!("the attribute '{name}' of a namespace begins with an underscore"));
    }
    Ok(name)
}

fn for_loop(parser: &mut Parser) -> Result<String, String> {
    let target = targets(parser, "in", false)?;
    if !parser.skip_name("in") {
        return Err(format!("expected 'in', got {}", parser.describe()));
    }
    let items = parser.tuple(false, &["recursive"])?;
    let function = if target.contains(',') { "_rows" } else { "_iterable" };
    let mut code = format!("for {target} in {function}({items})");
    if parser.skip_name("if") {
        code.push_str(&format!(" if {}", parser.expression()?));
    }
    if parser.skip_name("recursive") {
        code.push_str(" recursive");
    }
    Ok(code)
}

fn with(parser: &mut Parser) -> Result<String, String> {
    let mut parts = Vec::new();
    while !parser.at_end() {
        if !parts.is_empty() {
            parser.expect(",")?;
        }
        let name = match parser.skip_operator("(") {
            true => {
                let inner = targets(parser, ")", false)?;
                parser.expect(")")?;
                format!("({inner})")
            }
            false => parser.name()?,
        };
        parser.expect("=")?;
        parts.push(format!("{name} = {}", parser.expression()?));
    }
    Ok(format!("with {}", parts.join(", ")))
}

/// The parameters of a macro, in parentheses; `defaults_code` sets those that a call leaves out, in
/// order, so that a default may name a parameter before it.
fn signature(parser: &mut Parser, defaults_code: &mut String) -> Result<String, String> {
    parser.expect("(")?;
    let mut parameters: Vec<String> = Vec::new();
    let mut defaults = false;
    while !parser.skip_operator(")") {
        if !parameters.is_empty() {
            parser.expect(",")?;
        }
        let name = parser.name()?;
        if parser.skip_operator("=") {
            defaults = true;
            let value = parser.expression()?;
            defaults_code.push_str(&format!(
                "{{% if {name} is undefined %}}{{% set {name} = {value} %}}{{% endif %}}"
            ));
            parameters.push(name);
        } else if defaults {
            return Err("a parameter without a default follows one that has it".into());
        } else {
            parameters.push(name);
        }
    }
    Ok(format!("({})", parameters.join(", ")))
}

fn call(parser: &mut Parser, defaults_code: &mut String) -> Result<String, String> {
    let parameters = match parser.peek_operator() == Some("(") {
        true => signature(parser, defaults_code)?,
        false => String::new(),
    };
    let called = parser.expression()?;
    if !called.ends_with(')') || called.starts_with('(') {
        return Err("expected a call of a macro".into());
    }
    Ok(format!("call{parameters} {called}"))
}

fn filters(parser: &mut Parser) -> Result<String, String> {
    let mut all = vec![parser.filter()?];
    while parser.skip_operator("|") {
        all.push(parser.filter()?);
    }
    Ok(all.join(" | "))
}

fn block(parser: &mut Parser) -> Result<String, String> {
    let mut code = format!("block {}", parser.name()?);
    for word in ["scoped", "required"] {
        if parser.skip_name(word) {
            code.push_str(&format!(" {word}"));
        }
    }
    Ok(code)
}
