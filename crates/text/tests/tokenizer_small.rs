//! Tokenizers with vocabularies small enough to work out the ids by hand.

mod fixtures;

use zinc_gguf::Metadata;
use zinc_text::{ChatTemplate, StopMatcher, Tokenizer, TokenizerError, TokenizerSpec};

/// A SentencePiece vocabulary of words with scores; the bytes come last.
fn sentence_piece(general_name: &str) -> Tokenizer {
    let words = [
        ("<unk>", 2, 0.0),
        ("<s>", 3, 0.0),
        ("</s>", 3, 0.0),
        ("\u{2581}", 1, -9.0),
        ("a", 1, -5.0),
        ("b", 1, -5.0),
        ("ab", 1, -2.0),
        ("ba", 1, -1.0),
        ("\u{2581}a", 1, -3.0),
        ("aba", 1, -4.0),
        ("<tool>", 4, 0.0),
        ("<|user|>", 3, 0.0),
    ];
    let bytes: Vec<String> = (0..=255u8).map(|byte| format!("<0x{byte:02X}>")).collect();
    let mut spec = TokenizerSpec { model: "llama", ..TokenizerSpec::default() };
    for (text, kind, score) in words {
        spec.tokens.push(text);
        spec.kinds.push(kind);
        spec.scores.push(score);
    }
    spec.tokens.extend(bytes.iter().map(String::as_str));
    spec.kinds.extend([6; 256]);
    spec.scores.extend([0.0; 256]);
    spec.general_name = Some(general_name);
    Tokenizer::new(&spec).expect("a tokenizer")
}

/// A byte-level vocabulary of "a", "b", "c", the space and what merges make of them.
fn byte_level(pre: &str) -> Result<Tokenizer, TokenizerError> {
    let tokens = vec!["a", "b", "c", "Ġ", "ab", "bc", "Ġa", "abc", "<|im_end|>", "<think>"];
    let spec = TokenizerSpec {
        model: "gpt2",
        pre: Some(pre),
        tokens,
        kinds: vec![1, 1, 1, 1, 1, 1, 1, 1, 3, 4],
        merges: vec!["b c", "a b", "Ġ a"],
        ..TokenizerSpec::default()
    };
    Tokenizer::new(&spec)
}

#[test]
fn sentence_piece_merges_the_best_score_first() {
    let tokenizer = sentence_piece("x");
    let ids = |text: &str| tokenizer.encode(text, false, false).unwrap();
    assert_eq!(ids("aba"), [8, 7], "▁ a b a: ba is best, then ▁a");
    assert_eq!(ids("bab"), [3, 7, 5]);
    assert_eq!(ids("é"), [3, 12 + 0xc3, 12 + 0xa9], "bytes for what is no token");
    assert_eq!(ids(""), [0u32; 0]);
    assert_eq!(tokenizer.encode("", true, false).unwrap(), [1], "BOS by default");
    assert_eq!(tokenizer.decode(&ids("aba ab"), false).unwrap(), "aba ab");
}

#[test]
fn control_tokens_are_found_only_where_asked() {
    let tokenizer = sentence_piece("x");
    let ids = |parse| tokenizer.encode("a<tool>b<|user|> a", false, parse).unwrap();
    let parsed = ids(true);
    assert_eq!(parsed, [8, 10, 3, 5, 11, 3, 8], "a space goes before text after a token");
    let plain = ids(false);
    assert_eq!(plain[..4], [8, 10, 3, 5]);
    assert!(!plain.contains(&11));
    assert_eq!(tokenizer.decode(&parsed, true).unwrap(), "a<tool> b<|user|>  a");
    assert_eq!(tokenizer.decode(&parsed, false).unwrap(), "a<tool> b  a");
}

