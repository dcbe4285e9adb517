//! Python's numbers: how they print, are read and calculated with.

use minijinja::{Error, Value};

use crate::python_value::{from_integer, integer, invalid, type_of, Type};

#[derive(Clone, Copy)]
pub enum Number {
    Whole(i128),
    Real(f64),
}

impl Number {
    pub fn of(value: &Value) -> Option<Number> {
        if type_of(value) == Type::Float {
            return f64::try_from(value.clone()).ok().map(Number::Real);
        }
        integer(value).map(Number::Whole)
    }

    pub fn real(self) -> f64 {
        match self {
            Number::Whole(value) => value as f64,
            Number::Real(value) => value,
        }
    }
}

/// Integers of any length are not kept.
pub fn too_long() -> Error {
    invalid("the template makes an integer of more than 127 bits, which is not supported")
}

/// repr(float): the shortest digits, with an exponent outside 1e-4 .. 1e16.
pub fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let shortest = format!("{value:e}");
    // Of two that are as short and as near Python takes the even one.
    let precision = shortest.chars().take_while(|c| *c != 'e').filter(char::is_ascii_digit).count();
    let even = format!("{value:.*e}", precision - 1);
    let is_even = even.parse() == Ok(value);
    let scientific = if is_even { even } else { shortest };
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let places = digits.len().saturating_sub(2 + usize::from(value < 0.0)) as i32 - exponent;
    let plain =
        if is_even { format!("{value:.*}", places.max(0) as usize) } else { format!("{value}") };
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}

pub fn number(value: &Value) -> String {
    match Number::of(value) {
        Some(Number::Whole(whole)) => whole.to_string(),
        Some(Number::Real(real)) => float(real),
        None => value.to_string(),
    }
}

/// Digits with single underscores between them, as Python allows; none is an error.
fn plain_digits(text: &str) -> Option<String> {
    let fine = !text.starts_with('_') && !text.ends_with('_') && !text.contains("__");
    fine.then(|| text.replace('_', ""))
}

/// int(text, base).
pub fn parse_integer(text: &str, base: u32) -> Result<Option<i128>, Error> {
    let text = text.trim_matches(crate::jinja_lexer::is_space);
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let prefixes = [("0b", 2), ("0o", 8), ("0x", 16)];
    let prefix = prefixes
        .iter()
        .find(|(prefix, of)| (base == *of || base == 0) && lower.starts_with(prefix));
    let (base, body) = match prefix {
        Some((prefix, of)) => (*of, lower[prefix.len()..].trim_start_matches('_')),
        None if base == 0 => (10, lower.as_str()),
        None => (base, lower.as_str()),
    };
    let Some(body) = plain_digits(body) else { return Ok(None) };
    if body.is_empty() || !body.chars().all(|c| c.is_digit(base)) {
        return Ok(None);
    }
    let value = i128::from_str_radix(&body, base).map_err(|_| too_long())?;
    Ok(Some(if negative { -value } else { value }))
}

/// float(text).
pub fn parse_float(text: &str) -> Option<f64> {
    let text = plain_digits(text.trim_matches(crate::jinja_lexer::is_space))?;
    let bare = text.trim_start_matches(['+', '-']).to_ascii_lowercase();
    let named = matches!(bare.as_str(), "nan" | "inf" | "infinity");
    let digits = bare.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    if !named && !digits {
        return None;
    }
    text.to_ascii_lowercase().parse().ok()
}

/// Floor division and remainder of floats, as CPython calculates them.
fn real_divmod(a: f64, b: f64) -> (f64, f64) {
    let mut remainder = a % b;
    let mut quotient = (a - remainder) / b;
    if remainder != 0.0 {
        if (b < 0.0) != (remainder < 0.0) {
            remainder += b;
            quotient -= 1.0;
        }
    } else {
        remainder = 0f64.copysign(b);
    }
    if quotient == 0.0 {
        return (0f64.copysign(a / b), remainder);
    }
    let mut floor = quotient.floor();
    if quotient - floor > 0.5 {
        floor += 1.0;
    }
    (floor, remainder)
}

fn power(a: Number, b: Number) -> Result<Value, Error> {
    if let (Number::Whole(base), Number::Whole(exponent)) = (a, b) {
        if exponent >= 0 {
            let exponent = match base {
                -1..=1 => (exponent % 2 + 2 * i128::from(exponent > 0)) as u32,
                _ => u32::try_from(exponent).map_err(|_| too_long())?,
            };
            return base.checked_pow(exponent).map(from_integer).ok_or_else(too_long);
        }
    }
    let (base, exponent) = (a.real(), b.real());
    if base == 0.0 && exponent < 0.0 {
        return Err(invalid("0.0 cannot be raised to a negative power"));
    }
    if base < 0.0 && base.is_finite() && exponent.is_finite() && exponent.fract() != 0.0 {
        return Err(invalid("the template makes a complex number, which is not supported"));
    }
    let value = base.powf(exponent);
    if value.is_infinite() && base.is_finite() && exponent.is_finite() {
        return Err(invalid("numerical result out of range"));
    }
    Ok(Value::from(value))
}

