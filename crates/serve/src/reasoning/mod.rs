//! Reasoning that models write in front of their answers, between tags: told apart from the answer, and kept to a budget.
//!
//! ```text
//! prompt ─Tags::begun─► does the answer begin inside of reasoning?
//! text of the answer ─Reader─► reasoning | answer
//! tokens ─Thinking─► reasoning may be so long; what must follow a grammar follows it after the reasoning
//! ```
//!
//! Which tags a model uses, its chat template shows: a row of [`TAGS`] each.

mod thinking;

pub(crate) use thinking::{Guide, Thinking};

/// How a family of models marks reasoning.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tags {
    /// Before it.
    pub(crate) open: &'static str,
    /// After it.
    pub(crate) close: &'static str,
    /// What ends it where the model does not: the closing tag as the family's templates space it.
    pub(crate) forced: &'static str,
}

/// The first whose closing tag a template has counts.
const TAGS: [Tags; 3] = [
    // DeepSeek, Qwen3, GLM, SmolLM3 and many more.
    Tags { open: "<think>", close: "</think>", forced: "\n</think>\n\n" },
    // Gemma 4.
    Tags { open: "<|channel>thought", close: "<channel|>", forced: "\n<channel|>" },
    // Command R7B and A.
    Tags { open: "<|START_THINKING|>", close: "<|END_THINKING|>", forced: "<|END_THINKING|>" },
];

/// How far reasoning has come at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// It may begin here.
    No,
    /// This is inside of it.
    Yes,
    /// It is over, or was left out.
    Over,
}

impl Tags {
    /// The tags of a chat template's family.
    pub(crate) fn of(template: &str) -> Option<&'static Tags> {
        TAGS.iter().find(|tags| template.contains(tags.close))
    }

    /// How far reasoning has come at the end of a prompt.
    pub(crate) fn begun(&self, prompt: &str) -> Begun {
        let prompt = prompt.trim_end();
        match (prompt.ends_with(self.open), prompt.ends_with(self.close)) {
            (true, _) => Begun::Yes,
            (false, true) => Begun::Over,
            (false, false) => Begun::No,
        }
    }
}

/// A piece of an answer, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Split {
    pub(crate) reasoning: String,
    pub(crate) text: String,
}

/// Takes a text apart that comes in pieces. Tags and the white space around them belong to neither part.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    tags: &'static Tags,
    at: Begun,
    /// Nothing but white space has come of the part, and that goes away.
    fresh: bool,
    /// May be the beginning of a tag, or white space before one.
    held: String,
}

impl Reader {
    /// Begins at the end of a prompt.
    pub(crate) fn new(tags: &'static Tags, at: Begun) -> Reader {
        Reader { tags, at, fresh: at == Begun::Yes, held: String::new() }
    }

    /// Is what comes reasoning?
    pub(crate) fn inside(&self) -> bool {
        self.at == Begun::Yes
    }

    /// Takes the next part of the text.
    pub(crate) fn push(&mut self, text: &str) -> Split {
        self.held.push_str(text);
        let mut split = Split::default();
        if self.at == Begun::No {
            // Reasoning stands at the beginning or nowhere.
            let start = self.held.trim_start();
            if let Some(rest) = start.strip_prefix(self.tags.open) {
                (self.held, self.at, self.fresh) = (rest.to_owned(), Begun::Yes, true);
            } else if self.tags.open.starts_with(start) {
                return split;
            } else {
                self.at = Begun::Over;
            }
        }
        if self.at == Begun::Yes {
            if let Some((before, after)) = self.held.split_once(self.tags.close) {
                let (before, after) = (before.trim_end().to_owned(), after.to_owned());
                split.reasoning = self.unless_fresh(&before);
                (self.held, self.at, self.fresh) = (after, Begun::Over, true);
            } else {
                let certain = self.held.len() - overlap(&self.held, self.tags.close);
                let certain = self.held[..certain].trim_end().len();
                let rest = self.held.split_off(certain);
                let reasoning = std::mem::replace(&mut self.held, rest);
                split.reasoning = self.unless_fresh(&reasoning);
            }
        }
        if self.at == Begun::Over {
            let text = std::mem::take(&mut self.held);
            split.text = self.unless_fresh(&text);
        }
        split
    }

    /// Takes the end of the text.
    pub(crate) fn finish(&mut self) -> Split {
        let held = std::mem::take(&mut self.held);
        match self.at {
            // Half a tag, and white space at the end of reasoning that never ended.
            Begun::Yes => Split { reasoning: self.unless_fresh(held.trim_end()), text: String::new() },
            Begun::No | Begun::Over => Split { reasoning: String::new(), text: held },
        }
    }

    /// The text without the white space at a part's beginning.
    fn unless_fresh(&mut self, text: &str) -> String {
        if !self.fresh {
            return text.to_owned();
        }
        let text = text.trim_start();
        self.fresh = text.is_empty();
        text.to_owned()
    }
}

/// Bytes at the end of a text that a tag may begin with.
pub(crate) fn overlap(text: &str, tag: &str) -> usize {
    (1..tag.len().min(text.len() + 1)).rev().find(|n| text.as_bytes().ends_with(&tag.as_bytes()[..*n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(at: Begun, text: &str, cut: usize) -> (String, String) {
        let mut reader = Reader::new(&TAGS[0], at);
        let letters: Vec<char> = text.chars().collect();
        let mut splits: Vec<Split> =
            letters.chunks(cut).map(|part| reader.push(&part.iter().collect::<String>())).collect();
        splits.push(reader.finish());
        splits.into_iter().fold((String::new(), String::new()), |(r, t), s| (r + &s.reasoning, t + &s.text))
    }

    #[test]
    fn reasoning_is_found_however_the_text_is_cut() {
        let rows = [
            (
                Begun::No,
                "<think>\nI wonder: a < b?\n\n</think>\n\nYes,\n it is.\n",
                "I wonder: a < b?",
                "Yes,\n it is.\n",
            ),
            (Begun::No, "\n<think></think>x", "", "x"),
            (Begun::Yes, "\nÄh </thin k> no \n</think>\n\n y", "Äh </thin k> no", "y"),
            (Begun::Yes, "never ends </thi", "never ends </thi", ""),
            (Begun::No, " plain <think>text</think>", "", " plain <think>text</think>"),
            (Begun::No, "<thi", "", "<thi"),
            (Begun::Over, "  as it is", "", "  as it is"),
        ];
        for (at, text, reasoning, answer) in rows {
            for cut in 1..40 {
                assert_eq!(read(at, text, cut), (reasoning.to_owned(), answer.to_owned()), "{text:?} by {cut}");
            }
        }
    }

    #[test]
    fn templates_show_their_tags_and_prompts_where_they_end() {
        let tags = Tags::of("{{ '<think>' }}…</think>").expect("tags");
        assert_eq!(tags.begun("<|im_start|>assistant\n<think>\n"), Begun::Yes);
        assert_eq!(tags.begun("<|im_start|>assistant\n<think>\n\n</think>\n\n"), Begun::Over);
        assert_eq!(tags.begun("<|im_start|>assistant\n"), Begun::No);
        let gemma = Tags::of("<|channel>thought\n<channel|>").expect("tags");
        assert_eq!((gemma.open, gemma.begun("x<|channel>thought\n<channel|>")), ("<|channel>thought", Begun::Over));
        assert_eq!(Tags::of("{{ messages }}"), None);
    }
}
