//! Jinja's filters of lists.

use std::cmp::Ordering;

use minijinja::{Error, State, Value};

use crate::budget::{built, charge, fits};
use crate::jinja_filters::{count, only};
use crate::jinja_lookups::item;
use crate::jinja_tests::test;
use crate::python;
use crate::python_call::{flag, given, string, Arguments};
use crate::python_operators::{apply, equal, hashable, order};
use crate::python_value::{
    invalid, items, pairs, tuple, type_of, undefined, Generator, Tuple, Type,
};

/// Where an attribute is found: names and indices between points.
fn path(attribute: &Option<Value>) -> Vec<Value> {
    match given(attribute) {
        None => Vec::new(),
        Some(attribute) => match attribute.as_str() {
            None => vec![attribute.clone()],
            Some(text) => parts_of(text),
        },
    }
}

fn parts_of(text: &str) -> Vec<Value> {
    let part = |part: &str| match part.parse::<u32>() {
        Ok(index) if part.bytes().all(|c| c.is_ascii_digit()) => Value::from(index),
        _ => Value::from(part),
    };
    text.split('.').map(part).collect()
}

fn reach(
    state: &State,
    value: &Value,
    path: &[Value],
    default: Option<&Value>,
) -> Result<Value, Error> {
    let mut value = value.clone();
    for part in path {
        value = item(state, &value, part)?;
        if let Some(default) = default.filter(|_| value.is_undefined()) {
            value = default.clone();
        }
    }
    Ok(value)
}

fn ignoring_case(value: Value, case_sensitive: bool) -> Value {
    match value.as_str() {
        Some(text) if !case_sensitive => Value::from(text.to_lowercase()),
        _ => value,
    }
}

/// Sorted by a key of each; what Python cannot compare is its error.
fn sorted(mut all: Vec<(Value, Value)>, reverse: bool) -> Result<Vec<Value>, Error> {
    let mut failure = None;
    all.sort_by(|(a, _), (b, _)| match order("<", a, b) {
        // The items of equal keys keep their order, whichever way the others go.
        Ok(found) => {
            let found = found.unwrap_or(Ordering::Equal);
            if reverse {
                found.reverse()
            } else {
                found
            }
        }
        Err(error) => {
            failure = Some(error);
            Ordering::Equal
        }
    });
    match failure {
        Some(error) => Err(error),
        None => Ok(all.into_iter().map(|(_, value)| value).collect()),
    }
}

pub fn sort(state: &State, args: &Arguments) -> Result<Value, Error> {
    let [value, reverse, case, attribute] =
        args.bind(["value", "reverse", "case_sensitive", "attribute"], 1)?;
    let case = flag(&case, false);
    let paths: Vec<Vec<Value>> = match attribute.as_ref().and_then(Value::as_str) {
        Some(text) => text.split(',').map(parts_of).collect(),
        None => vec![path(&attribute)],
    };
    let mut keyed = Vec::new();
    for one in items(&value.unwrap_or_default())? {
        let mut keys = Vec::new();
        for path in &paths {
            keys.push(ignoring_case(reach(state, &one, path, None)?, case));
        }
        keyed.push((Value::from(keys), one));
    }
    Ok(Value::from(sorted(keyed, flag(&reverse, false))?))
}

pub fn dictsort(_: &State, args: &Arguments) -> Result<Value, Error> {
    let [value, case, by, reverse] = args.bind(["value", "case_sensitive", "by", "reverse"], 1)?;
    let value = value.unwrap_or_default();
    if type_of(&value) != Type::Dictionary {
        return Err(if value.is_undefined() {
            undefined()
        } else {
            invalid("dictsort: the value is not a dictionary")
        });
    }
    let by = by.unwrap_or_else(|| Value::from("key"));
    let by_value = match by.as_str() {
        Some("key") => false,
        Some("value") => true,
        _ => return Err(invalid("You can only sort by either \"key\" or \"value\"")),
    };
    let mut keyed = Vec::new();
    for (key, value) in pairs(&value)? {
        let by = if by_value { value.clone() } else { key.clone() };
        keyed.push((ignoring_case(by, flag(&case, false)), tuple(vec![key, value])));
    }
    Ok(Value::from(sorted(keyed, flag(&reverse, false))?))
}

