//! A request's answers as they come: tokens become text, stop strings end it.
//!
//! ```text
//! runner ─Update─► StreamDecoder ─► StopMatcher ─► Delta ─► a wire format
//! ```
//!
//! Dropping an [`Answer`] cancels what is still to come of it.

use crate::error::ApiError;
use crate::generation::{Generation, Reason, Usage};
use crate::metrics::Outcome;
use crate::model::Model;
use crate::reasoning::{Reader, Split};
use crate::runner::{Command, Failure, RequestNumber, Update, What};
use crate::score::Scored;
use crate::story::Story;
use crate::tools::CallReader;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::sync::mpsc::Receiver;
use zinc_engine::Finish;
use zinc_text::{StopMatcher, StreamDecoder, TextStart, Tokenizer};

/// A piece of a choice.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delta {
    pub(crate) choice: usize,
    /// Reasoning, which comes before all text.
    pub(crate) reasoning: String,
    /// May be empty: tokens can be half a character, or the beginning of a stop string.
    pub(crate) text: String,
    /// Log-probabilities of the tokens that came, if asked for.
    pub(crate) scores: Vec<Scored>,
    /// The text is the prompt, whose log-probabilities these are, from its second token on.
    pub(crate) prompt: Option<Vec<Scored>>,
    /// The prompt's embedding.
    pub(crate) embedding: Option<Vec<f32>>,
    /// The choice ends here.
    pub(crate) end: Option<Reason>,
}

/// One choice on its way.
struct Choice {
    decoder: StreamDecoder<Arc<Tokenizer>>,
    reader: Option<Reader>,
    matcher: StopMatcher,
    /// Ends it with its first call.
    first_call: Option<CallReader>,
    ended: bool,
}

impl Choice {
    /// Reasoning and text in what has come.
    fn split(&mut self, text: String) -> Split {
        match &mut self.reader {
            Some(reader) => reader.push(&text),
            None => Split { reasoning: String::new(), text },
        }
    }
}

/// What a request gives.
pub(crate) struct Answer {
    number: RequestNumber,
    updates: Receiver<Update>,
    commands: mpsc::Sender<Command>,
    choices: Vec<Choice>,
    open: usize,
    echo: Option<Vec<String>>,
    n: usize,
    scored: bool,
    prompts: Vec<Arc<[u32]>>,
    usage: Usage,
    ready: VecDeque<Result<Delta, ApiError>>,
    story: Story,
    outcome: Outcome,
}

/// What an answer is made of besides the generation.
pub(crate) struct Line {
    pub(crate) number: RequestNumber,
    pub(crate) updates: Receiver<Update>,
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) story: Story,
}

impl Answer {
    pub(crate) fn new(
        model: &Model,
        generation: &Generation,
        start: TextStart,
        line: Line,
    ) -> Result<Answer, ApiError> {
        let stops = StopMatcher::new(generation.stops.clone())
            .map_err(|error| ApiError::parameter("stop", error.to_string()))?;
        let choice = |_| Choice {
            decoder: StreamDecoder::new(model.tokenizer.clone(), start, false),
            reader: generation.reasoning.clone(),
            matcher: stops.clone(),
            first_call: generation.first_call.clone(),
            ended: false,
        };
        let choices: Vec<Choice> = (0..generation.choices()).map(choice).collect();
        let prompt = generation.prompts.iter().map(|p| p.len() as u64).sum();
        let Line { number, updates, commands, story } = line;
        Ok(Answer {
            number,
            updates,
            commands,
            open: choices.len(),
            choices,
            echo: generation.echo.clone(),
            n: generation.n,
            scored: generation.logprobs.is_some(),
            prompts: generation.prompts.clone(),
            usage: Usage { prompt, ..Usage::default() },
            ready: VecDeque::new(),
            story,
            outcome: Outcome::Abort,
        })
    }