/// a / b, rounded once, also where the integers are longer than a float's digits.
fn quotient(a: i128, b: i128) -> f64 {
    let (top, bottom) = (a.unsigned_abs(), b.unsigned_abs());
    let (mut whole, mut rest) = (top / bottom, top % bottom);
    let mut bits = 1;
    while whole < 1 << 64 && rest != 0 {
        whole <<= 1;
        rest <<= 1;
        if rest >= bottom {
            rest -= bottom;
            whole |= 1;
        }
        bits += 1;
    }
    // A last bit says whether anything is left, so that a half is told from more.
    let digits = (whole << 1 | u128::from(rest != 0)) as f64;
    let magnitude = digits * 2f64.powi(-bits);
    if (a < 0) != (b < 0) {
        -magnitude
    } else {
        magnitude
    }
}

/// An operator of two numbers.
pub fn calculate(operator: &str, a: Number, b: Number) -> Result<Value, Error> {
    let divides = matches!(operator, "/" | "//" | "%");
    if divides && b.real() == 0.0 {
        return Err(invalid("division by zero"));
    }
    if let (Number::Whole(a), Number::Whole(b)) = (a, b) {
        let value = match operator {
            "+" => a.checked_add(b),
            "-" => a.checked_sub(b),
            "*" => a.checked_mul(b),
            "//" => a.checked_div(b).map(|q| q - i128::from(a % b != 0 && (a < 0) != (b < 0))),
            "%" => a.checked_rem(b).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r }),
            "**" => return power(Number::Whole(a), Number::Whole(b)),
            _ => return Ok(Value::from(quotient(a, b))),
        };
        return value.map(from_integer).ok_or_else(too_long);
    }
    let (x, y) = (a.real(), b.real());
    Ok(Value::from(match operator {
        "+" => x + y,
        "-" => x - y,
        "*" => x * y,
        "//" => real_divmod(x, y).0,
        "%" => real_divmod(x, y).1,
        "**" => return power(a, b),
        _ => x / y,
    }))
}

/// round(value, digits) of a float, to even at ties.
pub fn round_real(value: f64, digits: i64) -> f64 {
    if !value.is_finite() || digits > 320 {
        return value;
    }
    if digits >= 0 {
        return format!("{value:.*}", digits as usize).parse().unwrap_or(value);
    }
    // The digits that stay are those of a scientific notation.
    let scientific = format!("{:e}", value.abs());
    let exponent: i64 = scientific.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let kept = exponent + digits;
    if kept < -1 {
        return 0f64.copysign(value);
    }
    if kept == -1 {
        let half = 5.0 * 10f64.powi(exponent as i32);
        let up = 10f64.powi(exponent as i32 + 1);
        return (if value.abs() > half { up } else { 0.0 }).copysign(value);
    }
    format!("{value:.*e}", kept as usize).parse().unwrap_or(value)
}

/// round(value, digits) of an integer, where digits are below 0.
pub fn round_whole(value: i128, digits: i64) -> i128 {
    let Some(unit) = u32::try_from(-digits).ok().and_then(|n| 10i128.checked_pow(n)) else {
        return 0;
    };
    let below = value.div_euclid(unit) * unit;
    let rest = value - below;
    let up = rest * 2 > unit || (rest * 2 == unit && (below / unit) % 2 != 0);
    if up {
        below + unit
    } else {
        below
    }
}

/// Whether an integer and a float are in this order, without the float's rounding of the integer.
pub fn compare(a: Number, b: Number) -> Option<std::cmp::Ordering> {
    match (a, b) {
        (Number::Whole(a), Number::Whole(b)) => Some(a.cmp(&b)),
        (Number::Whole(a), Number::Real(b)) => {
            if b.abs() < 1e38 {
                let whole = b.floor();
                let order = a.cmp(&(whole as i128));
                Some(order.then(whole.partial_cmp(&b)?))
            } else {
                (a as f64).partial_cmp(&b)
            }
        }
        (Number::Real(_), Number::Whole(_)) => compare(b, a).map(std::cmp::Ordering::reverse),
        (Number::Real(a), Number::Real(b)) => a.partial_cmp(&b),
    }
}