pub fn groupby(state: &State, args: &Arguments) -> Result<Value, Error> {
    let [value, attribute, default, case] =
        args.bind(["value", "attribute", "default", "case_sensitive"], 2)?;
    let (path, default) = (path(&attribute), given(&default).cloned());
    let case = flag(&case, false);
    let mut keyed = Vec::new();
    for one in items(&value.unwrap_or_default())? {
        let key = reach(state, &one, &path, default.as_ref())?;
        keyed.push((ignoring_case(key.clone(), case), tuple(vec![key, one])));
    }
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for pair in sorted(keyed, false)? {
        let parts = pair.downcast_object_ref::<Tuple>().map_or(&[][..], |tuple| &tuple.items);
        let [key, one] = parts else { continue };
        match groups.last_mut() {
            Some((last, group))
                if equal(
                    &ignoring_case(last.clone(), case),
                    &ignoring_case(key.clone(), case),
                )? =>
            {
                group.push(one.clone());
            }
            _ => groups.push((key.clone(), vec![one.clone()])),
        }
    }
    let group = |(key, list): (Value, Vec<Value>)| {
        Value::from_object(Tuple { items: vec![key, Value::from(list)], grouped: true })
    };
    Ok(Value::from(groups.into_iter().map(group).collect::<Vec<Value>>()))
}

pub fn unique(state: &State, args: &Arguments) -> Result<Value, Error> {
    let [value, case, attribute] = args.bind(["value", "case_sensitive", "attribute"], 1)?;
    let path = path(&attribute);
    let mut seen: Vec<Value> = Vec::new();
    let mut kept = Vec::new();
    for one in items(&value.unwrap_or_default())? {
        let key = ignoring_case(reach(state, &one, &path, None)?, flag(&case, false));
        hashable(&key)?;
        charge(state, 8 * seen.len() as u64)?;
        let mut known = false;
        for other in &seen {
            known = known || equal(other, &key)?;
        }
        if !known {
            seen.push(key);
            kept.push(one);
        }
    }
    Ok(Generator::of(kept))
}

fn extreme(state: &State, args: &Arguments, wanted: Ordering) -> Result<Value, Error> {
    let [value, case, attribute] = args.bind(["value", "case_sensitive", "attribute"], 1)?;
    let path = path(&attribute);
    let sign = if wanted == Ordering::Less { "<" } else { ">" };
    let mut best: Option<(Value, Value)> = None;
    for one in items(&value.unwrap_or_default())? {
        let key = ignoring_case(reach(state, &one, &path, None)?, flag(&case, false));
        let better = match &best {
            None => true,
            Some((known, _)) => order(sign, &key, known)? == Some(wanted),
        };
        if better {
            best = Some((key, one));
        }
    }
    Ok(best.map_or(Value::UNDEFINED, |(_, value)| value))
}

pub fn min(state: &State, args: &Arguments) -> Result<Value, Error> {
    extreme(state, args, Ordering::Less)
}

pub fn max(state: &State, args: &Arguments) -> Result<Value, Error> {
    extreme(state, args, Ordering::Greater)
}

pub fn sum(state: &State, args: &Arguments) -> Result<Value, Error> {
    let [value, attribute, start] = args.bind(["iterable", "attribute", "start"], 1)?;
    let path = path(&attribute);
    let start = start.unwrap_or_else(|| Value::from(0));
    if start.as_str().is_some() {
        return Err(invalid("sum() can't sum strings [use ''.join(seq) instead]"));
    }
    items(&value.unwrap_or_default())?.iter().try_fold(start, |total, one| {
        built(state, apply("+", &total, &reach(state, one, &path, None)?)?)
    })
}

pub fn join(state: &State, args: &Arguments) -> Result<Value, Error> {
    let [value, separator, attribute] = args.bind(["value", "d", "attribute"], 1)?;
    let separator = python::text(&separator.unwrap_or_else(|| Value::from("")))?;
    let path = path(&attribute);
    let mut joined = String::new();
    for (i, one) in items(&value.unwrap_or_default())?.into_iter().enumerate() {
        joined.push_str(if i == 0 { "" } else { &separator });
        joined.push_str(&python::text(&reach(state, &one, &path, None)?)?);
        fits(joined.len())?;
    }
    Ok(Value::from(joined))
}

pub fn first(_: &State, args: &Arguments) -> Result<Value, Error> {
    let value = only(args)?;
    // Of what can be iterated over once only the first is taken.
    if type_of(&value) == Type::Generator {
        return Ok(value.try_iter()?.next().unwrap_or_default());
    }
    if let Some(text) = value.as_str() {
        let first = text.chars().next().map(|c| Value::from(c.to_string()));
        return Ok(first.unwrap_or_default());
    }
    Ok(items(&value)?.into_iter().next().unwrap_or_default())
}

fn reversible(value: &Value) -> Result<Vec<Value>, Error> {
    match type_of(value) {
        Type::Generator => Err(invalid("'generator' object is not reversible")),
        _ => items(value),
    }
}

pub fn last(_: &State, args: &Arguments) -> Result<Value, Error> {
    let value = only(args)?;
    if let Some(text) = value.as_str() {
        let last = text.chars().next_back().map(|c| Value::from(c.to_string()));
        return Ok(last.unwrap_or_default());
    }
    Ok(reversible(&value)?.pop().unwrap_or_default())
}

