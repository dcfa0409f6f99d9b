//! Bodies of requests: read within limits of size and time, and of memory for all of them together.
//!
//! ```text
//! frames ─Bodies.count─► Body (its bytes count until it has been parsed and dropped) ─► a handler
//!    └─ refused: 413, 503 ─► what is still to come is read and dropped, so that the client gets to read why
//! ```
//!
//! Bytes count as they arrive, not when they are announced, so nobody takes room with a head alone. Who finds no room is refused
//! at once rather than made to wait: waiting, it would hold what it has sent already, and many such would wait for each other.
//! The last quarter is for small bodies: ordinary requests come through while large ones, perhaps half sent, take all the rest.
//! And where there are several keys, none of them has more than half.

use crate::app::App;
use crate::error::ApiError;
use crate::guard::Visit;
use crate::model::Model;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use http_body::Body as _;
use std::collections::HashMap;
use std::future::poll_fn;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// A body of up to so many bytes is small.
const SMALL: usize = 64 << 10;

/// One of more than so many bytes is large: parsed, a list of short numbers takes up to a hundred times as much. So many are parsed
/// at a time.
const LARGE: usize = 1 << 20;
const LARGE_AT_A_TIME: usize = 2;

/// Time for a refused client to end what it is sending.
const LINGER: Duration = Duration::from_secs(5);

/// Room for all bodies of a server.
pub(crate) struct Bodies {
    most: usize,
    held: Arc<Mutex<Held>>,
    large: Arc<Semaphore>,
}

/// Bytes of memory that bodies take.
#[derive(Debug, Default)]
struct Held {
    all: usize,
    by_owner: HashMap<u32, usize>,
}

/// A body, as far as it has come.
pub(crate) struct Body {
    bytes: Vec<u8>,
    /// What of it counts.
    counted: usize,
    owner: u32,
    /// Most that its owner may have.
    share: usize,
    most: usize,
    held: Arc<Mutex<Held>>,
    /// Only so many large ones are parsed at a time.
    turn: Option<OwnedSemaphorePermit>,
}

impl Bodies {
    /// Room for so many bytes, at least for one of the largest bodies and many small ones beside it.
    pub(crate) fn new(most: usize, largest: usize) -> Bodies {
        let large = Arc::new(Semaphore::new(LARGE_AT_A_TIME));
        Bodies { most: most.max(largest.saturating_mul(2)), held: Arc::default(), large }
    }

    /// A body of which nothing has come yet. `several`: other owners may want room, too.
    fn begin(&self, owner: u32, several: bool) -> Body {
        let (most, held) = (self.most, self.held.clone());
        let share = if several { most / 2 } else { most };
        Body { bytes: vec![], counted: 0, owner, share, most, held, turn: None }
    }

    /// Bytes that bodies take now.
    pub(crate) fn bytes(&self) -> usize {
        lock(&self.held).all
    }
}

impl Body {
    /// Adds what has come of a body of at most `whole` bytes; false if there is no room for it.
    fn add(&mut self, data: &[u8], whole: usize) -> bool {
        let needed = self.bytes.len() + data.len();
        if needed > self.counted {
            // Twice as much each time, so that little is copied.
            let wanted = (self.counted * 2).min(whole).max(needed);
            if !self.count(wanted) {
                return false;
            }
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
        self.bytes.extend_from_slice(data);
        true
    }

    /// Takes room for so many bytes in all.
    fn count(&mut self, wanted: usize) -> bool {
        let mut held = lock(&self.held);
        let more = wanted - self.counted;
        let most = if wanted <= SMALL { self.most } else { self.most / 4 * 3 };
        let mine = held.by_owner.get(&self.owner).copied().unwrap_or(0);
        if held.all + more > most || mine + more > self.share {
            return false;
        }
        held.all += more;
        held.by_owner.insert(self.owner, mine + more);
        self.counted = wanted;
        true
    }
}

impl Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        // Gone before others may have as much.
        drop(std::mem::take(&mut self.bytes));
        let mut held = lock(&self.held);
        held.all -= self.counted;
        if let Some(mine) = held.by_owner.get_mut(&self.owner) {
            *mine -= self.counted;
            if *mine == 0 {
                held.by_owner.remove(&self.owner);
            }
        }
    }
}

fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The model, if it can answer, and a request's body. Whoever drops the body has parsed it.
pub(crate) async fn receive(app: &App, visit: &Visit, request: Request) -> Result<(Arc<Model>, Body), ApiError> {
    let (head, mut incoming) = request.into_parts();
    let declared = head.headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
    let most = app.max_body;
    let reading = async {
        let model = app.model()?;
        if head.headers.get(header::CONTENT_ENCODING).is_some_and(|v| !v.as_bytes().eq_ignore_ascii_case(b"identity")) {
            return Err(ApiError::invalid("the request's body is encoded (`Content-Encoding`); send it plain"));
        }
        if declared.is_some_and(|n| n > most) {
            return Err(ApiError::too_large(most));
        }
        let mut body = app.bodies.begin(visit.caller.account.number, app.has_several_keys());
        let read = collect(&mut incoming, &mut body, declared.unwrap_or(most), most);
        timeout(app.patience.body, read).await.unwrap_or_else(|_| Err(ApiError::too_slow()))?;
        Ok((model, body))
    };
    let read = reading.await;
    if let Err(error) = &read
        && matches!(error.status, StatusCode::PAYLOAD_TOO_LARGE | StatusCode::SERVICE_UNAVAILABLE)
    {
        app.metrics.bodies_refused.add(u64::from(error.code == Some(ApiError::CROWDED)));
        see_off(app, Request::from_parts(head, incoming));
    }
    let (model, mut body) = read?;
    if body.len() > LARGE {
        body.turn = app.bodies.large.clone().acquire_owned().await.ok();
    }
    Ok((model, body))
}

/// Reads all of a body, if it is not more than `most` bytes; `whole` if it is as long as was said.
async fn collect(incoming: &mut axum::body::Body, body: &mut Body, whole: usize, most: usize) -> Result<(), ApiError> {
    while let Some(frame) = poll_fn(|context| Pin::new(&mut *incoming).poll_frame(context)).await {
        let frame = frame.map_err(|error| ApiError::invalid(format!("the request's body cannot be read: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if data.len() > most - body.len() {
            return Err(ApiError::too_large(most));
        }
        if !body.add(&data, whole) {
            return Err(ApiError::crowded());
        }
    }
    Ok(())
}

/// Reads and drops what is still to come of a request that is refused. A connection that is closed while something lies unread is
/// reset, and its client may then never see the answer.
pub(crate) fn see_off(app: &App, request: Request) {
    let (head, mut incoming) = request.into_parts();
    // One that asks before it sends a body sends none.
    if incoming.is_end_stream() || head.headers.contains_key(header::EXPECT) {
        return;
    }
    let mut left = app.max_body;
    tokio::spawn(timeout(LINGER, async move {
        while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut incoming).poll_frame(context)).await {
            let length = frame.data_ref().map_or(0, |data| data.len());
            match left.checked_sub(length) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn all_bodies_together_have_so_much_room() {
        let bodies = Bodies::new(8 * MIB, MIB);
        let piece = vec![b' '; 16 << 10];
        let large = |owner, several| {
            let mut body = bodies.begin(owner, several);
            (0..64).all(|_| body.add(&piece, MIB)).then_some(body)
        };
        let mut held: Vec<Body> = (0..6).map(|_| large(1, false).expect("three quarters are anyone's")).collect();
        assert!(large(1, false).is_none() && bodies.bytes() == 6 * MIB, "one that is refused holds nothing");
        let small = |owner| bodies.begin(owner, false).add(&piece, piece.len());
        assert!(small(1) && small(2), "small ones still find room");
        held.truncate(3);
        held.extend([large(2, true), large(2, true), large(2, true)].into_iter().flatten());
        assert!(held.len() == 6 && large(2, true).is_none(), "room for six");
        held.drain(..3);
        held.push(large(2, true).expect("half of all"));
        assert!(large(2, true).is_none(), "more than half");
        assert!(large(3, true).is_some());
        drop(held);
        let left = lock(&bodies.held);
        assert!(left.all == 0 && left.by_owner.is_empty(), "nothing is kept");
    }

    #[test]
    fn what_counts_is_memory_and_little_more_than_has_come() {
        let bodies = Bodies::new(0, 4 * MIB);
        let mut body = bodies.begin(1, true);
        for _ in 0..3000 {
            assert!(body.add(&[b'x'; 1000], 3_000_000));
            assert!(body.bytes.capacity() <= body.counted && bodies.bytes() == body.counted);
            assert!(body.counted <= (2 * body.len()).min(3_000_000));
        }
        assert_eq!((body.len(), body.counted), (3_000_000, 3_000_000));
    }
}
