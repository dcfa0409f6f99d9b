//! `zinc chat`: a conversation on the terminal.
//!
//! ```text
//! line ─► /command, or message ─template of all messages─► generate ─► answer, kept as a message
//! ```
//!
//! Every turn renders the whole conversation anew, so templates that change earlier turns are right too; the engine
//! keeps K and V of what is equal.

use crate::args::{ComputeArgs, ModelArgs, SamplingArgs, TemplateArgs};
use crate::failure::words;
use crate::folders;
use crate::generate::{Answer, End, Settings, generate, print_speed};
use crate::interrupt::Interrupt;
use crate::output::{print, print_line, say};
use crate::prompt::{Chat, message};
use crate::session::{Needs, Session};
use anyhow::{Context, Result, anyhow};
use clap::Args;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::Value;
use std::io::{ErrorKind, IsTerminal};
use std::path::{Path, PathBuf};
use zinc_engine::EngineError;

const HELP: &str = "\
/help            this list
/clear           forget the conversation, keep the system prompt
/system [TEXT]   set the system prompt and start anew; without TEXT, show it
/regen           answer the last message again
/undo            forget the last message and its answer
/exit, /quit     end (also Ctrl-D)
Ctrl-C stops an answer. A line that ends in \\ goes on in the next one.";

/// Tokens of context for the messages, where answers may be long (-n).
const ROOM: u64 = 1024;

/// Talks with a model; /help lists the commands there are in a conversation.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// Print the speed after each answer
    #[arg(long)]
    show_speed: bool,
    /// Neither read nor write the history file
    #[arg(long)]
    no_history: bool,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let settings = Settings::new(&arguments.sampling)?;
    let interrupt = Interrupt::install()?;
    let needs = match settings.predict {
        Some(n) => Needs::AtLeast(n as u64 + ROOM),
        None => Needs::Usual,
    };
    let session = Session::open(&arguments.model, &arguments.compute, needs, &interrupt)?;
    interrupt.check()?;
    let chat = Chat::new(&arguments.template, &session.source, &session.tokenizer)?.ok_or_else(|| {
        anyhow!(
            "{} has no chat template; name one (--chat-template chatml), or use `zinc run --raw`",
            session.source.name
        )
    })?;
    let messages = chat.beginning();
    let show_speed = arguments.show_speed || arguments.compute.verbose;
    let mut conversation = Conversation { session, chat, settings, interrupt, messages, show_speed };
    // The history is a comfort: where it cannot be kept, the conversation goes on.
    let history = match folders::history() {
        _ if arguments.no_history => None,
        Ok(file) => Some(file),
        Err(error) => {
            say!("warning: no history: {}", words(&error));
            None
        }
    };
    converse(&mut conversation, history)
}

/// Reads lines until the end.
fn converse(conversation: &mut Conversation, history: Option<PathBuf>) -> Result<()> {
    let mut editor = DefaultEditor::new().context("cannot read from the terminal")?;
    if let Some(file) = &history {
        // No file yet is no error, and a history that cannot be read is not worth failing for.
        editor.load_history(file).ok();
    }
    let terminal = std::io::stdin().is_terminal();
    if terminal {
        say!("{}. /help lists commands, Ctrl-D ends.", conversation.session.source.name);
    }
    loop {
        // A terminal gives Ctrl-C as a key.
        conversation.interrupt.set_idle(!terminal);
        let line = read_message(&mut editor);
        conversation.interrupt.set_idle(false);
        match line {
            Ok(line) if line.trim().is_empty() => continue,
            Ok(line) => {
                if history.is_some() {
                    editor.add_history_entry(line.as_str()).ok();
                }
                if !conversation.take(line.trim())? {
                    break;
                }
            }
            Err(ReadlineError::Interrupted) => say!("(Ctrl-D or /exit ends)"),
            Err(ReadlineError::Eof) => break,
            // A stray byte typed or pasted; of a pipe it would be a message that silently is not the user's.
            Err(ReadlineError::Io(error)) if terminal && error.kind() == ErrorKind::InvalidData => {
                say!("(that was not UTF-8 and is left out)")
            }
            Err(error) => return Err(error).context("cannot read the next message"),
        }
    }
    if let Some(Err(error)) = history.map(|file| save_history(&mut editor, &file)) {
        say!("warning: the history is not kept: {} (--no-history does without)", words(&error));
    }
    Ok(())
}