#[test]
fn a_prompt_begins_with_bos_once() {
    let tokenizer = sentence_piece("x");
    let expected = tokenizer.encode("<|user|>a", true, true).unwrap();
    assert_eq!(expected[..2], [1, 11]);
    assert_eq!(tokenizer.encode_prompt("<|user|>a").unwrap(), expected);
    assert_eq!(tokenizer.encode_prompt("<s><|user|>a").unwrap(), expected);
    assert_eq!(tokenizer.encode_prompt("").unwrap(), [1]);
}

#[test]
fn special_tokens_of_phi_3_swallow_white_space() {
    let ids = |name| sentence_piece(name).encode("<|user|> \n a<s> a", false, true).unwrap();
    assert_eq!(ids("Phi-3 mini"), [11, 8, 1, 3, 8]);
    assert_ne!(ids("Other"), ids("Phi-3 mini"));
}

#[test]
fn byte_level_merges_by_rank() {
    let tokenizer = byte_level("gpt-2").unwrap();
    let ids = |text: &str| tokenizer.encode(text, true, false).unwrap();
    assert_eq!(ids("abc"), [0, 5], "bc ranks before ab, and no merge makes abc");
    assert_eq!(ids("ab ab  a"), [4, 3, 4, 3, 6], "ab ranks before Ġa");
    assert_eq!(ids("a<think>a"), [0, 9, 0]);
    assert_eq!(tokenizer.encode("a<|im_end|>", true, true).unwrap(), [0, 8]);
    assert!(tokenizer.is_end_of_generation(8) && !tokenizer.is_end_of_generation(0));
    assert_eq!(tokenizer.eot(), Some(8));
    let ignoring = byte_level("glm4").unwrap();
    assert_eq!(ignoring.encode("abc", true, false).unwrap(), [7], "a whole word is one token");
}

#[test]
fn bytes_that_a_byte_level_vocabulary_lacks_are_left_out() {
    // As SmolLM2's: its unknown token is <|endoftext|>, which a control character in a text must not become.
    let with_unknown = TokenizerSpec {
        model: "gpt2",
        pre: Some("smollm"),
        tokens: vec!["<|endoftext|>", "a", "b", "ab"],
        kinds: vec![3, 1, 1, 1],
        merges: vec!["a b"],
        unk: Some(0),
        ..TokenizerSpec::default()
    };
    let with_unknown = Tokenizer::new(&with_unknown).unwrap();
    for parse in [false, true] {
        assert_eq!(with_unknown.encode("ab\u{4}ab\u{16}", false, parse).unwrap(), [3, 3]);
        assert_eq!(byte_level("gpt-2").unwrap().encode("ab\u{1}", false, parse).unwrap(), [4]);
    }
}

#[test]
fn ids_and_special_tokens_that_are_not_there_are_errors() {
    let tokenizer = byte_level("gpt-2").unwrap();
    let error = tokenizer.decode(&[0, 10], false).unwrap_err();
    assert!(matches!(error, TokenizerError::NoSuchId { id: 10, tokens: 10 }), "{error}");
    let error = byte_level("llama-bpe").unwrap().encode("a", true, false).unwrap_err();
    assert!(matches!(error, TokenizerError::NoSpecialToken("BOS")), "{error}");
}

#[test]
fn a_bad_vocabulary_is_named() {
    let message = |spec: &TokenizerSpec<'_>| Tokenizer::new(spec).unwrap_err().to_string();
    let good = TokenizerSpec { model: "llama", tokens: vec!["a", "b"], ..TokenizerSpec::default() };
    assert!(Tokenizer::new(&good).is_ok());
    let bad = |change: &dyn Fn(&mut TokenizerSpec<'_>)| {
        let mut spec = good.clone();
        change(&mut spec);
        message(&spec)
    };
    assert!(bad(&|spec| spec.model = "t5").contains("gemma4"), "lists what there is");
    assert!(bad(&|spec| spec.tokens.clear()).contains("tokenizer.ggml.tokens"));
    assert!(bad(&|spec| spec.scores = vec![0.0]).contains("tokenizer.ggml.scores"));
    assert!(bad(&|spec| spec.kinds = vec![1]).contains("tokenizer.ggml.token_type"));
    assert!(bad(&|spec| spec.eos = Some(2)).contains("tokenizer.ggml.eos_token_id"));
    let pre = byte_level("nope").unwrap_err().to_string();
    assert!(pre.contains("nope") && pre.contains("llama-bpe") && pre.contains("qwen2"), "{pre}");
    let merges = TokenizerSpec { model: "gpt2", merges: vec!["a b", "ab"], ..good.clone() };
    assert!(message(&merges).contains("entry 1"));
}

