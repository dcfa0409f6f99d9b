//! Token ids against llama.cpp's, for six vocabularies and two models.

mod fixtures;

use serde_json::{Value, json};
use zinc_gguf::Gguf;
use zinc_text::{ChatTemplate, TemplateInput, Tokenizer, chat_template_source, clean_up_spaces};

const VOCABULARIES: [&str; 6] = ["llama-spm", "phi-3", "llama-bpe", "qwen2", "gpt-2", "gemma-4"];

/// No token has it.
const MARK: char = '\u{fdd0}';

fn ids(value: &Value) -> Vec<u32> {
    let ids = value.as_array().expect("a list of ids").iter();
    ids.map(|id| id.as_u64().expect("an id") as u32).collect()
}

#[test]
fn every_line_of_the_llama_cpp_tests() {
    let Some(folder) = fixtures::shared("tokenizer") else { return };
    for name in VOCABULARIES {
        let file = folder.join(format!("ggml-vocab-{name}.gguf"));
        let tokenizer = fixtures::tokenizer(&file);
        let read = |end| std::fs::read_to_string(file.with_extension(end)).expect("a text file");
        let (texts, lines) = (read("gguf.inp"), read("gguf.out"));
        let mut texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
        if texts.last() == Some(&"") {
            texts.pop();
        }
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(texts.len(), lines.len(), "{name}");
        assert!(texts.len() > 30, "{name}: {} texts", texts.len());
        for (text, line) in texts.iter().zip(lines) {
            let expected: Vec<u32> = line.split_whitespace().map(|id| id.parse().expect("an id")).collect();
            for parse in [false, true] {
                let ids = tokenizer.encode(text, false, parse).expect("ids");
                assert_eq!(ids, expected, "{name}, parse {parse}: {text:?}");
            }
        }
    }
}

/// The cases of `extra-*.json` and of the models' files.
fn check_cases(name: &str, tokenizer: &Tokenizer, cases: &Value) {
    let cases = cases.as_array().expect("a list of cases");
    assert!(cases.len() > 10, "{name}: {} cases", cases.len());
    for case in cases {
        let text = case["text"].as_str().expect("a text");
        for (add, parse) in [(false, false), (false, true), (true, false), (true, true)] {
            let key = format!("ids_add{}_parse{}", u8::from(add), u8::from(parse));
            let found = tokenizer.encode(text, add, parse).expect("ids");
            assert_eq!(found, ids(&case[&key]), "{name}, {}, {key}", case["name"]);
        }
        // Marked as plain text in a prompt where special tokens are parsed, it has the ids that it has without.
        let marked = tokenizer.mark_special(text, MARK);
        let parsed = case["ids_add0_parse0"] != case["ids_add0_parse1"];
        assert!(marked.is_some() || !parsed, "{name}, {}", case["name"]);
        let found = tokenizer.encode_marked_prompt(marked.as_deref().unwrap_or(text), MARK).expect("ids");
        let expected = ids(&case["ids_add0_parse0"]);
        let bos = tokenizer.bos().filter(|bos| tokenizer.adds_bos() && expected.first() != Some(bos));
        let expected: Vec<u32> = bos.into_iter().chain(expected).collect();
        assert_eq!(found, expected, "{name}, {}, marked", case["name"]);
        let mut decoded = tokenizer.decode(&ids(&case["ids_add0_parse0"]), true).expect("text");
        if tokenizer.cleans_up_spaces() {
            decoded = clean_up_spaces(&decoded);
        }
        let expected = &case["detokenized_add0_parse0_special_shown"];
        assert_eq!(Some(decoded.as_str()), expected.as_str(), "{name}, {}", case["name"]);
    }
}

#[test]
fn special_tokens_and_detokenization() {
    let Some(folder) = fixtures::shared("tokenizer") else { return };
    for name in VOCABULARIES {
        let tokenizer = fixtures::tokenizer(&folder.join(format!("ggml-vocab-{name}.gguf")));
        let extra = std::fs::read(folder.join(format!("extra-{name}.json"))).expect("a file");
        let extra: Value = serde_json::from_slice(&extra).expect("JSON");
        assert_eq!(Some(tokenizer.vocab_size() as u64), extra["n_tokens"].as_u64());
        check_cases(name, &tokenizer, &extra["cases"]);
    }
}

#[test]
fn the_real_models() {
    let Some(folder) = fixtures::shared("real") else { return };
    for name in ["smollm2-135m-instruct-q4_1", "gemma-3-270m-q4_k_m"] {
        let json = std::fs::read(folder.join(name).with_extension("json")).expect("a file");
        let json: Value = serde_json::from_slice(&json).expect("JSON");
        let file = json["model_file"].as_str().expect("the model's file name");
        let Some(path) = fixtures::model(file) else { continue };
        let tokenizer = fixtures::tokenizer(&path);
        check_cases(name, &tokenizer, &json["tokenization"]);
    }
}

/// Texts of the tokens that end generation.
fn ends(tokenizer: &Tokenizer) -> Vec<&str> {
    tokenizer.end_of_generation_ids().filter_map(|id| tokenizer.token_text(id)).collect()
}

#[test]
fn what_ends_generation() {
    let Some(folder) = fixtures::shared("tokenizer") else { return };
    let expected: [(&str, &[&str]); 4] = [
        ("llama-spm", &["</s>"]),
        ("gpt-2", &["<|endoftext|>"]),
        ("llama-bpe", &["<|end_of_text|>", "<|eot_id|>"]),
        // Here "</s>" is a token of text.
        ("gemma-4", &["<eos>", "<|tool_response>", "<turn|>"]),
    ];
    for (name, texts) in expected {
        let tokenizer = fixtures::tokenizer(&folder.join(format!("ggml-vocab-{name}.gguf")));
        assert_eq!(ends(&tokenizer), texts, "{name}");
    }
}

#[test]
fn smollm2_from_messages_to_ids() {
    let Some(path) = fixtures::model("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let gguf = Gguf::open(&path).expect("a model");
    let source = chat_template_source(gguf.metadata()).expect("a string").expect("a template");
    let messages = json!([
        {"role": "user", "content": "What is 2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": " And 3+3? "}
    ]);
    let input = TemplateInput { messages, add_generation_prompt: true, ..TemplateInput::default() };
    let prompt = ChatTemplate::new(source).expect("a template").render(&input).expect("a prompt");
    // What Python's jinja2 makes of the same template.
    let expected = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
                    <|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n\
                    <|im_start|>user\n And 3+3? <|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(prompt, expected);
    let tokenizer = Tokenizer::from_metadata(gguf.metadata()).expect("a tokenizer");
    assert_eq!(ends(&tokenizer), ["<|endoftext|>", "<|im_end|>", "<reponame>"]);
    let ids = tokenizer.encode_prompt(&prompt).expect("ids");
    assert_eq!(tokenizer.decode(&ids, true).expect("text"), prompt);
    let (start, end) = (tokenizer.token_by_text("<|im_start|>"), tokenizer.token_by_text("<|im_end|>"));
    let count = |token| ids.iter().filter(|&&id| Some(id) == token).count();
    assert_eq!((count(start), count(end)), (5, 4));
}
