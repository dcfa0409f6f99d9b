//! How long a tokenizer takes to build and to encode: `tokenizer_speed MODEL.gguf TEXT [MEGABYTES]`.
//! The text is repeated until it has that many megabytes (default 1).

use std::time::{Duration, Instant};

use zinc_gguf::Gguf;
use zinc_text::{Tokenizer, TokenizerSpec};

fn main() {
    let mut args = std::env::args().skip(1);
    let (Some(model), Some(text)) = (args.next(), args.next()) else {
        eprintln!("usage: tokenizer_speed MODEL.gguf TEXT [MEGABYTES]");
        std::process::exit(2);
    };
    let size = args.next().and_then(|size| size.parse().ok()).unwrap_or(1.0) * 1e6;
    let text = std::fs::read_to_string(text).expect("the text is a UTF-8 file");
    assert!(!text.is_empty(), "the text is empty");
    let text = text.repeat((size / text.len() as f64).ceil() as usize);

    let (gguf, open) = timed(|| Gguf::open(&model).expect("the model opens"));
    let (spec, read) = timed(|| TokenizerSpec::from_metadata(gguf.metadata()).expect("a vocabulary"));
    let (tokenizer, build) = timed(|| Tokenizer::new(&spec).expect("a tokenizer"));
    let (first, encode_first) = timed(|| tokenizer.encode("Hello, world!", true, true).expect("ids"));
    let (ids, encode) = timed(|| tokenizer.encode(&text, true, true).expect("ids"));
    let (back, decode) = timed(|| tokenizer.decode(&ids, true).expect("text"));
    println!("{} tokens, {} merges", spec.tokens.len(), spec.merges.len());
    println!("open the file          {open:>10.1?}");
    println!("read the metadata      {read:>10.1?}");
    println!("build the tokenizer    {build:>10.1?}");
    println!("encode {:>2} tokens       {encode_first:>10.1?}", first.len());
    println!("encode {:.2} MB         {encode:>10.1?} ({} tokens)", text.len() as f64 / 1e6, ids.len());
    println!("decode them            {decode:>10.1?} ({} bytes)", back.len());
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}
