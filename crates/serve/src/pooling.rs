//! Embeddings: the hidden states of a text become one vector of length 1.
//!
//! ```text
//! hidden state per token ─mean, or the last one─► vector ─(first `dimensions` values)─► divided by its length
//! ```

/// How the hidden states of a text's tokens become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The last token's.
    Last,
}

impl Pooling {
    /// The pooling that a GGUF file's `*.pooling_type` names; the last token's where it names none. `None`: one that only
    /// encoders have.
    pub fn of_file(kind: Option<u32>) -> Option<Pooling> {
        match kind {
            None | Some(0 | 3) => Some(Pooling::Last),
            Some(1) => Some(Pooling::Mean),
            Some(_) => None,
        }
    }

    /// The first token whose state is needed, of a text of so many.
    pub(crate) fn first(self, tokens: usize) -> u32 {
        match self {
            Pooling::Mean => 0,
            Pooling::Last => tokens.saturating_sub(1) as u32,
        }
    }
}

/// The sum of the states that have come.
#[derive(Debug, Default)]
pub(crate) struct Pooled {
    sum: Vec<f64>,
    count: usize,
}

impl Pooled {
    /// Takes the next token's.
    pub(crate) fn add(&mut self, state: &[f32]) {
        self.sum.resize(state.len(), 0.0);
        self.sum.iter_mut().zip(state).for_each(|(sum, x)| *sum += *x as f64);
        self.count += 1;
    }

    /// Their mean; `None` if there is none, or it is no number.
    pub(crate) fn mean(self) -> Option<Vec<f32>> {
        let mean: Vec<f32> = self.sum.iter().map(|x| (x / self.count as f64) as f32).collect();
        (self.count > 0 && mean.iter().all(|x| x.is_finite())).then_some(mean)
    }
}

/// The vector's first `dimensions` values, divided by their length.
pub(crate) fn unit(mut vector: Vec<f32>, dimensions: usize) -> Vec<f32> {
    vector.truncate(dimensions);
    let length = vector.iter().map(|x| *x as f64 * *x as f64).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (*x as f64 / length) as f32);
    }
    vector
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_of_all_states_and_units_have_length_one() {
        let mut pooled = Pooled::default();
        [[1.0, 5.0, 0.0], [5.0, 3.0, 0.0]].iter().for_each(|state| pooled.add(state));
        let mean = pooled.mean().expect("numbers");
        assert_eq!(mean, [3.0, 4.0, 0.0]);
        assert_eq!(unit(mean.clone(), 3), [0.6, 0.8, 0.0]);
        assert_eq!(unit(mean, 1), [1.0]);
        assert_eq!(unit(vec![0.0; 2], 2), [0.0, 0.0], "what has no direction stays");
        let mut broken = Pooled::default();
        broken.add(&[f32::NAN]);
        assert!(broken.mean().is_none() && Pooled::default().mean().is_none());
    }

    #[test]
    fn files_name_their_pooling_as_llama_cpp_does() {
        let of = |kind| Pooling::of_file(kind);
        assert_eq!([of(None), of(Some(0)), of(Some(3))], [Some(Pooling::Last); 3]);
        assert_eq!((of(Some(1)), of(Some(2)), of(Some(4))), (Some(Pooling::Mean), None, None));
        assert_eq!((Pooling::Mean.first(9), Pooling::Last.first(9)), (0, 8));
    }
}
