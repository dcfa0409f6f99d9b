//! The merge loop that SentencePiece and byte-level BPE share.
//!
//! ```text
//! word ─► its characters as a linked list ─best pair first, leftmost of equals─► symbols
//! ```
//!
//! What "best" is, the caller says: a merge's rank, or the score of the token that two symbols
//! make. The order decides the ids, so ties and stale pairs go exactly as in the reference.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Merges one word after the other, keeping its memory.
#[derive(Default)]
pub(crate) struct Merger {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<Pair>>,
}

/// A run of the word's bytes; empty once it was merged into its left neighbour.
struct Symbol {
    start: u32,
    len: u32,
    prev: u32,
    next: u32,
}

const NONE: u32 = u32::MAX;

/// Ordered by priority, then from left to right.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    priority: u32,
    left: u32,
    right: u32,
    /// Bytes of both sides when the pair was found; another length now means it is stale.
    len: u32,
}

impl Merger {
    /// Merges `word` (shorter than 4 GiB) as long as `priority(word, start, middle, end)` gives a
    /// number (lower first) for two neighbours; then calls `symbol` with each remaining range.
    pub(crate) fn merge(
        &mut self,
        word: &str,
        priority: impl Fn(&[u8], &[u8], &[u8]) -> Option<u32>,
        mut symbol: impl FnMut(Range<usize>),
    ) {
        self.symbols.clear();
        self.heap.clear();
        let last = word.chars().count() as u32;
        for (index, (start, c)) in word.char_indices().enumerate() {
            let index = index as u32;
            self.symbols.push(Symbol {
                start: start as u32,
                len: c.len_utf8() as u32,
                prev: index.checked_sub(1).unwrap_or(NONE),
                next: if index + 1 == last { NONE } else { index + 1 },
            });
        }
        for right in 1..last {
            self.consider(word, right - 1, right, &priority);
        }
        while let Some(Reverse(pair)) = self.heap.pop() {
            let (left, right) = (pair.left as usize, pair.right as usize);
            let (left_len, right_len) = (self.symbols[left].len, self.symbols[right].len);
            if left_len == 0 || right_len == 0 || left_len + right_len != pair.len {
                continue;
            }
            let after = self.symbols[right].next;
            self.symbols[left].len = pair.len;
            self.symbols[left].next = after;
            self.symbols[right].len = 0;
            if after != NONE {
                self.symbols[after as usize].prev = pair.left;
            }
            self.consider(word, self.symbols[left].prev, pair.left, &priority);
            self.consider(word, pair.left, after, &priority);
        }
        for merged in self.symbols.iter().filter(|merged| merged.len > 0) {
            let start = merged.start as usize;
            symbol(start..start + merged.len as usize);
        }
    }

    fn consider(&mut self, word: &str, left: u32, right: u32, priority: impl Fn(&[u8], &[u8], &[u8]) -> Option<u32>) {
        if left == NONE || right == NONE {
            return;
        }
        let start = self.symbols[left as usize].start as usize;
        let middle = self.symbols[right as usize].start as usize;
        let end = middle + self.symbols[right as usize].len as usize;
        let word = word.as_bytes();
        if let Some(priority) = priority(&word[start..middle], &word[middle..end], &word[start..end]) {
            let len = (end - start) as u32;
            self.heap.push(Reverse(Pair { priority, left, right, len }));
        }
    }
}

/// A number that orders like `-score`: the higher score first.
pub(crate) fn priority_of_score(score: f32) -> u32 {
    // 0.0 and -0.0 are one score, and their bits must be, too.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_scores_come_first() {
        let scores = [f32::INFINITY, 3.5, 1e-30, 0.0, -1e-30, -2.0, f32::NEG_INFINITY];
        for pair in scores.windows(2) {
            assert!(priority_of_score(pair[0]) < priority_of_score(pair[1]), "{pair:?}");
        }
        assert_eq!(priority_of_score(0.0), priority_of_score(-0.0));
    }

    proptest::proptest! {
        /// Against the definition: always the best pair of all, and of equals the leftmost.
        #[test]
        fn merges_go_by_the_definition(word in "[abc\u{e9}]{0,16}", salt in 0..1000u32) {
            // A table of merges out of a hash: some pairs have a rank, many share one.
            let rank = |both: &[u8]| {
                let hash = both.iter().fold(salt, |hash, &b| {
                    (hash ^ u32::from(b)).wrapping_mul(0x9E37_79B1).rotate_left(7)
                });
                (hash % 3 != 0).then_some(hash / 3 % 5)
            };
            let mut expected: Vec<String> = word.chars().map(String::from).collect();
            let best = |parts: &[String]| {
                let ranks = parts.windows(2).enumerate().filter_map(|(at, pair)| {
                    Some((rank((pair[0].clone() + &pair[1]).as_bytes())?, at))
                });
                ranks.min()
            };
            while let Some((_, at)) = best(&expected) {
                let right = expected.remove(at + 1);
                expected[at].push_str(&right);
            }
            let mut found = Vec::new();
            Merger::default().merge(&word, |_, _, both| rank(both), |range| {
                found.push(word[range].to_owned());
            });
            proptest::prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn the_leftmost_of_equal_pairs_merges_first() {
        let mut merger = Merger::default();
        let mut out = Vec::new();
        let word = "aaaa\u{e9}aaa";
        merger.merge(
            word,
            |left, right, _| (left == b"a" && right == b"a").then_some(7),
            |range| out.push(&word[range]),
        );
        assert_eq!(out, ["aa", "aa", "\u{e9}", "aa", "a"]);
        merger.merge("", |_, _, _| None, |_| panic!("nothing in, nothing out"));
    }
}
