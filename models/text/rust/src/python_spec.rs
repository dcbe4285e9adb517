//! Python's format specifications, and how numbers and texts are written by one.

use minijinja::{Error, Value};

use crate::python;
use crate::python_number::Number;
use crate::python_value::{invalid, type_name, type_of, Type};

const WIDEST: usize = 1_000_000;

/// How a value is to be written.
#[derive(Clone)]
pub struct Spec {
    pub fill: char,
    pub align: Option<char>,
    pub sign: char, // '-', '+' or ' '
    pub alternate: bool,
    pub width: usize,
    pub grouping: Option<char>,
    pub precision: Option<usize>,
    pub kind: Option<char>,
}

impl Spec {
    pub fn plain() -> Spec {
        Spec {
            fill: ' ',
            align: None,
            sign: '-',
            alternate: false,
            width: 0,
            grouping: None,
            precision: None,
            kind: None,
        }
    }

    /// [[fill]align][sign][#][0][width][grouping][.precision][type]
    fn parse(text: &str) -> Result<Spec, Error> {
        let chars: Vec<char> = text.chars().collect();
        let mut spec = Spec::plain();
        let is_align = |c: Option<&char>| matches!(c, Some('<' | '>' | '=' | '^'));
        let mut at = 0;
        if is_align(chars.get(1)) {
            (spec.fill, spec.align, at) = (chars[0], Some(chars[1]), 2);
        } else if is_align(chars.first()) {
            (spec.align, at) = (Some(chars[0]), 1);
        }
        if let Some(sign @ ('+' | '-' | ' ')) = chars.get(at) {
            (spec.sign, at) = (*sign, at + 1);
        }
        if chars.get(at) == Some(&'#') {
            (spec.alternate, at) = (true, at + 1);
        }
        if chars.get(at) == Some(&'0') {
            if spec.align.is_none() {
                (spec.fill, spec.align) = ('0', Some('='));
            }
            at += 1;
        }
        spec.width = digits(&chars, &mut at)?.unwrap_or(0);
        if let Some(grouping @ (',' | '_')) = chars.get(at) {
            (spec.grouping, at) = (Some(*grouping), at + 1);
        }
        if chars.get(at) == Some(&'.') {
            at += 1;
            spec.precision = digits(&chars, &mut at)?;
            if spec.precision.is_none() {
                return Err(invalid("Format specifier missing precision"));
            }
        }
        if let Some(kind) = chars.get(at) {
            (spec.kind, at) = (Some(*kind), at + 1);
        }
        if at < chars.len() {
            return Err(invalid(format!("Invalid format specifier '{text}'")));
        }
        Ok(spec)
    }
}

pub fn digits(chars: &[char], at: &mut usize) -> Result<Option<usize>, Error> {
    let begin = *at;
    while chars.get(*at).is_some_and(char::is_ascii_digit) {
        *at += 1;
    }
    if *at == begin {
        return Ok(None);
    }
    let text: String = chars[begin..*at].iter().collect();
    match text.parse() {
        Ok(value) if value <= WIDEST => Ok(Some(value)),
        _ => Err(invalid(format!(
            "the template formats to more than {WIDEST} characters, which is not supported"
        ))),
    }
}

/// Digits with a sign every three (or four, of bits) places.
fn grouped(digits: &str, grouping: Option<char>, places: usize) -> String {
    let Some(separator) = grouping else { return digits.to_string() };
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % places == 0 {
            out.push(separator);
        }
        out.push(c);
    }
    out
}

/// `body` filled to the width; `sign` stays before what `=` fills in.
pub fn filled(spec: &Spec, sign: &str, body: &str, align: char) -> String {
    let length = sign.chars().count() + body.chars().count();
    let missing = spec.width.saturating_sub(length);
    let fill = |count: usize| spec.fill.to_string().repeat(count);
    match spec.align.unwrap_or(align) {
        '<' => format!("{sign}{body}{}", fill(missing)),
        '^' => format!("{}{sign}{body}{}", fill(missing / 2), fill(missing - missing / 2)),
        '=' => format!("{sign}{}{body}", fill(missing)),
        _ => format!("{}{sign}{body}", fill(missing)),
    }
}

pub fn sign_of(spec: &Spec, negative: bool) -> String {
    match (negative, spec.sign) {
        (true, _) => "-".into(),
        (false, '-') => String::new(),
        (false, sign) => sign.to_string(),
    }
}

pub fn whole(spec: &Spec, value: i128) -> String {
    let magnitude = value.unsigned_abs();
    let (prefix, digits, places) = match spec.kind {
        Some('b') => ("0b", format!("{magnitude:b}"), 4),
        Some('o') => ("0o", format!("{magnitude:o}"), 4),
        Some('x') => ("0x", format!("{magnitude:x}"), 4),
        Some('X') => ("0X", format!("{magnitude:X}"), 4),
        _ => ("", magnitude.to_string(), 3),
    };
    let mut sign = sign_of(spec, value < 0);
    if spec.alternate {
        sign.push_str(prefix);
    }
    zero_filled(spec, &sign, &digits, "", places)
}