fn save_history(editor: &mut DefaultEditor, file: &Path) -> Result<()> {
    let folder = file.parent().context("the history file has no folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    // Appended, so that conversations at the same time do not lose each other's lines.
    editor.append_history(file).with_context(|| format!("cannot write {}", file.display()))
}

/// A line, or several joined by a backslash at the end.
fn read_message(editor: &mut DefaultEditor) -> rustyline::Result<String> {
    let mut message = String::new();
    let mut prompt = "> ";
    loop {
        let line = editor.readline(prompt)?;
        match line.strip_suffix('\\') {
            Some(start) => {
                message.push_str(start);
                message.push('\n');
                prompt = ". ";
            }
            None => {
                message.push_str(&line);
                return Ok(message);
            }
        }
    }
}

struct Conversation {
    session: Session,
    chat: Chat,
    settings: Settings,
    interrupt: Interrupt,
    messages: Vec<Value>,
    show_speed: bool,
}

impl Conversation {
    /// Handles one line; false: the end.
    fn take(&mut self, line: &str) -> Result<bool> {
        let (command, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match command {
            "/exit" | "/quit" => return Ok(false),
            "/help" => say!("{HELP}"),
            "/clear" => {
                self.messages.retain(|m| m["role"] == "system");
                say!("(forgotten)");
            }
            "/system" => self.system(rest.trim()),
            "/regen" => {
                let old = self.messages.pop_if(|m| m["role"] == "assistant");
                if self.messages.last().is_none_or(|m| m["role"] != "user") {
                    say!("(there is no message to answer)");
                    self.messages.extend(old);
                } else if !self.answer()? {
                    self.messages.extend(old);
                }
            }
            "/undo" => {
                if let Some(i) = self.messages.iter().rposition(|m| m["role"] == "user") {
                    self.messages.truncate(i);
                }
            }
            _ if command.starts_with('/') => say!("there is no command {command}; /help lists them"),
            _ => {
                self.messages.push(message("user", line));
                if !self.answer()? {
                    self.messages.pop();
                }
            }
        }
        Ok(true)
    }

    fn system(&mut self, text: &str) {
        if text.is_empty() {
            let now = self.messages.first().filter(|m| m["role"] == "system");
            say!("system prompt: {}", now.and_then(|m| m["content"].as_str()).unwrap_or("(none)"));
        } else {
            self.messages = vec![message("system", text)];
            say!("(system prompt set, conversation forgotten)");
        }
    }

    /// Answers the last message; false: it could not. What goes wrong with this one message does not end the
    /// conversation; that nobody can read the answers does.
    fn answer(&mut self) -> Result<bool> {
        match self.generate() {
            Ok(answer) => {
                self.messages.push(message("assistant", answer.text.trim()));
                print_line("")?;
                match answer.end {
                    End::Interrupted => say!("(stopped)"),
                    End::ContextFull(tokens) => {
                        say!("(the context of {tokens} tokens is full; /clear, or start with a larger -c)")
                    }
                    End::Model | End::Length | End::Stop(_) => {}
                }
                if self.show_speed {
                    print_speed(&self.session, &answer.timing);
                }
                Ok(true)
            }
            Err(error) if error.is::<std::io::Error>() => Err(error),
            Err(error) => {
                say!("zinc: {}", words(&error));
                if let Some(EngineError::Context { .. }) = error.downcast_ref() {
                    say!("(/clear forgets the conversation so far, /undo the last message and its answer)");
                }
                Ok(false)
            }
        }
    }

    fn generate(&mut self) -> Result<Answer> {
        let text = self.chat.render(&self.messages)?;
        let ids = self.session.tokenizer.encode_prompt(&text)?;
        self.interrupt.take();
        generate(&mut self.session, ids, &self.settings, &self.interrupt, &mut print)
    }
}
