//! Whatever a file or a user says, there is a result or an error, never a panic.

use proptest::prelude::*;
use zinc_text::{ChatTemplate, CivilTime, StreamDecoder, TemplateInput, TextStart, Tokenizer, TokenizerSpec};

/// Bits of templates; any order of them.
fn template() -> impl Strategy<Value = String> {
    let bits = prop::sample::select(vec![
        "{{",
        "}}",
        "{%",
        "%}",
        "{%-",
        "-%}",
        "{#",
        "#}",
        " for m in messages ",
        " endfor ",
        " if ",
        " else ",
        " endif ",
        " set x = ",
        "m.content",
        "messages",
        "x",
        "[0]",
        "[-1:]",
        "['role']",
        " + ",
        " ~ ",
        " | tojson",
        "(indent=2)",
        " | int",
        " | round(99)",
        ".split('a')",
        ".rsplit(None, 1)",
        ".center(9)",
        ".zfill(-1)",
        " 'é' ",
        " 1 ",
        " -9.5e300 ",
        "\n",
        " generation ",
        " endgeneration ",
        "strftime_now('%Q%-', )",
        "strftime_now('%-d %')",
        "raise_exception(",
        ")",
        "(",
        " is sequence",
        " macro f(a) ",
        " endmacro ",
        "{",
        "}",
        "range(",
        "namespace(",
        "dict(",
        "loop.index",
        " break ",
    ]);
    prop::collection::vec(bits, 0..12).prop_map(|bits| bits.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn templates(source in template(), expression in template()) {
        let messages = serde_json::json!([{"role": "user", "content": "aéb"}]);
        let input = TemplateInput { messages, ..TemplateInput::default() };
        for source in [source, format!("{{{{ {expression} }}}}")] {
            if let Ok(template) = ChatTemplate::new(&source) {
                let _ = template.render(&input);
            }
        }
    }

    #[test]
    fn times(seconds in any::<i64>(), format in "[%a-zA-Z -é]{0,12}") {
        let _ = CivilTime::from_unix_seconds(seconds).strftime(&format);
    }

    #[test]
    fn vocabularies(
        model in prop::sample::select(vec!["llama", "gpt2", "gemma4"]),
        pre in prop::sample::select(vec!["default", "llama-bpe", "qwen2", "tekken"]),
        tokens in prop::collection::vec("[abéĠ\u{2581}<>s/ ]{0,4}|<0x[0-9A-F]{2}>|<\\|im_end\\|>|</s>", 1..20),
        kinds in prop::collection::vec(-1..8i32, 20),
        scores in prop::collection::vec(any::<f32>(), 20),
        merges in prop::collection::vec("[abĠ\u{2581}]{1,2} [abĠ\u{2581}]{1,2}", 0..10),
        ids in prop::collection::vec(prop::option::of(0..20u32), 3),
        texts in prop::collection::vec("[ab é\n</s|>]{0,12}", 3),
        flags in prop::collection::vec(prop::option::of(any::<bool>()), 3),
    ) {
        let spec = TokenizerSpec {
            model,
            pre: Some(pre),
            tokens: tokens.iter().map(String::as_str).collect(),
            kinds,
            scores,
            merges: merges.iter().map(String::as_str).collect(),
            bos: ids[0],
            eos: ids[1],
            unk: ids[2],
            add_bos: flags[0],
            add_eos: flags[1],
            add_space_prefix: flags[2],
            general_name: Some("phi-3"),
            ..TokenizerSpec::default()
        };
        let Ok(tokenizer) = Tokenizer::new(&spec) else { return Ok(()) };
        let mut stream = StreamDecoder::new(&tokenizer, TextStart::Beginning, true);
        for text in &texts {
            for parse in [false, true] {
                for id in tokenizer.encode(text, true, parse).unwrap_or_default() {
                    prop_assert!((id as usize) < tokenizer.vocab_size());
                    prop_assert!(stream.push(id).is_ok());
                }
            }
            let _ = tokenizer.encode_prompt(text);
        }
        prop_assert!(stream.push(tokenizer.vocab_size() as u32).is_err());
    }
}
