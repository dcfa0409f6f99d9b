//! OpenAI's `/v1/completions`.

use super::logprobs::Lists;
use super::prompts::{self, Prompt};
use super::{Reply, aside, parameters, rule};
use crate::answer::{Answer, Delta};
use crate::app::App;
use crate::bodies::receive;
use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::generation::{Generation, Reason, Usage};
use crate::grammar::Grammar;
use crate::guard::Visit;
use crate::model::{Model, unix_seconds};
use crate::reasoning::Guide;
use crate::sse::{self, ChunkWriter, Wire, event};
use axum::extract::{Request, State};
use parameters::Streaming;
use serde_json::{Value, json};
use std::sync::Arc;
use zinc_text::TextStart;

/// Tokens of an answer where none are asked for: OpenAI's own limit.
const USUAL: u32 = 16;

/// The parameter that prompts come in.
const PROMPT: &str = "prompt";

/// Most prompts of a request.
const PROMPTS: usize = 256;

/// A request, read.
struct Asked {
    /// Under which name the model was asked for.
    name: String,
    streaming: Streaming,
    prompts: Vec<Prompt>,
    echo: bool,
    grammar: Option<(Grammar, &'static str)>,
    /// All but its prompts and its rule.
    generation: Generation,
}

/// What all parts of a response say, and how far each choice's text has come.
struct Head {
    model: Arc<Model>,
    id: String,
    created: u64,
    name: String,
    /// First tokens of the prompts, where they are a part of the answers.
    first: Vec<u32>,
    n: usize,
    scored: bool,
    /// Characters of each choice so far.
    offsets: Vec<usize>,
}

pub(super) async fn create(State(app): State<Arc<App>>, visit: Visit, request: Request) -> Reply {
    let (model, body) = receive(&app, &visit, request).await?;
    let worker = model.clone();
    let prepare = move || {
        let asked = read(Fields::read(&body)?, &worker)?;
        // As llama.cpp reads a completion's prompt: special tokens may be written out.
        let encode = |prompt: Prompt| prompt.encode(&worker, PROMPT, true);
        let prompts = asked.prompts.into_iter().map(encode).collect::<Result<Vec<_>, _>>()?;
        Ok((asked.name, asked.streaming, asked.echo, asked.grammar, asked.generation, prompts))
    };
    let (name, streaming, echo, grammar, mut generation, prompts) = aside(prepare).await?;
    let (ids, texts): (Vec<_>, Vec<_>) = prompts.into_iter().unzip();
    generation.guide = rule(&model, grammar).await?.map(|rule| Guide::Rule(Box::new(rule)));
    let first = ids.iter().filter(|_| echo).filter_map(|p: &Arc<[u32]>| p.first().copied()).collect();
    generation.prompts = ids;
    generation.echo = echo.then_some(texts);
    let (choices, n, scored) = (generation.choices(), generation.n, generation.logprobs.is_some());
    let answer = app.generate(&visit, &model, generation, TextStart::Continuation)?;
    let id = format!("cmpl-{:016x}", parameters::fresh());
    let head = Head { model, id, created: unix_seconds(), name, first, n, scored, offsets: vec![0; choices] };
    match streaming.on {
        true => {
            let writer = ChunkWriter::new(&head.json(json!([])), streaming.usage);
            Ok(sse::respond(answer, Chunks { head, writer }))
        }
        false => whole(head, answer, choices).await,
    }
}

/// Reads the parameters.
fn read(mut fields: Fields, model: &Model) -> Result<Asked, ApiError> {
    let name = model.answers_to(fields.take("model")?)?;
    let prompts = prompts::read(&mut fields, PROMPT, PROMPTS)?;
    let echo = fields.take("echo")?.unwrap_or(false);
    let streaming = parameters::streaming(&mut fields)?;
    let grammar = parameters::grammar(&mut fields)?;
    let (sampling, seeded) = parameters::sampling(&mut fields, model)?;
    let generation = Generation {
        prompts: vec![],
        n: parameters::answers(&mut fields)?,
        predict: Some(parameters::limit(&mut fields, &["max_tokens", "max_completion_tokens"])?.unwrap_or(USUAL)),
        sampling,
        seeded,
        stops: parameters::stops(&mut fields)?,
        ignore_eos: parameters::ignore_eos(&mut fields, &grammar)?,
        logprobs: fields.count("logprobs", 0, 20)?.map(|n| n as usize),
        guide: None,
        reasoning: None,
        first_call: None,
        echo: None,
        share: parameters::share(&mut fields)?,
        salt: parameters::cache_salt(&mut fields)?,
        pooling: None,
    };
    parameters::finish(
        fields,
        &[("suffix", json!("")), ("prompt_logprobs", json!(0)), ("add_special_tokens", json!(true))],
    )?;
    Ok(Asked { name, streaming, prompts, echo, grammar, generation })
}

impl Head {
    fn json(&self, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.name,
            "system_fingerprint": parameters::fingerprint(),
            "choices": choices,
        })
    }

    /// Log-probabilities of a piece.
    fn lists(&mut self, delta: &Delta) -> Lists {
        let mut lists = Lists::default();
        let offset = &mut self.offsets[delta.choice];
        if let (Some(scores), Some(first)) = (&delta.prompt, self.first.get(delta.choice / self.n)) {
            lists.first(&self.model, *first, offset);
            scores.iter().for_each(|s| lists.push(&self.model, s, offset));
        }
        delta.scores.iter().for_each(|s| lists.push(&self.model, s, offset));
        lists
    }
}

/// One response with all that comes.
async fn whole(mut head: Head, mut answer: Answer, choices: usize) -> Reply {
    let mut texts = vec![String::new(); choices];
    let mut lists = vec![Lists::default(); choices];
    let mut ends = vec![Reason::Stop; choices];
    while let Some(delta) = answer.next().await {
        let delta = delta?;
        if head.scored {
            lists[delta.choice].append(head.lists(&delta));
        }
        texts[delta.choice].push_str(&delta.text);
        ends[delta.choice] = delta.end.unwrap_or(ends[delta.choice]);
    }
    let rows = texts.into_iter().zip(lists).zip(ends).enumerate().map(|(index, ((text, lists), end))| {
        let logprobs = head.scored.then(|| lists.json());
        json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": end.word()})
    });
    let mut response = head.json(rows.collect());
    response["usage"] = parameters::usage(answer.usage());
    Ok(json_response(&response))
}

/// A stream of chunks.
struct Chunks {
    head: Head,
    writer: ChunkWriter,
}

impl Wire for Chunks {
    fn delta(&mut self, delta: Delta, out: &mut String) {
        let logprobs = if self.head.scored { self.head.lists(&delta).json() } else { Value::Null };
        let choice = json!({
            "index": delta.choice,
            "text": delta.text,
            "logprobs": logprobs,
            "finish_reason": delta.end.map(Reason::word),
        });
        self.writer.choice(&choice, out);
    }

    fn end(&mut self, usage: Usage, out: &mut String) {
        self.writer.end(&parameters::usage(usage), out);
    }

    fn error(&mut self, error: &ApiError, out: &mut String) {
        event(out, &error.json());
        out.push_str("data: [DONE]\n\n");
    }
}