    /// Tokens so far.
    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    /// The next piece; `None` when all choices have ended.
    pub(crate) async fn next(&mut self) -> Option<Result<Delta, ApiError>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// As [`Answer::next`].
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Delta, ApiError>>> {
        loop {
            if let Some(delta) = self.ready.pop_front() {
                return Poll::Ready(Some(delta));
            }
            if self.open == 0 {
                return Poll::Ready(None);
            }
            match self.updates.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(update)) => self.take(update),
                // The runner drops a sender only after it has said how the choice ended, unless its thread has died.
                Poll::Ready(None) => self.fail(ApiError::internal("the engine's thread has ended")),
            }
        }
    }

    fn fail(&mut self, error: ApiError) {
        self.open = 0;
        self.outcome = Outcome::Error;
        self.story.failed(&error.message);
        self.ready.push_back(Err(error));
    }

    fn take(&mut self, update: Update) {
        let Update { choice, what } = update;
        if self.choices.get(choice).is_none_or(|c| c.ended) {
            return;
        }
        match what {
            What::Started { cached, began } => {
                self.story.started.get_or_insert(began);
                // A prompt counts once, however many answers it has.
                if choice.is_multiple_of(self.n) {
                    self.usage.cached += cached as u64;
                }
                let alone = self.prompts.get(choice / self.n).is_some_and(|p| p.len() == 1);
                if !self.scored || alone {
                    self.echo(choice, vec![]);
                }
            }
            What::Prompt(scores) => self.echo(choice, scores),
            What::Embedding(vector) => {
                let delta = Delta { choice, embedding: Some(vector), ..Delta::default() };
                self.ready.push_back(Ok(delta));
            }
            What::Token(token) => self.token(choice, token, vec![]),
            What::Scored(scored) => self.token(choice, scored.token, vec![scored]),
            What::Finished(finish) => self.finished(choice, finish),
            What::Failed(failure) => self.fail(api_error(failure)),
        }
    }

    /// The prompt as a piece of the answer, if that was asked for.
    fn echo(&mut self, choice: usize, scores: Vec<Scored>) {
        if let Some(text) = self.echo.as_ref().and_then(|texts| texts.get(choice / self.n)) {
            let delta = Delta { choice, text: text.clone(), prompt: Some(scores), ..Delta::default() };
            self.ready.push_back(Ok(delta));
        }
    }

    fn token(&mut self, choice: usize, token: u32, scores: Vec<Scored>) {
        self.story.first.get_or_insert_with(Instant::now);
        self.usage.completion += 1;
        let this = &mut self.choices[choice];
        match this.decoder.push(token) {
            Ok(piece) => {
                let before = this.reader.as_ref().is_some_and(Reader::inside);
                let Split { reasoning, text } = this.split(piece);
                self.usage.reasoning += u64::from(before);
                // Stop strings and calls end answers; reasoning may hold them.
                let stopped = this.matcher.push(&text);
                let called = this.first_call.as_mut().is_some_and(|reader| {
                    reader.push(&stopped.text);
                    reader.calls() > 0
                });
                let end = (stopped.stop.is_some() || called).then_some(Reason::Stop);
                if end.is_some() {
                    // One that has ended by itself meanwhile is nothing to the runner.
                    self.commands.send(Command::Stop { number: self.number, choice }).ok();
                    self.end(choice, Reason::Stop);
                }
                if !stopped.text.is_empty() || !reasoning.is_empty() || !scores.is_empty() || end.is_some() {
                    self.ready.push_back(Ok(Delta {
                        choice,
                        reasoning,
                        text: stopped.text,
                        scores,
                        end,
                        ..Delta::default()
                    }));
                }
            }
            Err(error) => self.fail(ApiError::internal(error.to_string())),
        }
    }

    fn finished(&mut self, choice: usize, finish: Finish) {
        let this = &mut self.choices[choice];
        let last = this.decoder.finish();
        let mut split = this.split(last);
        if let Some(reader) = &mut this.reader {
            let rest = reader.finish();
            split.reasoning.push_str(&rest.reasoning);
            split.text.push_str(&rest.text);
        }
        let stopped = this.matcher.push(&split.text);
        let text = stopped.text + &this.matcher.finish();
        let reason = match (stopped.stop, finish) {
            (Some(_), _) | (None, Finish::EndToken(_)) => Reason::Stop,
            (None, Finish::Length | Finish::ContextFull { .. }) => Reason::Length,
            (None, Finish::NoneAllowed) => {
                let message = "the grammar allows nothing more at a place that is no end";
                return self.fail(ApiError::internal(message));
            }
            (None, Finish::NoNumbers) => {
                let message = "the model gave no numbers as logits; its file may be damaged, or the device at fault";
                return self.fail(ApiError::internal(message));
            }
        };
        self.end(choice, reason);
        self.ready.push_back(Ok(Delta {
            choice,
            reasoning: split.reasoning,
            text,
            end: Some(reason),
            ..Delta::default()
        }));
    }

    fn end(&mut self, choice: usize, reason: Reason) {
        self.choices[choice].ended = true;
        self.story.ended(reason);
        self.open -= 1;
        if self.open == 0 {
            self.outcome = Outcome::Stop;
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.story.tell(self.number, self.usage, self.outcome);
    }
}

fn api_error(failure: Failure) -> ApiError {
    match failure {
        Failure::Context { needed, prompt, predict, available } => {
            ApiError::context(needed, prompt, predict, available)
        }
        Failure::Invalid(message) => ApiError::invalid(message),
        Failure::Engine(message) => ApiError::internal(message),
        Failure::Lost(why) => ApiError::lost(&why),
        Failure::Ending => ApiError::unavailable("the server is shutting down"),
    }
}
