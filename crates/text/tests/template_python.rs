//! Small templates against Python's jinja2, and what chat templates must refuse.

mod fixtures;

use serde_json::{Value, json};
use zinc_text::{ChatTemplate, CivilTime, TemplateError, TemplateInput};

#[test]
fn small_templates_are_rendered_as_in_python() {
    let file = fixtures::root().join("tests/data/chat/jinja2.json");
    let json: Value = serde_json::from_slice(&std::fs::read(file).expect("a file")).expect("JSON");
    let context = json["context"].as_object().expect("the variables");
    let cases = json["cases"].as_array().expect("a list of cases");
    assert!(cases.len() > 130, "{} cases", cases.len());
    // 2025-07-26 12:34:56
    let now = CivilTime::from_unix_seconds(1_753_533_296);
    for case in cases {
        let source = case["template"].as_str().expect("a template");
        let found = ChatTemplate::new(source).and_then(|t| t.render_context(context, now));
        match case["expected"].as_str() {
            Some(expected) => assert_eq!(found.as_deref().ok(), Some(expected), "{source}: {found:?}"),
            None => assert!(found.is_err(), "{source} must fail: {}, not {found:?}", case["fails"]),
        }
    }
}

fn render(source: &str) -> Result<String, TemplateError> {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let input = TemplateInput { messages, bos_token: "<s>", ..TemplateInput::default() };
    ChatTemplate::new(source)?.render(&input)
}

#[test]
fn variables_are_named_as_in_transformers() {
    let source = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}|{{ tools is none }}\
                  {{ documents is none }}{{ add_generation_prompt }}{{ strftime_now('%Y') }}";
    assert_eq!(render(source).unwrap(), "<s>Hi|TrueTrueFalse1970");
    let mut input = TemplateInput::default();
    input.extra.insert("enable_thinking".into(), json!(false));
    input.tools = Some(json!([{"b": 1, "a": 2}]));
    let template = ChatTemplate::new("{{ enable_thinking }} {{ tools | tojson }}").unwrap();
    assert_eq!(template.render(&input).unwrap(), r#"False [{"b": 1, "a": 2}]"#);
}

#[test]
fn builtin_templates_are_asked_for_by_name() {
    let messages = json!([{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}]);
    let input = TemplateInput { messages, add_generation_prompt: true, ..TemplateInput::default() };
    let text = ChatTemplate::builtin("chatml").unwrap().render(&input).unwrap();
    let expected = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n\
                    <|im_start|>assistant\n";
    assert_eq!(text, expected);
    let input = TemplateInput { bos_token: "<bos>", ..input };
    let text = ChatTemplate::builtin("gemma").unwrap().render(&input).unwrap();
    let expected = "<bos><start_of_turn>user\nS\n\nHi<end_of_turn>\n<start_of_turn>model\n";
    assert_eq!(text, expected);
    let error = ChatTemplate::builtin("nope").unwrap_err().to_string();
    assert!(error.contains("nope") && error.contains("chatml"), "{error}");
}

#[test]
fn the_tags_for_training_do_nothing() {
    let source = "a\n{%- generation -%}\n b\n{% endgeneration %}\nc {% set generation = 1 %}{{ generation }}";
    assert_eq!(render(source).unwrap(), "ab\nc 1");
}

#[test]
fn errors_say_where_and_what() {
    match render("ok\n{% if %}") {
        Err(TemplateError::Syntax { line: Some(2), .. }) => {}
        other => panic!("{other:?}"),
    }
    match render("a\nb\n{{ messages[0].content.frobnicate() }}") {
        Err(TemplateError::Failed { line: Some(3), message }) => {
            assert!(message.contains("frobnicate"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    match render("{% macro m() %}{{ raise_exception('no ' ~ 1) }}{% endmacro %}{{ m() }}") {
        Err(TemplateError::Raised(message)) => assert_eq!(message, "no 1"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn hostile_templates_end() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% set c = a %}{% endfor %}\
                   {% endfor %}";
    let deep = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
    let wide = "{{ 'a'.center(99999999999) }}";
    let doubling = "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}\
                    {% endfor %}{{ n.x }}";
    let nested = format!("{{{{ {}1{} }}}}", "[".repeat(5000), "]".repeat(5000));
    for source in [endless, deep, wide, doubling, &nested] {
        let start = &source[..20];
        assert!(render(source).is_err(), "{start} must fail");
    }
}
