//! Places for connections: so many in total, and so many of them for each address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections by address.
type Counts = Mutex<HashMap<IpAddr, usize>>;

/// All places of a server.
pub(crate) struct Places {
    room: Arc<Semaphore>,
    counts: Arc<Counts>,
    per_address: usize,
}

/// A connection's place, free again when this goes away.
pub(crate) struct Place {
    from: IpAddr,
    counts: Arc<Counts>,
    _room: OwnedSemaphorePermit,
}

impl Places {
    pub(crate) fn new(total: usize, per_address: usize) -> Places {
        let total = total.clamp(1, Semaphore::MAX_PERMITS);
        Places { room: Arc::new(Semaphore::new(total)), counts: Arc::default(), per_address }
    }

    /// Waits until there is room for one more.
    pub(crate) async fn room(&self) -> Option<OwnedSemaphorePermit> {
        self.room.clone().acquire_owned().await.ok()
    }

    /// A place for a connection from this address, unless it has as many as it may.
    pub(crate) fn place(&self, room: OwnedSemaphorePermit, from: IpAddr) -> Option<Place> {
        let from = network(from);
        let mut counts = lock(&self.counts);
        let count = counts.entry(from).or_default();
        if *count >= self.per_address {
            return None;
        }
        *count += 1;
        drop(counts);
        Some(Place { from, counts: self.counts.clone(), _room: room })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts);
        if let Some(count) = counts.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.from);
            }
        }
    }
}

fn lock(counts: &Counts) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What counts as one address: of version 6, whoever has one has 2⁶⁴ of them.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) >> 64 << 64).into()),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn places_are_counted_by_address_and_come_back() {
        let places = Places::new(4, 2);
        let take = async |address: &str| places.place(places.room().await?, address.parse().expect("an address"));
        let (a, b) = (take("10.0.0.1").await, take("::ffff:10.0.0.1").await);
        assert!(a.is_some() && b.is_some() && take("10.0.0.1").await.is_none());
        let c = take("2001:db8::1").await;
        assert!(c.is_some());
        let d = take("2001:db8::2").await;
        assert!(d.is_some() && places.room.available_permits() == 0, "four of four");
        drop((a, c));
        assert!(take("2001:db8:0:0:9::1").await.is_some() && take("10.0.0.1").await.is_some());
        drop((b, d));
        assert!(lock(&places.counts).is_empty() && places.room.available_permits() == 4, "nothing is kept");
    }
}
