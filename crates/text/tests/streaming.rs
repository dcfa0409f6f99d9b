//! Text that comes token by token is the text that comes at once.

mod fixtures;

use std::sync::OnceLock;

use proptest::prelude::*;
use zinc_text::{StopMatcher, StreamDecoder, TextStart, Tokenizer, TokenizerSpec};

/// A vocabulary of the byte tokens and a few words.
fn sentence_piece() -> Tokenizer {
    let bytes: Vec<String> = (0..=255u8).map(|byte| format!("<0x{byte:02X}>")).collect();
    let mut tokens = vec!["<unk>", "<s>", "</s>"];
    tokens.extend(bytes.iter().map(String::as_str));
    tokens.extend(["\u{2581}", "a", "\u{2581}a", "\u{e9}", "\u{1f600}", "\u{2581}\u{2581}"]);
    let mut kinds = vec![2, 3, 3];
    kinds.extend([6; 256]);
    kinds.extend([1; 6]);
    let scores = (0..tokens.len()).map(|id| -(id as f32)).collect();
    let spec = TokenizerSpec { model: "llama", tokens, kinds, scores, ..TokenizerSpec::default() };
    Tokenizer::new(&spec).expect("a tokenizer")
}

/// The vocabularies to test with: the one above, and the real ones where they are.
fn tokenizers() -> &'static [Tokenizer] {
    static ALL: OnceLock<Vec<Tokenizer>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut all = vec![sentence_piece()];
        if let Some(folder) = fixtures::shared("tokenizer") {
            for name in ["llama-spm", "llama-bpe", "gemma-4"] {
                let file = folder.join(format!("ggml-vocab-{name}.gguf"));
                all.push(fixtures::tokenizer(&file));
            }
        }
        if let Some(file) = fixtures::model("SmolLM2-135M-Instruct.Q4_1.gguf") {
            all.push(fixtures::tokenizer(&file));
        }
        all
    })
}

/// The stop string that is whole first, by trying every end of the text.
fn first_stop(text: &str, stops: &[String]) -> Option<(usize, usize)> {
    let ends = (0..=text.len()).filter(|&end| text.is_char_boundary(end));
    ends.filter_map(|end| {
        let whole = (0..stops.len()).filter(|&n| text[..end].ends_with(&stops[n]));
        whole.map(|n| (end - stops[n].len(), n)).min()
    })
    .next()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn pieces_make_the_whole_text(
        picks in proptest::collection::vec((any::<u32>(), any::<bool>()), 0..60),
        which in any::<prop::sample::Index>(),
        show_special in any::<bool>(),
    ) {
        let tokenizer = which.get(tokenizers());
        let size = tokenizer.vocab_size() as u32;
        // Half of the ids from the front, where the bytes are: broken characters must be frequent.
        let ids: Vec<u32> =
            picks.iter().map(|&(id, low)| id % if low { size.min(259) } else { size }).collect();
        let mut stream = StreamDecoder::new(tokenizer, TextStart::Beginning, show_special);
        let mut text = String::new();
        for &id in &ids {
            text.push_str(&stream.push(id).expect("text"));
        }
        text.push_str(&stream.finish());
        prop_assert_eq!(text, tokenizer.decode(&ids, show_special).expect("text"));
    }

    #[test]
    fn a_text_survives_its_ids(
        text in "[ a-cé\u{1f600}\n\t<s>|'0-9A-Z\u{3000}\u{4e00}-\u{4e0f}\u{300}]{0,40}",
        which in any::<prop::sample::Index>(),
    ) {
        let tokenizer = which.get(tokenizers());
        let ids = tokenizer.encode(&text, false, false).expect("ids");
        prop_assert_eq!(tokenizer.decode(&ids, false).expect("text"), text);
    }

    #[test]
    fn stop_strings_are_found_however_the_text_is_cut(
        text in "[abé]{0,30}",
        stops in proptest::collection::vec("[abé]{1,5}", 0..4),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..10),
    ) {
        let boundaries: Vec<usize> =
            (0..=text.len()).filter(|&at| text.is_char_boundary(at)).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| *cut.get(&boundaries)).collect();
        cuts.push(text.len());
        cuts.sort_unstable();

        let mut matcher = StopMatcher::new(stops.clone()).expect("a matcher");
        let (mut shown, mut found, mut from) = (String::new(), None, 0);
        for cut in cuts {
            let stopped = matcher.push(&text[from..cut]);
            shown.push_str(&stopped.text);
            found = found.or(stopped.stop);
            from = cut;
        }
        shown.push_str(&matcher.finish());

        match first_stop(&text, &stops) {
            Some((start, stop)) => {
                prop_assert_eq!(&shown, &text[..start]);
                // Equal stop strings: either number is right.
                prop_assert_eq!(found.map(|n| &stops[n]), Some(&stops[stop]));
            }
            None => {
                prop_assert_eq!(shown, text);
                prop_assert_eq!(found, None);
            }
        }
    }

    #[test]
    fn nothing_is_held_back_without_need(text in "[ab]{0,20}", stop in "[ab]{1,5}") {
        let mut matcher = StopMatcher::new(vec![stop.clone()]).expect("a matcher");
        let mut held = String::new();
        for c in text.chars() {
            held.push(c);
            let stopped = matcher.push(&c.to_string());
            if stopped.stop.is_some() {
                return Ok(());
            }
            held.drain(..stopped.text.len());
            prop_assert!(stop.starts_with(&held), "{held:?} was held back for {stop:?}");
        }
    }
}

#[test]
fn half_a_character_is_held_back() {
    let tokenizer = sentence_piece();
    let byte = |byte: u8| 3 + u32::from(byte);
    let mut stream = StreamDecoder::new(&tokenizer, TextStart::Beginning, false);
    let bytes = "\u{1f600}".as_bytes();
    for &first in &bytes[..3] {
        assert_eq!(stream.push(byte(first)).unwrap(), "");
    }
    assert_eq!(stream.push(byte(bytes[3])).unwrap(), "\u{1f600}");
    assert_eq!(stream.push(byte(bytes[0])).unwrap(), "");
    assert_eq!(stream.push(byte(b'a')).unwrap(), "\u{fffd}a", "an end that never came");
    assert_eq!(stream.push(byte(bytes[0])).unwrap(), "");
    assert_eq!(stream.finish(), "\u{fffd}");
    assert_eq!(stream.finish(), "");
    assert!(stream.push(u32::MAX).is_err());
}

#[test]
fn the_first_space_goes_only_at_the_beginning() {
    let tokenizer = sentence_piece();
    let ids = tokenizer.encode("a a", true, false).unwrap();
    let text = |start, show| {
        let mut stream = StreamDecoder::new(&tokenizer, start, show);
        ids.iter().map(|&id| stream.push(id).unwrap()).collect::<String>()
    };
    assert_eq!(text(TextStart::Beginning, false), "a a");
    assert_eq!(text(TextStart::Continuation, false), " a a");
    assert_eq!(text(TextStart::Beginning, true), "<s> a a", "the space belongs to the text");
}

#[test]
fn an_empty_stop_string_is_refused() {
    let error = StopMatcher::new(vec!["a".into(), String::new()]).unwrap_err();
    assert_eq!(error.0, 1);
}
