//! Text → tokens.
//!
//! ```text
//! "%0: f32 = neg %1" ─► Percent(0) Sign(':') Word("f32") Sign('=') Word("neg") Percent(1)
//! ```

use super::parse::ParseError;

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Token {
    /// Identifier, keyword or type.
    Word(String),
    /// `%12`.
    Percent(u32),
    /// `$name`.
    Dollar(String),
    /// `@name`.
    At(String),
    /// Number with its suffix, as written.
    Number(String),
    /// One of `: = , + [ ] { }`.
    Sign(char),
    End,
}

impl Token {
    pub(super) fn describe(&self) -> String {
        match self {
            Token::Word(w) | Token::Number(w) => format!("`{w}`"),
            Token::Percent(n) => format!("`%{n}`"),
            Token::Dollar(n) => format!("`${n}`"),
            Token::At(n) => format!("`@{n}`"),
            Token::Sign(c) => format!("`{c}`"),
            Token::End => "the end of the text".to_string(),
        }
    }
}

/// All tokens with their lines (from 1), ending with [`Token::End`].
pub(super) fn tokens(text: &str) -> Result<Vec<(Token, u32)>, ParseError> {
    let mut out = vec![];
    let mut line = 0;
    for (i, full) in text.lines().enumerate() {
        line = i as u32 + 1;
        let code = full.split('#').next().unwrap_or_default();
        let mut rest = code.trim_start();
        while let Some(first) = rest.chars().next() {
            let (token, len) = one(first, rest).map_err(|message| ParseError { line, message })?;
            out.push((token, line));
            rest = rest[len..].trim_start();
        }
    }
    out.push((Token::End, line.max(1)));
    Ok(out)
}

fn word_len(text: &str) -> usize {
    text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.')).unwrap_or(text.len())
}

/// The token at the start of `rest` and its length in bytes.
fn one(first: char, rest: &str) -> Result<(Token, usize), String> {
    match first {
        ':' | '=' | ',' | '+' | '[' | ']' | '{' | '}' => Ok((Token::Sign(first), 1)),
        '%' | '$' | '@' => {
            let len = 1 + word_len(&rest[1..]);
            let name = rest[1..len].to_string();
            let token = match first {
                '%' => Token::Percent(name.parse().map_err(|_| format!("`%{name}` is no value number"))?),
                '$' => Token::Dollar(name),
                _ => Token::At(name),
            };
            Ok((token, len))
        }
        '0'..='9' | '-' => {
            let mut len = 1 + word_len(&rest[1..]);
            // The sign of an exponent, as in 1e-5.
            if rest[..len].ends_with('e') && !rest.starts_with("0x") && rest[len..].starts_with('-') {
                len += 1 + word_len(&rest[len + 1..]);
            }
            Ok((Token::Number(rest[..len].to_string()), len))
        }
        c if c.is_ascii_alphabetic() || c == '_' => {
            let len = word_len(rest);
            Ok((Token::Word(rest[..len].to_string()), len))
        }
        c => Err(format!("unexpected character {c:?}")),
    }
}
