//! Token ids against llama.cpp's, for six vocabularies and two models.

mod fixtures;

use serde_json::Value;
use zinc_text::{Tokenizer, clean_up_spaces};

const VOCABULARIES: [&str; 6] = ["llama-spm", "phi-3", "llama-bpe", "qwen2", "gpt-2", "gemma-4"];

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