pub fn reverse(_: &State, args: &Arguments) -> Result<Value, Error> {
    let value = only(args)?;
    if let Some(text) = value.as_str() {
        let text = text.chars().rev().collect::<String>();
        return Ok(if value.is_safe() { Value::from_safe_string(text) } else { Value::from(text) });
    }
    let mut all = items(&value)?;
    all.reverse();
    Ok(Generator::of(all))
}

pub fn batch(_: &State, args: &Arguments) -> Result<Value, Error> {
    let [value, width, fill] = args.bind(["value", "linecount", "fill_with"], 2)?;
    let width = count(&width)?;
    let mut rows: Vec<Vec<Value>> = Vec::new();
    for one in items(&value.unwrap_or_default())? {
        match rows.last_mut() {
            Some(row) if row.len() as i128 != width => row.push(one),
            None if width == 0 => rows.extend([Vec::new(), vec![one]]),
            _ => rows.push(vec![one]),
        }
    }
    if let (Some(row), Some(fill)) = (rows.last_mut(), given(&fill)) {
        while (row.len() as i128) < width.min(100_000) {
            row.push(fill.clone());
        }
    }
    Ok(Generator::of(rows.into_iter().map(Value::from).collect()))
}

pub fn slice(_: &State, args: &Arguments) -> Result<Value, Error> {
    let [value, slices, fill] = args.bind(["value", "slices", "fill_with"], 2)?;
    let slices = count(&slices)?;
    let all = items(&value.unwrap_or_default())?;
    if slices == 0 {
        return Err(invalid("integer division or modulo by zero"));
    }
    let slices = slices.clamp(0, 100_000) as usize;
    let (each, extra) = (all.len() / slices.max(1), all.len() % slices.max(1));
    let mut columns = Vec::new();
    let mut at = 0;
    for column in 0..slices {
        let end = at + each + usize::from(column < extra);
        let mut part = all[at..end].to_vec();
        if let Some(fill) = given(&fill).filter(|_| column >= extra) {
            part.push(fill.clone());
        }
        columns.push(Value::from(part));
        at = end;
    }
    Ok(Generator::of(columns))
}

pub fn map(state: &State, args: &Arguments) -> Result<Value, Error> {
    let Some((value, rest)) = args.positional.split_first() else {
        return Err(invalid("map lacks 'value'"));
    };
    let mut mapped = Vec::new();
    if !value.is_true() {
        return Ok(Generator::of(mapped));
    }
    let named = |name: &str| args.named.iter().find(|(known, _)| known == name);
    if let (Some((_, attribute)), []) = (named("attribute"), rest) {
        if let Some((name, _)) =
            args.named.iter().find(|(name, _)| name != "attribute" && name != "default")
        {
            return Err(invalid(format!("Unexpected keyword argument '{name}'")));
        }
        let path = path(&Some(attribute.clone()));
        let default = named("default").map(|(_, value)| value.clone()).filter(|v| !v.is_none());
        for one in items(value)? {
            mapped.push(reach(state, &one, &path, default.as_ref())?);
        }
        return Ok(Generator::of(mapped));
    }
    let Some((name, rest)) = rest.split_first() else {
        return Err(invalid("map requires a filter argument"));
    };
    for one in items(value)? {
        let mut all = vec![one];
        all.extend(rest.iter().cloned());
        if !args.named.is_empty() {
            all.push(args.named_value());
        }
        mapped.push(state.apply_filter(string(name)?, &all)?);
    }
    Ok(Generator::of(mapped))
}

fn choose(state: &State, args: &Arguments, of: bool, keeps: bool) -> Result<Value, Error> {
    let Some((value, mut rest)) = args.positional.split_first() else {
        return Err(invalid(format!("{} lacks 'value'", args.what)));
    };
    let mut kept = Vec::new();
    if !value.is_true() {
        return Ok(Generator::of(kept));
    }
    let mut found_at = Vec::new();
    if of {
        let Some((attribute, tail)) = rest.split_first() else {
            return Err(invalid("Missing parameter for attribute name"));
        };
        found_at = path(&Some(attribute.clone()));
        rest = tail;
    }
    for one in items(value)? {
        let asked = reach(state, &one, &found_at, None)?;
        let holds = match rest.split_first() {
            None => asked.is_true(),
            Some((name, tail)) => {
                let mut all = tail.to_vec();
                if !args.named.is_empty() {
                    all.push(args.named_value());
                }
                test(string(name)?, &asked, &all)?.is_true()
            }
        };
        if holds == keeps {
            kept.push(one);
        }
    }
    Ok(Generator::of(kept))
}

pub fn select(state: &State, args: &Arguments) -> Result<Value, Error> {
    choose(state, args, false, true)
}

pub fn reject(state: &State, args: &Arguments) -> Result<Value, Error> {
    choose(state, args, false, false)
}

pub fn selectattr(state: &State, args: &Arguments) -> Result<Value, Error> {
    choose(state, args, true, true)
}

pub fn rejectattr(state: &State, args: &Arguments) -> Result<Value, Error> {
    choose(state, args, true, false)
}