/// A number's text, where zeros that fill it up are parted as its digits are.
fn zero_filled(spec: &Spec, sign: &str, digits: &str, tail: &str, places: usize) -> String {
    let mut digits = digits.to_string();
    if spec.grouping.is_some() && spec.fill == '0' && spec.align == Some('=') {
        let length =
            |digits: &str| sign.len() + grouped(digits, spec.grouping, places).len() + tail.len();
        while length(&digits) < spec.width {
            digits.insert(0, '0');
        }
    }
    filled(spec, sign, &(grouped(&digits, spec.grouping, places) + tail), '>')
}

/// An exponent as C writes it.
fn scientific(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// C's %g; `repr`: with a point also where the value is whole, as format(float, "") does.
fn general(value: f64, precision: usize, alternate: bool) -> String {
    let precision = precision.max(1);
    let text = scientific(value, precision - 1);
    let exponent: i64 = text.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let strip = |text: &str| {
        if alternate || !text.contains('.') {
            return text.to_string();
        }
        text.trim_end_matches('0').trim_end_matches('.').to_string()
    };
    if exponent < -4 || exponent >= precision as i64 {
        let (digits, tail) = text.split_once('e').unwrap_or((&text, "+00"));
        return format!("{}e{tail}", strip(digits));
    }
    strip(&format!("{value:.*}", (precision as i64 - 1 - exponent) as usize))
}

pub fn real(spec: &Spec, value: f64) -> String {
    let sign = sign_of(spec, value.is_sign_negative() && !value.is_nan());
    let magnitude = value.abs();
    let precision = spec.precision.unwrap_or(6);
    let mut text = match spec.kind {
        _ if value.is_nan() => "nan".into(),
        _ if value.is_infinite() => "inf".into(),
        Some('f' | 'F') => format!("{magnitude:.precision$}"),
        Some('e' | 'E') => scientific(magnitude, precision),
        Some('%') => format!("{:.precision$}%", magnitude * 100.0),
        Some('g' | 'G') => general(magnitude, precision, spec.alternate),
        _ => match spec.precision {
            None => crate::python_number::float(magnitude),
            Some(precision) => pointed(general(magnitude, precision, false), magnitude, precision),
        },
    };
    if matches!(spec.kind, Some('F' | 'E' | 'G')) {
        text = text.to_uppercase();
    }
    let whole = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    zero_filled(spec, &sign, &text[..whole], &text[whole..], 3)
}

/// Without a type, a precision leaves at least one digit behind the point.
fn pointed(text: String, value: f64, precision: usize) -> String {
    if text.contains(['.', 'e']) {
        return text;
    }
    if text.len() >= precision.max(1) {
        return scientific_short(value, precision);
    }
    text + ".0"
}

fn scientific_short(value: f64, precision: usize) -> String {
    let text = scientific(value, precision.max(1) - 1);
    let (digits, tail) = text.split_once('e').unwrap_or((&text, "+00"));
    let digits = match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.'),
        false => digits,
    };
    format!("{digits}e{tail}")
}

fn text(spec: &Spec, value: &str) -> String {
    let cut: String = match spec.precision {
        Some(precision) => value.chars().take(precision).collect(),
        None => value.to_string(),
    };
    filled(spec, "", &cut, '<')
}

/// format(value, spec).
pub fn formatted(value: &Value, spec: &str) -> Result<String, Error> {
    if spec.is_empty() {
        return python::text(value);
    }
    let parsed = Spec::parse(spec)?;
    let unknown = || {
        let kind = parsed.kind.unwrap_or(' ');
        let name = type_name(value);
        Err(invalid(format!("Unknown format code '{kind}' for object of type '{name}'")))
    };
    match (type_of(value), parsed.kind) {
        (Type::Text, None | Some('s')) => match parsed.align {
            Some('=') if parsed.fill != '0' => {
                Err(invalid("'=' alignment not allowed in string format specifier"))
            }
            Some('=') => Ok(text(&Spec { align: Some('<'), ..parsed }, &python::text(value)?)),
            _ if parsed.sign != '-' || parsed.alternate || parsed.grouping.is_some() => {
                Err(invalid("Sign, '#' and ',' are not allowed in string format specifier"))
            }
            _ => Ok(text(&parsed, &python::text(value)?)),
        },
        (Type::Int | Type::Bool, kind) => match (kind, Number::of(value)) {
            (None | Some('d' | 'b' | 'o' | 'x' | 'X' | 'n'), Some(Number::Whole(number))) => {
                match parsed.precision {
                    None => Ok(whole(&parsed, number)),
                    _ => Err(invalid("Precision not allowed in integer format specifier")),
                }
            }
            (Some('c'), Some(Number::Whole(code))) => {
                Ok(filled(&parsed, "", &character(code)?.to_string(), '<'))
            }
            (Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%'), Some(number)) => {
                Ok(real(&parsed, number.real()))
            }
            _ => unknown(),
        },
        (Type::Float, None | Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | 'n' | '%')) => {
            Ok(real(&parsed, Number::of(value).map_or(0.0, Number::real)))
        }
        (Type::Text | Type::Float, _) => unknown(),
        _ => Err(invalid(format!(
            "unsupported format string passed to {}.__format__",
            type_name(value)
        ))),
    }
}

pub fn character(code: i128) -> Result<char, Error> {
    let found = u32::try_from(code).ok().and_then(char::from_u32);
    found.ok_or_else(|| invalid("%c arg not in range(0x110000)"))
}