#[test]
fn metadata_says_what_is_missing() {
    let mut metadata = Metadata::new();
    let message = |metadata: &Metadata| Tokenizer::from_metadata(metadata).unwrap_err().to_string();
    assert!(message(&metadata).contains("tokenizer.ggml.tokens"));
    metadata.insert("tokenizer.ggml.tokens", vec!["<s>", "a"]);
    assert!(message(&metadata).contains("tokenizer.ggml.model"));
    metadata.insert("tokenizer.ggml.model", "gpt2");
    assert!(message(&metadata).contains("tokenizer.ggml.merges"));
    metadata.insert("tokenizer.ggml.merges", 7_u32);
    assert!(message(&metadata).contains("tokenizer.ggml.merges"));
    metadata.insert("tokenizer.ggml.merges", Vec::<&str>::new());
    metadata.insert("tokenizer.ggml.bos_token_id", -1_i32);
    metadata.insert("tokenizer.ggml.eos_token_id", 0_u32);
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (None, Some(0)), "-1 is none");
    assert_eq!(zinc_text::chat_template_source(&metadata).unwrap(), None);
    metadata.insert("tokenizer.chat_template", "{{ messages }}");
    assert_eq!(zinc_text::chat_template_source(&metadata).unwrap(), Some("{{ messages }}"));
}

#[test]
fn the_tiny_models_read_what_they_wrote() {
    let text = "The jargon file — 42 <s> cafés,\n\n\tand\u{a0}so on.  ";
    let mut count = 0;
    for entry in std::fs::read_dir(fixtures::root().join("tests/data/arch")).expect("a folder") {
        let path = entry.expect("an entry").path().join("model.gguf");
        if !path.is_file() {
            continue;
        }
        count += 1;
        let tokenizer = fixtures::tokenizer(&path);
        assert_eq!(tokenizer.vocab_size(), 512);
        let ids = tokenizer.encode(text, true, false).expect("ids");
        assert_eq!(tokenizer.adds_bos(), ids.first() == tokenizer.bos().as_ref());
        assert_eq!(tokenizer.decode(&ids, false).expect("text"), text, "{}", path.display());
        let eos = tokenizer.eos().expect("an EOS");
        assert!(tokenizer.is_end_of_generation(eos));
        let spelled = tokenizer.token_text(eos).expect("a text").to_owned();
        assert_eq!(tokenizer.encode(&spelled, false, true).expect("ids"), [eos]);
    }
    assert!(count >= 4, "{count} models");
}

#[test]
fn the_synthetic_vocabulary_is_bytes() {
    let tokenizer = Tokenizer::synthetic(1000).unwrap();
    let text = "né\0";
    let ids = tokenizer.encode(text, true, true).unwrap();
    assert_eq!(ids, text.bytes().map(u32::from).collect::<Vec<_>>());
    assert_eq!(tokenizer.decode(&[b'a'.into(), 256, 998, 999], false).unwrap(), "a<256><998>");
    assert!(tokenizer.is_end_of_generation(999));
    assert!(Tokenizer::synthetic(256).is_err());
}

#[test]
fn what_is_built_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Tokenizer>();
    shared::<ChatTemplate>();
    shared::<StopMatcher>();
}
