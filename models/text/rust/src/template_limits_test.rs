//! Templates that have no end, or build more than fits in memory, are refused; long ones are not.

use crate::template::ChatTemplate;

fn render_text(source: &str) -> Result<String, String> {
    let messages = r#"[{"role": "user", "content": "hi"}]"#;
    ChatTemplate::open(source, "{}", "")?.render(messages, "{}", false).map(|done| done.text)
}

fn refusal(source: &str) -> String {
    match render_text(source) {
        Ok(text) => panic!("{source} is rendered, {} bytes", text.len()),
        Err(error) => error,
    }
}

#[test]
fn loops_without_an_end_run_out_of_steps() {
    let counted = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    assert!(refusal(counted).contains("more than 10000000 steps"));
    let printing =
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}";
    assert!(refusal(printing).contains("steps"));
}

#[test]
fn what_grows_without_an_end_is_refused_before_it_is_made() {
    let long = "{% set s = 'a' * 9999999 %}";
    let cases = [
        (
            "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}\
          {% endfor %}",
            "MiB of text and lists",
        ),
        (
            "{% set n = namespace(l=[1]) %}{% for i in range(99) %}{% set n.l = n.l + n.l %}\
          {% endfor %}",
            "MiB of text and lists",
        ),
        (
            "{% set n = namespace(l=['b' * 999]) %}{% for i in range(15) %}\
          {% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}",
            "a text of more than 16 MiB",
        ),
        (
            "{% set n = namespace(l=['b' * 999]) %}{% for i in range(15) %}\
          {% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l|tojson }}",
            "a text of more than 16 MiB",
        ),
        (
            "{% set n = namespace(l=[1] * 999, m=[1] * 999) %}{% for i in range(10) %}\
          {% set n.l = [n.l, n.l] %}{% set n.m = [n.m, n.m] %}{% endfor %}{{ n.l == n.m }}",
            "compares lists",
        ),
        (
            "{% set n = namespace(l=[]) %}{% for i in range(99) %}{% set n.l = [n.l, n.l] %}\
          {% endfor %}",
            "MiB of text and lists",
        ),
        ("{{ s|replace('a', 'aaaaaaaaaa') }}", "a text of more than 64 MiB"),
        ("{{ s.join(['b'] * 99) }}", "a text of more than 64 MiB"),
        (
            "{{ ['b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j']|join(s) }}",
            "a text of more than 64 MiB",
        ),
        ("{{ '{0}{0}{0}{0}{0}{0}{0}'.format(s) }}", "a text of more than 64 MiB"),
        ("{{ '%s%s%s%s%s%s%s' % (s, s, s, s, s, s, s) }}", "a text of more than 64 MiB"),
        ("{{ ('\\n' * 9999)|indent(9999, true, true) }}", "a text of more than 64 MiB"),
        ("{% for i in range(99) %}{{ s }}{% endfor %}", "MiB of text and lists"),
        ("{% set t %}{% for i in range(99) %}{{ s }}{% endfor %}{% endset %}", "MiB of text"),
        ("{% for i in range(99999) %}{% set t = s|list %}{% endfor %}", "MiB of text and lists"),
        (
            "{% for i in range(99999) %}{% if i in range(99999)|list %}{% endif %}{% endfor %}",
            "MiB",
        ),
    ];
    for (source, reason) in cases {
        let told = refusal(&format!("{long}{source}"));
        assert!(told.contains(reason), "{source}: {told}");
    }

    // The text of a template itself, as often as a loop writes it.
    let text = "words ".repeat(100);
    let thrice = [&text[..]; 3].concat();
    let source = format!("{{% for i in range(9999) %}}{thrice}{{{{ i }}}}{text}{{% endfor %}}");
    assert_eq!(render_text(&source).map(|text| text.len() > 20_000_000), Ok(true));
    let source = format!(
        "{{% for i in range(99) %}}{{% for j in range(9999) %}}{text}{{% endfor %}}{{% endfor %}}"
    );
    assert!(refusal(&source).contains("MiB of text and lists"));
}

#[test]
fn what_holds_another_without_an_end_is_refused() {
    // Each of them would overflow the stack when it is freed.
    let deeper = [
        "[n.l]",
        "(n.l,)",
        "{'a': n.l}",
        "dict(a=n.l)",
        "{'a': n.l}.items()",
        "n.l | batch(1) | list",
        "[n.l] + []",
        "[n.l] | map('list')",
        "namespace(a=n.l)",
        "cycler(n.l)",
        "joiner(n.l)",
        "[n.l].index",
    ];
    for value in deeper {
        let source = format!(
            "{{% set n = namespace(l=[1]) %}}{{% for i in range(99999) %}}\
             {{% set n.l = {value} %}}{{% endfor %}}done"
        );
        let told = refusal(&source);
        assert!(told.contains("into each other, more than 200 deep"), "{value}: {told}");
    }
    let plain = format!("{{% set l = [1] %}}{}", "{% set l = [l] %}".repeat(2000));
    assert!(refusal(&plain).contains("more than 200 deep"));

    let macros = "{% set n = namespace(m=1) %}{% for i in range(99999) %}{% set before = n.m %}\
        {% macro m() %}{{ before }}{% endmacro %}{% set n.m = m %}{% endfor %}";
    assert!(refusal(macros).contains("more than 200 macros"), "{}", refusal(macros));

    let source = "{% set n = namespace(l=[1]) %}{% for i in range(150) %}{% set n.l = [n.l] %}\
        {% endfor %}{{ n.l|tojson|length }}";
    assert_eq!(render_text(source), Ok("303".into()));
}

#[test]
fn long_conversations_are_far_from_the_limits() {
    let source = "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' }}\
        {% if m.content is string and '</think>' in m.content %}\
        {{ m.content.split('</think>')[-1].lstrip('\\n') }}{% else %}\
        {{ m.content | trim }}{% endif %}\
        {% if loop.index0 < messages|length - 1 and messages[loop.index0 + 1].role == 'user' %}\
        {{ (messages | selectattr('role', 'equalto', 'user') | list)[0].role }}{% endif %}\
        {{ '<|end|>' }}{% endfor %}";
    let text = "words and more ".repeat(40);
    let turns: Vec<String> = (0..1000)
        .map(|i| {
            let role = if i % 2 == 0 { "user" } else { "assistant" };
            format!(r#"{{"role": "{role}", "content": "<think>so</think>\n{text}"}}"#)
        })
        .collect();
    let messages = format!("[{}]", turns.join(","));
    let chat = ChatTemplate::open(source, "{}", "").unwrap();
    let text = chat.render(&messages, "{}", false).unwrap().text;
    assert!(text.len() > 600_000, "{}", text.len());
}
